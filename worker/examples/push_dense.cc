// Pushes dense gradients: all workers end with the same weights.
//
//   millrace_example_push_dense WORKER WORKERS SHARD...        SHARD: tcp://HOST:PORT, one for each shard, in order

#include <millrace/millrace.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace {

// Each worker knows the gradient of its own share of the entries: (weights - target) there, 0 elsewhere.
void gradient_of(uint32_t worker, uint32_t workers, const std::vector<float>& weights, std::vector<float>& gradient) {
  gradient.assign(weights.size(), 0.0f);
  for (size_t at = worker; at < weights.size(); at += workers)
    gradient[at] = weights[at] - std::sin(static_cast<float>(at));
}

// README: begin
void train(millrace::JobConfig job, millrace::WorkerConfig me) {
  job.name = "push_dense";
  job.select = millrace::Selection::top_k(0.1);  // each worker sends the largest tenth; the rest stays in its residual
  std::vector<float> weights(1'000, 0.0f);
  std::vector<float> gradient;
  auto session = millrace::Session::connect(
      job, me, {{.name = "w", .dimension = weights.size(), .weights = millrace::Weights(weights, -0.05f)}});
  for (int i = 0; i < 400; ++i) {
    gradient_of(me.worker, job.workers, weights, gradient);
    const uint64_t step = session->push(0, gradient);
    // Work that does not need the new weights goes here: the exchange runs meanwhile.
    session->await(0, step);  // the weights have the sum of all workers
  }
  session->finish();
  float error = 0;
  for (size_t at = 0; at < weights.size(); ++at)
    error = std::fmax(error, std::fabs(weights[at] - std::sin(static_cast<float>(at))));
  std::printf("largest error %.6f, sent %llu bytes instead of %llu\n", static_cast<double>(error),
              static_cast<unsigned long long>(session->stats().bytes_up),
              static_cast<unsigned long long>(session->stats().dense_bytes));
}
// README: end

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s WORKER WORKERS SHARD...\n", argv[0]);
    return 2;
  }
  try {
    millrace::JobConfig job;
    millrace::WorkerConfig me;
    me.worker = static_cast<uint32_t>(std::stoul(argv[1]));
    job.workers = static_cast<uint32_t>(std::stoul(argv[2]));
    me.shards.assign(argv + 3, argv + argc);
    train(job, me);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
