#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "kernels/base/result.h"
#include "millrace/millrace.h"
#include "protocol/layout.h"
#include "worker/core/actions.h"

namespace millrace::worker {

/// Puts the updates of parts together into updates of tensors, applies them to attached weights, keeps what nobody has awaited.
///
/// Threads  not safe by itself: the shell calls it under its lock, but for portions() and apply(), which
///          touch no state.
class UpdateShelf {
 public:
  explicit UpdateShelf(const protocol::JobSpec& spec, const protocol::JobLayout& layout);

  /// What one delivered part means for one tensor.
  struct Portion {
    size_t tensor = 0;
    uint64_t step = 0;  ///< the push whose answer it is, or comes before
    bool answers = true;
    UpdatePiece piece;
    std::shared_ptr<const void> owner;
  };
  /// Cuts a delivered part into its tensors' portions. A part within one tensor is not copied. Touches no state.
  std::vector<Portion> portions(DeliveredUpdate&& delivered) const;

  /// Weights that an update is to be added to.
  struct Target {
    std::span<float> weights;
    float scale = 0;
    ApplyWhen when = ApplyWhen::kOnAwait;
    uint64_t from_step = 0;  ///< updates before are not for these weights
  };
  /// REQUIRES: no step of the tensor is in flight: a step has one target, from its first portion to its last.
  void attach(size_t tensor, const Target& target);
  Target& target(size_t tensor) { return shelves_[tensor].target; }
  bool wanted_on_arrival(size_t tensor) const;

  /// weights[i] += scale * value / denominator.
  static void apply(const Target& target, const UpdatePiece& piece);

  /// Puts a portion where its step's others are. `kept`: its values are kept for await(); else they were applied already.
  enum class Keep : uint8_t { kValues = 1, kCountOnly = 2 };
  void put(Portion&& portion, Keep keep);

  /// Complete and in the attached weights: counts only were kept, and these no longer than until it was complete.
  bool applied_on_arrival(size_t tensor, uint64_t step) const;
  bool complete(size_t tensor, uint64_t step) const;
  bool handed_out(size_t tensor, uint64_t step) const;
  size_t kept(size_t tensor) const { return shelves_[tensor].steps.size(); }
  /// Steps below have arrived whole.
  uint64_t steps_complete(size_t tensor) const { return shelves_[tensor].steps_complete; }

  /// REQUIRES: complete(tensor, step).
  TensorUpdate take(size_t tensor, uint64_t step);
  /// The kept steps up to `step` that are complete and not applied, in order; they count as applied from now on.
  std::vector<TensorUpdate> take_unapplied(size_t tensor, uint64_t step);

 private:
  struct Step {
    uint64_t step = 0;
    size_t portions = 0;  ///< of the answer; those of steps without this worker come on top
    TensorUpdate update;
    std::vector<std::shared_ptr<const void>> owners;
  };
  struct Shelf {
    size_t portions_per_step = 0;
    Target target;
    std::deque<Step> steps;  ///< ascending
    uint64_t steps_complete = 0;
  };
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
