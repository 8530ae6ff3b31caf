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
#include "worker/session/device_weights.h"

namespace millrace::worker {

/// Holds an arrival for one run of a tensor: the tensor's share of one part. A part's runs of steps arrive in order.
struct Arrival {
  uint64_t push = 0;  ///< the push whose answer it is, or comes before
  uint64_t step = 0;  ///< of the job
  UpdatePiece piece;
  std::shared_ptr<const void> owner;  ///< of what `piece` points to
  bool replaces = false;              ///< the piece is dense: the run's weights after `steps` steps
  uint64_t steps = 0;
};

/// Holds one tensor's array of weights, which is the caller's, and the arrivals that are not in it yet. A reader of the
/// present weights gets a copy: the array with the missing arrivals added. The copy uses the same order and the same
/// arithmetic, so that it equals the array's later content to the bit.
///
/// Errors   non_finite: a schedule returned NaN or infinity, or a scale over the denominator is neither finite; the
///          sentence names the step. That update is not added, nor is any later one: every further call returns the
///          same error.
/// Threads  any. The session's thread adds arrivals and copies; callers' threads bring the array up to date. One lock
///          guards the array's reads and writes. Another guards the list of arrivals and is held briefly. So a thread
///          that only adds an arrival never waits for arithmetic.
class AttachedWeights {
 public:
  struct Run {
    uint64_t begin = 0;
    uint64_t steps = 0;
  };
  /// Says how far the weights are: by run of the tensor, ascending, the steps in them after all that has arrived.
  void set_positions(std::vector<Run> runs);

  struct Target {
    std::span<float> weights;
    float scale = 0;
    Schedule schedule = {};  ///< in place of `scale`, where it is set
    ApplyWhen when = ApplyWhen::kOnAwait;
    /// In place of `weights`: an array in a device's memory, with kOnAwait and without a schedule.
    std::shared_ptr<DeviceWeights> on_device = {};

    bool is_there() const { return !weights.empty() || on_device; }
  };
  /// Sets the weights that arrivals go into from now on. Answers of earlier pushes are not added to them. Updates that
  /// arrive before the next push are. REQUIRES: no push is in flight.
  void attach(Target target, uint64_t pushes_made);
  void set_scale(float scale);
  /// Says whether there is an array.
  bool attached();

  /// Notes an arrival, or adds it at once. It adds with kOnArrival, if no earlier arrival waits and the arrival's push
  /// was made. Between a push and its answer the caller does not touch the array. A replacement always waits.
  Status arrive(Arrival&& arrival, uint64_t pushes_made);

  // Calls of the array's owner. After a replacement, and with kOnArrival, each of them applies all arrivals.
  /// Brings the array up to the answers of all pushes up to that one.
  Status catch_up(uint64_t push) { return bring_up(push); }
  Status catch_up_whole() { return bring_up(UINT64_MAX); }
  /// Applies the arrivals that waited only because the session does not write between a push and its answer.
  Status take_over() { return bring_up(std::nullopt); }
  /// Returns the array in a device's memory; null: there is none, or take_over() or catch_up() would add nothing to it.
  /// Those calls hold a lock that the session's thread takes, too. So their caller waits for the array's stream before.
  std::shared_ptr<DeviceWeights> due_on_device(std::optional<uint64_t> push);
  /// Returns the array in a device's memory; null: there is none.
  std::shared_ptr<DeviceWeights> on_device();
  /// Says whether the array was replaced since the last call.
  bool take_replaced();

  /// Copies the weights of the run that begins there, with all arrivals, and with those of `coming` that are for it.
  /// REQUIRES: out has the run's size, and an array is there.
  Status copy_run(uint64_t begin, std::span<float> out, std::span<const Arrival> coming = {});
  /// Returns the number of steps in the array: the least over its runs. Without an array: of steps that have arrived.
  uint64_t steps();

 private:
  Status apply(const Arrival& arrival, std::span<float> run) const;
  Status apply_on_device(const Arrival& arrival) const;
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
