// Pushes gradients of a few entries of a large tensor, and reads the updates: no array has the tensor's dimension.
//
//   millrace_example_push_sparse WORKER WORKERS SHARD...        SHARD: tcp://HOST:PORT, one for each shard, in order

#include <millrace/millrace.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <vector>

namespace {

// README: begin
void train(millrace::JobConfig job, millrace::WorkerConfig me) {
  job.name = "push_sparse";
  job.select = millrace::Selection::all();  // everything that is pushed is sent
  std::map<uint64_t, float> model;
  auto session = millrace::Session::connect(job, me, {{.name = "embedding", .dimension = uint64_t{1} << 30}});
  for (int i = 0; i < 10; ++i) {
    // An entry of this worker's own, and one that all workers push. Indices may repeat and have any order.
    const std::vector<uint32_t> indices = {me.worker, 1'000'000'000};
    const std::vector<float> values = {0.5f, 1.0f};
    const uint64_t step = session->push_sparse(0, indices, values);
    const millrace::TensorUpdate update = session->await(0, step);
    for (const millrace::UpdatePiece& piece : update.pieces) {
      for (size_t j = 0; j < piece.values.size(); ++j)
        model[piece.begin + (piece.dense ? j : piece.indices[j])] += piece.values[j];
    }
  }
  session->finish();
  for (const auto& [index, value] : model) {
    if (value != 0) std::printf("%llu: %g\n", static_cast<unsigned long long>(index), static_cast<double>(value));
  }
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
