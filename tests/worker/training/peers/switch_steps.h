#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "kernels/base/random.h"
#include "kernels/stream/stream.h"
#include "protocol/datagram/packet_sink.h"
#include "switch_agg/aggregator/aggregator.h"
#include "worker/switch/switch_client.h"

namespace millrace::training::testing {

struct SwitchStepsOptions {
  uint32_t workers = 2;
  uint32_t dimension = 0;
  uint32_t window_indices = 64;
  int exponent_initial = -20;
  uint64_t reselect_k = 0;
  uint64_t seed = 1;
};

/// Workers' clients and one aggregator in memory, packets delivered in a shuffled order.
class SwitchSteps {
 public:
  explicit SwitchSteps(const SwitchStepsOptions& options);
  ~SwitchSteps();

  /// A worker's results of a step.
  struct Result {
    Stream update;    ///< sums, sparse
    Stream returned;  ///< of its offered entries
  };
  /// One step of all workers; empty where it does not end.
  std::vector<Result> step(const std::vector<Stream>& offers);

 private:
  struct Packet;
  class Node;
  struct Worker;
  void deliver_one();

  SwitchStepsOptions options_;
  RandomSequence random_;
  TimeNs now_ = 1;
  uint32_t step_ = 0;
  std::deque<Packet> under_way_;
  switch_agg::Aggregator aggregator_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace millrace::training::testing
