// Lets the shards hold the weights: a worker pulls the entries that its batch touches.
//
//   millrace_example_store WORKER WORKERS SHARD...        SHARD: tcp://HOST:PORT, one for each shard, in order

#include <millrace/millrace.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace {

// README: begin
void train(millrace::JobConfig job, millrace::WorkerConfig me) {
  job.name = "store";
  job.select = millrace::Selection::all();
  // Or Momentum, Adagrad, Adam: the shards change the weights with every update.
  job.store = millrace::Store{millrace::optimizer::Sgd{.rate = 0.5}};
  auto session = millrace::Session::connect(job, me, {{.name = "w", .dimension = 1'000'000}});
  const std::vector<uint32_t> batch = {10 * me.worker, 10 * me.worker + 1, 999'999};
  std::vector<float> weights(batch.size());
  std::vector<float> gradient(batch.size());
  for (int i = 0; i < 40; ++i) {
    session->pull_indices(0, batch, weights);
    for (size_t j = 0; j < batch.size(); ++j)
      gradient[j] = (weights[j] - 1.0f) / static_cast<float>(j < 2 ? 1 : job.workers);
    session->await(0, session->push_sparse(0, batch, gradient));
  }
  session->pull_indices(0, batch, weights);
  session->finish();
  std::printf("weights %.6f %.6f %.6f\n", static_cast<double>(weights[0]), static_cast<double>(weights[1]),
              static_cast<double>(weights[2]));
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
