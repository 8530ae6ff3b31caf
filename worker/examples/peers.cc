// Sums gradients among ranks, without servers: all ranks end with the same weights.
//
//   millrace_example_peers RANKS                    the ranks are threads of this process (peers_threads.cc)
//   mpirun -n RANKS millrace_example_peers_mpi      the ranks are processes (peers_mpi.cc)

#include "worker/examples/peers.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <utility>
#include <vector>

namespace {

// Each rank knows the gradient of its own share of the entries: (weights - target) there, 0 elsewhere.
void add_gradient(const millrace::peers::Group& group, const std::vector<float>& weights, std::vector<float>& sum) {
  for (size_t at = group.rank(); at < weights.size(); at += group.size())
    sum[at] += weights[at] - std::sin(static_cast<float>(at));
}

void report(const millrace::peers::Group& group, const std::vector<float>& weights, const std::vector<float>& bias) {
  float error = 0;
  for (const std::vector<float>* one : {&weights, &bias}) {
    for (size_t at = 0; at < one->size(); ++at)
      error = std::fmax(error, std::fabs((*one)[at] - std::sin(static_cast<float>(at))));
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::printf("rank %u of %u: largest error %.6f, total %.17g, sent %llu bytes\n", group.rank(), group.size(),
              static_cast<double>(error), total, static_cast<unsigned long long>(group.traffic().bytes_sent));
}

}  // namespace

// README: begin
void train(millrace::peers::Communicator communicator) {
  namespace peers = millrace::peers;
  peers::Group group(std::move(communicator));
  std::vector<float> weights(1'000, 0.0f);
  std::vector<float> residual(weights.size(), 0.0f);  // the gradients that no sum has taken yet
  std::vector<float> bias(10, 0.0f);
  // Of the weights each rank sends the largest tenth. The bias goes whole, by the allreduce that is the fastest here.
  peers::Allreduce largest(group, {.dimension = weights.size(), .algorithm = peers::Algorithm::topk_a(0.1)});
  peers::Allreduce whole(group, {.dimension = bias.size()});
  for (int i = 0; i < 400; ++i) {
    std::vector<float> bias_gradient(bias.size(), 0.0f);
    add_gradient(group, weights, residual);
    add_gradient(group, bias, bias_gradient);
    peers::Pending weights_sum = largest.start(residual);
    peers::Pending bias_sum = whole.start(std::move(bias_gradient));
    // Work that does not need the new weights goes here: both sums run meanwhile.
    const peers::Reduced reduced = weights_sum.wait();
    for (const uint32_t index : reduced.contributed) residual[index] = 0;
    reduced.returned.add_to(residual);
    reduced.sum.add_to(weights, -0.05f);  // the same bits on every rank
    bias_sum.wait().sum.add_to(bias, -0.05f);
  }
  group.barrier();
  report(group, weights, bias);
}
// README: end
