// Trains several tensors in one job, each with options of its own.
//
//   millrace_example_several_tensors WORKER WORKERS SHARD...    SHARD: tcp://HOST:PORT, one for each shard, in order

#include <millrace/millrace.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace {

// Each worker knows the gradient of its own share of the entries: (weights - target) there, 0 elsewhere.
std::vector<float> gradient_of(uint32_t worker, uint32_t workers, const std::vector<float>& weights, float target) {
  std::vector<float> gradient(weights.size(), 0.0f);
  for (size_t at = worker; at < weights.size(); at += workers) gradient[at] = weights[at] - target;
  return gradient;
}

float largest_error(const std::vector<float>& weights, float target) {
  float largest = 0;
  for (const float weight : weights) largest = std::fmax(largest, std::fabs(weight - target));
  return largest;
}

// README: begin
void train(millrace::JobConfig job, millrace::WorkerConfig me) {
  job.name = "several_tensors";
  job.select = millrace::Selection::top_k(0.1);
  std::array<std::vector<float>, 3> weights = {std::vector<float>(50'000), std::vector<float>(20'000),
                                               std::vector<float>(10)};
  constexpr float kRate = -0.05f;
  auto session = millrace::Session::connect(
      job, me,
      {{.name = "layer 1", .dimension = weights[0].size(), .weights = millrace::Weights(weights[0], kRate)},
       // A larger priority is sent first; this one's values travel in 8 bits.
       {.name = "layer 2",
        .dimension = weights[1].size(),
        .priority = 1,
        .codec_up = millrace::Codec(millrace::index::gap, millrace::value::qsgd(8)),
        .weights = millrace::Weights(weights[1], kRate)},
       // A small tensor goes whole.
       {.name = "bias",
        .dimension = weights[2].size(),
        .select = millrace::Selection::all(),
        .weights = millrace::Weights(weights[2], kRate)}});
  for (int i = 0; i < 400; ++i) {
    std::array<uint64_t, 3> steps = {};
    // Push all tensors before one is awaited: the last layer's gradient is ready first.
    for (size_t tensor = 3; tensor-- > 0;)
      steps[tensor] =
          session->push(tensor, gradient_of(me.worker, job.workers, weights[tensor], static_cast<float>(tensor + 1)));
    for (size_t tensor = 0; tensor < 3; ++tensor) session->await(tensor, steps[tensor]);
  }
  session->finish();
  for (size_t tensor = 0; tensor < 3; ++tensor) {
    const float error = largest_error(weights[tensor], static_cast<float>(tensor + 1));
    std::printf("%s: largest error %.6f\n", session->stats().tensors[tensor].name.c_str(), static_cast<double>(error));
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
