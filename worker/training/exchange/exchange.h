#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "kernels/base/clock.h"
#include "kernels/base/result.h"
#include "kernels/base/retained.h"
#include "kernels/stream/shared_stream.h"
#include "millrace/millrace.h"
#include "monitoring/trace/span_recorder.h"
#include "worker/peer/group/peer_group.h"
#include "worker/training/exchange/training_options.h"

namespace millrace::training {

/// Holds the result of a step, over all ranks.
struct StepSum {
  SharedStream sum;        ///< the same bits on all ranks
  double denominator = 1;  ///< contributions in it: the mean of the ranks' gradients is the sum over this
  uint64_t step = 0;       ///< of the whole job, also after a resumption: that of the spans
};

/// Counts the entries and bytes of an exchange since it began, beside those that went through the group
/// (PeerGroup::traffic()).
struct ExchangeCounts {
  uint64_t entries = 0;      ///< of this rank, in sums that have ended
  uint64_t sum_entries = 0;  ///< of these sums
  double residual_norm = 0;  ///< L2 norm of the residual
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  std::optional<Stats> session = {};  ///< path server: the session's own
};

/// Sums an optimizer's gradients over the ranks: the only difference between a job over peers and one over servers.
///
/// The exchange clips the gradient, applies momentum, selects, codes, and keeps the residual. Peers do it as a session
/// does, with the same code (worker/core/residual/momentum.h, local_clip.h). So an optimizer does not learn which of
/// its entries were sent; the masks of momentum, which need it, are in here.
///
/// The law, over all ranks: entered gradients (after clipping and momentum) = sums + residuals + contributions in
/// flight. A codec's dropped error is the only exception.
///
/// Steps are started in order, and end in order.
///
/// Errors   the group's where it has ended, on all ranks; an error of this rank's ends the group. non_finite: NaN or
///          infinity in a gradient.
/// Threads  one.
class Exchange {
 public:
  Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  virtual ~Exchange() = default;

  /// Takes in this rank's gradient of the step, and starts to sum the entries that it sends. step: from 0. At most
  /// staleness_of(options) steps are in flight before.
  virtual Status start(uint64_t step, Stream&& gradient) = 0;
  /// Waits for the oldest step in flight. REQUIRES: in_flight() > 0.
  virtual Result<StepSum> finish_oldest() = 0;
  virtual size_t in_flight() const = 0;

  /// Cost  may be a pass over the residual: not every step.
  virtual ExchangeCounts counts() const = 0;
  /// Hands out the residual, and clears it. REQUIRES: nothing is in flight.
  virtual Result<Stream> take_residual() = 0;
  /// Ends the exchange: all ranks have made their last step. REQUIRES: nothing is in flight.
  virtual Status end() = 0;
};

/// Sums among peers, whose caller may also wait for a limited time, and save and restore all that the exchange keeps.
class TimedExchange : public Exchange {
 public:
  /// Does start() with a dense gradient [dimension] that stays the caller's; no other thread writes it meanwhile.
  /// Returns  the bytes of it that were copied: all of it with clipping, and where the contribution is the gradient
  ///          itself; else none.
  /// Errors   as start(), but for NaN or infinity in the gradient: nothing of it is taken then, and the group
  ///          continues.
  virtual Result<uint64_t> start_from(uint64_t step, std::span<const float> gradient) = 0;
  /// Waits until finish_oldest() would not wait, at most this long; true: it would not. REQUIRES: in_flight() > 0.
  virtual bool wait_for_oldest(TimeNs at_most) = 0;
  /// Hands out the velocity, and sets it to zero; no entries without momentum. REQUIRES: nothing is in flight.
  virtual Stream take_velocity() = 0;
  /// Adds entries to the residual, as if they had entered without momentum, and to the velocity. Both sparse.
  /// REQUIRES: nothing is in flight.
  ///
  /// Errors   invalid_argument: a velocity without momentum. Nothing is restored then.
  virtual Status restore(const StreamView& residual, const StreamView& velocity) = 0;
  /// Returns the state of this rank beside residual and velocity: the number of steps, thresholds and boundaries of
  /// selections and allreduces, exponents of a grid. REQUIRES: nothing is in flight.
  virtual Retained retained() const = 0;
  /// Continues with the state of an earlier exchange. All ranks restore theirs of one step. Returns false, and changes
  /// nothing, where that exchange had another number of ranks or other settings. REQUIRES: nothing is in flight.
  ///
  /// Errors   invalid_argument: it is no such state. The exchange must not be used then.
  virtual Result<bool> restore_retained(std::span<const uint64_t> retained) = 0;
};

struct ExchangeSetup {
  peer::PeerGroup& group;  ///< outlives the exchange
  uint64_t dimension = 0;
  /// Path servers: told how long a step took from its push to its update, on the thread that trains. Empty: not.
  std::function<void(double seconds)> on_update = {};
  /// Takes the spans of each step, under the number of the tensor; outlives the exchange. nullptr: none.
  monitoring::SpanRecorder* spans = nullptr;
  uint32_t tensor = 0;

  monitoring::Span span_of(uint64_t step, monitoring::SpanName name) const {
    return {.step = step, .unit = tensor, .name = name, .unit_kind = monitoring::SpanUnit::kTensor};
  }
};

/// Makes the exchange of options.path. All ranks call it.
///
/// Errors   as check_exchange(). Servers: what Session::connect() says, as an Error of the same code.
Result<std::unique_ptr<Exchange>> make_exchange(const ExchangeSetup& setup, const OptimizerOptions& options);

/// Refuses options that their path cannot do, as far as this is known without data and servers.
///
/// Errors   invalid_argument: naming the option, and the path that does have it.
Status check_exchange(const OptimizerOptions& options);

// One line a path: what its file gives.
Result<std::unique_ptr<TimedExchange>> make_peer_exchange(const ExchangeSetup& setup, const OptimizerOptions& options);
Status check_peer_exchange(const OptimizerOptions& options);
Result<std::unique_ptr<Exchange>> make_server_exchange(const ExchangeSetup& setup, const OptimizerOptions& options);
Status check_server_exchange(const OptimizerOptions& options);

}  // namespace millrace::training
