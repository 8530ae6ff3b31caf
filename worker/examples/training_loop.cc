// Least squares by several processes: each holds some rows, all end with the same weights.
//
//   millrace_example_training tcp://127.0.0.1:7600 WORKER WORKERS [STEPS [HTTP]]
//
// HTTP: 127.0.0.1:9201 serves this worker's metrics there.

#include <millrace/millrace.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr size_t kDimension = 10'000;
constexpr size_t kRows = 2'000;
constexpr size_t kEntriesPerRow = 8;

struct Row {
  std::vector<uint32_t> indices;
  std::vector<float> values;
  float target = 0;
};

// A row of fixed "true" weights; any generator does, as long as every worker has rows of its own.
Row make_row(uint64_t seed) {
  Row row;
  for (size_t i = 0; i < kEntriesPerRow; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    const auto index = static_cast<uint32_t>((seed >> 33) % kDimension);
    row.indices.push_back(index);
    row.values.push_back(1.0f);
    row.target += std::sin(static_cast<float>(index));
  }
  return row;
}

// The gradient of 1/2 (row . weights - target)^2, summed over the worker's rows, and their loss.
double gradient_of(const std::vector<Row>& rows, const std::vector<float>& weights, std::vector<float>& gradient) {
  gradient.assign(kDimension, 0.0f);
  double loss = 0;
  for (const Row& row : rows) {
    float error = -row.target;
    for (size_t i = 0; i < row.indices.size(); ++i) error += row.values[i] * weights[row.indices[i]];
    for (size_t i = 0; i < row.indices.size(); ++i) gradient[row.indices[i]] += error * row.values[i];
    loss += 0.5 * static_cast<double>(error * error);
  }
  return loss / static_cast<double>(rows.size());
}

std::vector<Row> rows_of(uint32_t worker) {
  std::vector<Row> rows;
  for (size_t i = 0; i < kRows; ++i) rows.push_back(make_row(worker * kRows + i + 1));
  return rows;
}

void print_line(millrace::LogLevel, std::string_view line) {
  std::printf("%.*s\n", static_cast<int>(line.size()), line.data());
}

void train(millrace::JobConfig job, const millrace::WorkerConfig& me, int steps) {
  job.name = "example";
  job.select = millrace::Selection::top_k(0.05);  // a twentieth of the entries travels; the rest waits in the residual
  job.updates.combine = millrace::Combine::kMean;
  // All workers must do this alike, and no other option says it: a shard refuses a worker with another recipe.
  job.recipe = "program=example scale=-0.02 rows=" + std::to_string(kRows) + " steps=" + std::to_string(steps);
  const std::vector<Row> rows = rows_of(me.worker);
  std::vector<float> weights(kDimension, 0.0f);
  std::vector<float> gradient;
  // The weights go with the tensor: so this worker can rejoin after it was removed, or join a job that runs.
  auto session = millrace::Session::connect(
      job, me, {{.name = "weights", .dimension = kDimension, .weights = millrace::Weights(weights, -0.02f)}});
  if (session->http_port() != 0) std::printf("metrics: port %u\n", unsigned{session->http_port()});
  std::fflush(stdout);
  for (int i = 0; i < steps; ++i) {
    const double loss = gradient_of(rows, weights, gradient);
    const uint64_t step = session->push(0, gradient);
    // Work that does not need the new weights goes here: the exchange runs meanwhile.
    while (!session->try_await(0, step, std::chrono::seconds(5)))
      std::printf("step %d: %s\n", i, session->status().waiting_for.c_str());
    if (i % 10 == 0) std::printf("step %d: loss %.6f\n", i, loss);
  }
  session->finish();
  const millrace::Stats stats = session->stats();
  std::printf("sent %llu bytes, a dense exchange would have sent %llu\n",
              static_cast<unsigned long long>(stats.bytes_up), static_cast<unsigned long long>(stats.dense_bytes));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s SHARD WORKER WORKERS [STEPS [HTTP]]\n", argv[0]);
    return 2;
  }
  try {
    millrace::JobConfig job;
    millrace::WorkerConfig me;
    me.shards = {argv[1]};
    me.worker = static_cast<uint32_t>(std::atoi(argv[2]));
    job.workers = static_cast<uint32_t>(std::atoi(argv[3]));
    if (argc > 5) me.http = argv[5];
    me.log = print_line;
    train(job, me, argc > 4 ? std::atoi(argv[4]) : 100);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
