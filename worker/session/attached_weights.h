#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/result.h"
#include "millrace/millrace.h"

namespace millrace::worker {

/// What arrived for one run of a tensor: the tensor's share of one part. A part's runs of steps arrive in order.
struct Arrival {
  uint64_t push = 0;  ///< the push whose answer it is, or comes before
  uint64_t step = 0;  ///< of the job
  UpdatePiece piece;
  std::shared_ptr<const void> owner;  ///< of what `piece` points to
  bool replaces = false;              ///< the piece is dense: the run's weights after `steps` steps
  uint64_t steps = 0;
};

/// One tensor's array of weights, which is its caller's, and what has arrived for it and is not in it yet. Who wants
/// the weights as they are after all that has arrived gets a copy: the array, and what it lacks added in the same order
/// by the same arithmetic, so that it is the array's later content to the bit.
///
/// Errors   non_finite: a schedule returned NaN or infinity, or a scale over the denominator is neither finite; the
///          sentence names the step. That update is not added, nor is any later one: every further call returns the
///          same error.
/// Threads  any. The session's thread brings arrivals and copies; callers' threads bring the array up. The array is
///          written and copied under one lock, the list of arrivals is under another, held for moments: nobody who only
///          brings an arrival for later waits for arithmetic.
class AttachedWeights {
 public:
  struct Run {
    uint64_t begin = 0;
    uint64_t steps = 0;
  };
  /// Says how far the weights are: by run of the tensor, ascending, the steps in them after all that has arrived.
  void stand_at(std::vector<Run> runs);

  struct Target {
    std::span<float> weights;
    float scale = 0;
    Schedule schedule = {};  ///< in place of `scale`, where it is set
    ApplyWhen when = ApplyWhen::kOnAwait;
  };
  /// The weights that arrivals go into from now on. What came with pushes that were made is not for them; what came
  /// before the next one is. REQUIRES: no push is in flight.
  void attach(Target target, uint64_t pushes_made);
  void set_scale(float scale);
  /// Says whether there is an array.
  bool attached();

  /// Takes note of an arrival, or adds it at once: with kOnArrival, where nothing before it is waiting and its push was
  /// made (between a push and its answer the caller keeps off the array). What replaces always waits.
  Status arrive(Arrival&& arrival, uint64_t pushes_made);

  // By the caller of the array. Where it was replaced, and with kOnArrival, all that has arrived goes in whichever is
  // called.
  /// Brings the array up to the answers of all pushes up to that one.
  Status catch_up(uint64_t push) { return bring_up(push); }
  Status catch_up_whole() { return bring_up(UINT64_MAX); }
  /// What waited only because nothing is written behind the caller's back.
  Status take_over() { return bring_up(std::nullopt); }
  /// Whether the array was replaced since this was asked last.
  bool take_replaced();

  /// The weights of the run that begins there after all that has arrived, and those of `coming` that are for it.
  /// REQUIRES: out has the run's size, and an array is there.
  Status copy_run(uint64_t begin, std::span<float> out, std::span<const Arrival> coming = {});
  /// Steps in the array: the least over its runs. Without an array: that have arrived.
  uint64_t steps();

 private:
  Status apply(const Arrival& arrival, std::span<float> run) const;
  Status apply_to_array(const Arrival& arrival);
  Status bring_up(std::optional<uint64_t> push);
  Run& run_at(uint64_t begin);

  std::mutex array_;       ///< before behind_ where both are held
  Target target_;          ///< written under both
  std::vector<Run> runs_;  ///< as they are in the array
  bool replaced_ = false;
  Status usable_;  ///< an error: an update could not be added, so the array lacks it and stays as it is

  std::mutex behind_;
  std::deque<Arrival> waiting_;  ///< in order of arrival; nothing is older than a replacement of its run
  bool replacement_waits_ = false;
};

}  // namespace millrace::worker
