// Survives being killed: the same command starts the worker again, and it continues at the job's step.
//
//   millrace_example_restart WORKER WORKERS SHARD...    the state is in the file restart.WORKER.state of this folder

#include <millrace/millrace.h>

#include <chrono>
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
  constexpr uint64_t kSteps = 400;
  job.name = "restart";
  job.select = millrace::Selection::top_k(0.1);
  job.liveness.dead_after = std::chrono::seconds(10);
  job.liveness.heartbeat = std::chrono::milliseconds(200);
  me.returns = true;  // takes the place of an earlier process of this worker
  me.load_path = me.save_path = "restart." + std::to_string(me.worker) + ".state";
  std::vector<float> weights(1'000, 0.0f);
  std::vector<float> gradient;
  // The weights go with connect(): another worker can give them to this one, or take them.
  auto session = millrace::Session::connect(
      job, me, {{.name = "w", .dimension = weights.size(), .weights = millrace::Weights(weights, -0.05f)}});
  std::printf("begins at step %llu\n", static_cast<unsigned long long>(session->steps_applied(0)));
  for (uint64_t done = session->steps_applied(0); done < kSteps; done = session->steps_applied(0)) {
    gradient_of(me.worker, job.workers, weights, gradient);
    const uint64_t step = session->push(0, gradient);
    session->await(0, step);
    if (done % 10 == 0) {
      session->save(me.save_path);
      std::printf("saved at step %llu\n", static_cast<unsigned long long>(done));
      std::fflush(stdout);
    }
  }
  session->finish();
  std::remove(me.save_path.c_str());  // else the next run of this name would begin with it
  double sum = 0;
  for (const float weight : weights) sum += static_cast<double>(weight);
  std::printf("sum of the weights %.9g, missing workers %u\n", sum, unsigned{session->status().workers_missing});
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
