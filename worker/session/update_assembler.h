#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/base/result.h"
#include "millrace/millrace.h"
#include "protocol/job/layout.h"
#include "worker/core/actions.h"
#include "worker/session/attached_weights.h"

namespace millrace::worker {

/// Assembles the updates of parts into updates of tensors, and retains those that no caller has awaited.
///
/// Threads  not safe by itself: the shell calls it under its lock, but for portions(), which touches no state.
class UpdateShelf {
 public:
  explicit UpdateShelf(const protocol::JobSpec& spec, const protocol::JobLayout& layout);

  /// Holds the share of one tensor in one delivered part.
  struct Portion {
    size_t tensor = 0;
    bool answers = true;
    /// False: the step arrived before. True with `replaces`: for the weights alone.
    bool arrives = true;
    Arrival arrival;
  };
  /// Cuts a delivered part into its tensors' portions. A part within one tensor is not copied. Touches no state.
  std::vector<Portion> portions(DeliveredUpdate&& delivered) const;
  /// Describes a part that a tensor has a share in; ascending.
  struct Run {
    uint32_t part = 0;
    uint64_t begin = 0;  ///< in the tensor
    uint64_t dimension = 0;
  };
  const std::vector<Run>& runs(size_t tensor) const { return shelves_[tensor].runs; }

  /// Directs the updates of the tensor into weights, from the next step on.
  /// REQUIRES: no step of the tensor is in flight: a step has one target, from its first portion to its last.
  void attach(size_t tensor, ApplyWhen when);
  bool attached(size_t tensor) const { return shelves_[tensor].when.has_value(); }

  /// Puts a portion where its step's others are. Where weights take updates on arrival they have it already, and only
  /// its count is kept, no longer than until the step is complete. REQUIRES: it does not replace.
  void put(Portion&& portion);

  /// Says that the step is complete, and of weights that take updates on arrival.
  bool applied_on_arrival(size_t tensor, uint64_t step) const;
  bool complete(size_t tensor, uint64_t step) const;
  bool handed_out(size_t tensor, uint64_t step) const;
  size_t kept(size_t tensor) const { return shelves_[tensor].steps.size(); }
  /// Returns the number of complete steps: all steps below it are complete.
  uint64_t steps_complete(size_t tensor) const { return shelves_[tensor].steps_complete; }

  /// REQUIRES: complete(tensor, step), and the weights have it.
  TensorUpdate take(size_t tensor, uint64_t step);

 private:
  struct Step {
    uint64_t step = 0;
    size_t portions = 0;  ///< of the answer; those of steps without this worker come on top
    TensorUpdate update;
    std::vector<std::shared_ptr<const void>> owners;
  };
  struct Shelf {
    std::vector<Run> runs;
    std::optional<ApplyWhen> when;
    uint64_t from_step = 0;  ///< updates before are not for the weights
    std::deque<Step> steps;  ///< ascending
    uint64_t steps_complete = 0;
  };
  bool on_arrival(size_t tensor) const { return shelves_[tensor].when == ApplyWhen::kOnArrival; }
  Step* find(size_t tensor, uint64_t step);
  const Step* find(size_t tensor, uint64_t step) const;

  struct Member {
    size_t tensor = 0;
    uint64_t begin = 0;  ///< in the bucket
    uint64_t end = 0;
  };
  std::vector<std::vector<Member>> members_;  ///< by bucket
  std::vector<Shelf> shelves_;
};

}  // namespace millrace::worker
