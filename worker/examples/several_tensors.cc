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

float target_of(size_t tensor) { return static_cast<float>(tensor + 1); }

double largest_error(const std::vector<float>& weights, float target) {
  float largest = 0;
  for (const float weight : weights) largest = std::fmax(largest, std::fabs(weight - target));
  return static_cast<double>(largest);
}

// README: begin
void train(millrace::JobConfig job, millrace::WorkerConfig me) {
  job.name = "several_tensors";
  job.select = millrace::Selection::top_k(0.1);
  std::array weights = {std::vector<float>(50'000), std::vector<float>(20'000), std::vector<float>(10)};
  std::vector<millrace::TensorOptions> tensors;
  for (std::vector<float>& array : weights)
    tensors.push_back({.dimension = array.size(), .weights = millrace::Weights(array, -0.05f)});
  tensors[0].name = "layer 1";  // with the job's options
  tensors[1].name = "layer 2";
  tensors[1].priority = 1;                                                                // a larger one is sent first
  tensors[1].codec_up = millrace::Codec(millrace::index::gap, millrace::value::qsgd(8));  // values in 8 bits
  tensors[2].name = "bias";
  tensors[2].select = millrace::Selection::all();  // a small tensor goes whole
  auto session = millrace::Session::connect(job, me, tensors);
  for (int i = 0; i < 400; ++i) {
    std::array<uint64_t, 3> steps = {};
    // Push all tensors before one is awaited: the last layer's gradient is ready first.
    for (size_t tensor = 3; tensor-- > 0;)
      steps[tensor] = session->push(tensor, gradient_of(me.worker, job.workers, weights[tensor], target_of(tensor)));
    for (size_t tensor = 0; tensor < 3; ++tensor) session->await(tensor, steps[tensor]);
  }
  session->finish();
  for (size_t tensor = 0; tensor < 3; ++tensor)
    std::printf("%s: largest error %.6f\n", session->stats().tensors[tensor].name.c_str(),
                largest_error(weights[tensor], target_of(tensor)));
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
