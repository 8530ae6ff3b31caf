// Lets a switch sum: the shards keep the membership, the steps go by datagrams.
//
//   millrace_example_switch WORKER WORKERS SWITCH JOB KEY_FILE SHARD...    SWITCH: HOST:PORT; JOB: its number there

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
void train(millrace::JobConfig job, millrace::WorkerConfig me, const std::string& address, uint32_t number,
           const std::string& key_file) {
  job.name = "switch";
  job.select = millrace::Selection::top_k(0.1);
  job.path = millrace::SwitchPath{.address = address, .job = number, .slots = 16};  // as in the switch's list of jobs
  job.grid = millrace::Grid{.block_indices = 16'384};                               // "window_indices" there
  me.switch_key_file = key_file;
  std::vector<float> weights(300'000, 0.0f);
  std::vector<float> gradient;
  auto session = millrace::Session::connect(
      job, me, {{.name = "w", .dimension = weights.size(), .weights = millrace::Weights(weights, -0.05f)}});
  for (int i = 0; i < 200; ++i) {
    gradient_of(me.worker, job.workers, weights, gradient);
    session->await(0, session->push(0, gradient));
  }
  session->finish();
  float error = 0;
  for (size_t at = 0; at < weights.size(); ++at)
    error = std::fmax(error, std::fabs(weights[at] - std::sin(static_cast<float>(at))));
  const millrace::SwitchStats stats = session->stats().by_switch;
  std::printf("largest error %.4f, by the switch: %s\n", static_cast<double>(error), stats.at_switch ? "yes" : "no");
}
// README: end

}  // namespace

int main(int argc, char** argv) {
  if (argc < 7) {
    std::fprintf(stderr, "usage: %s WORKER WORKERS SWITCH JOB KEY_FILE SHARD...\n", argv[0]);
    return 2;
  }
  try {
    millrace::JobConfig job;
    millrace::WorkerConfig me;
    me.worker = static_cast<uint32_t>(std::stoul(argv[1]));
    job.workers = static_cast<uint32_t>(std::stoul(argv[2]));
    me.shards.assign(argv + 6, argv + argc);
    train(job, me, argv[3], static_cast<uint32_t>(std::stoul(argv[4])), argv[5]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
