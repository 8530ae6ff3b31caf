#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/random.h"
#include "kernels/base/result.h"
#include "kernels/codec/automatic/codec_choice.h"
#include "kernels/stream/stream.h"
#include "protocol/job/job_spec.h"
#include "protocol/job/layout.h"
#include "protocol/messages/messages.h"
#include "worker/core/actions.h"
#include "worker/core/rejoin/saved_state.h"
#include "worker/core/residual/bucket.h"
#include "worker/switch/switch_path.h"

namespace millrace::worker {

/// What one worker needs to know before it says Hello.
struct CoreConfig {
  uint32_t worker = 0;
  uint64_t nonce = 0;      ///< drawn by the process; tells a reconnect from a second process
  protocol::JobSpec spec;  ///< REQUIRES: protocol::validate(spec)
  std::vector<std::string> shard_addresses;
  uint64_t random_seed = 0;  ///< of jitter only; what is sent follows spec.seed
  std::string software = "millrace";
  TimeNs resend_after = 2 * kNsPerS;  ///< doubles, with jitter
  TimeNs resend_after_max = 30 * kNsPerS;
  int64_t history_saves_min = 1;  ///< bytes of a contribution: else it goes out as it is; tests have less than 0
  TimeNs reconnect_after = 100 * kNsPerMs;   ///< doubles, with jitter
  TimeNs reconnect_after_max = 5 * kNsPerS;  ///< ... to this, or a quarter of dead_after where that is less
  TimeNs connect_timeout = 10 * kNsPerS;     ///< until every shard has welcomed us for the first time
  TimeNs shard_silence = 30 * kNsPerS;       ///< afterwards: a shard not heard for so long ends the session
  LedgerMode ledger = LedgerMode::kSums;
  /// The shell can give the weights of a part, and take others in their place: this worker may join a job that has
  /// started, and comes back when it was removed. Without, its removal ends the session, unless the job has a store:
  /// then it comes back with its place in the log alone.
  bool has_weights = false;
  /// With weights: several steps may come in one update, which is added with one scale (asynchronous mode).
  bool takes_merged = false;
  // Of jobs with codec auto: what coding takes, and the link to the shards; 0: measured by what is sent and comes back.
  SpeedSource codec_speeds = fallback_speeds;
  double link_bits_per_s = 0;
  bool returns = false;  ///< this process takes the place of an earlier one of this worker, as soon as that is silent
  /// What an earlier process saved; weights are the shell's. REQUIRES: fits(*saved, worker, spec).
  std::optional<SavedState> saved;
  SwitchAccess switch_access;  ///< path switch. REQUIRES: its sink and resolve() are set
};

enum class Phase : uint8_t {
  kJoining = 1,    ///< not every shard has welcomed us
  kWaiting = 2,    ///< joined; other workers are missing
  kReturning = 3,  ///< the job runs, and this worker is not (or no longer) a synced member: nothing is sent or applied
  kRunning = 4,
  kFinishing = 5,  ///< finish() asked for; the last updates are awaited
  kFinished = 6,   ///< Goodbye(finished) is out
  kEnded = 7,      ///< with error()
};

/// A contribution that is sent or about to be, and not answered yet (O[t] of R1).
struct OutstandingView {
  uint32_t part = 0;
  uint64_t step = 0;  ///< mode asynchronous, here and below: its number
  uint64_t life = 0;
  uint64_t begin = 0;  ///< of the part in the bucket
  StreamView sent;     ///< as every receiver decodes it; indices local to the part
  ByteSpan payload;    ///< its container, whatever form that travels in
};

/// A contribution of which all that is known is that it was counted: what the update did not carry of it cannot come
/// back.
struct UnreturnableView {
  uint32_t part = 0;
  uint64_t step = 0;
  uint64_t life = 0;
};

/// Counts since the start.
struct CoreCounters {
  uint64_t payload_bytes_up = 0;  ///< containers, resends included
  uint64_t payload_bytes_down = 0;
  int64_t history_bytes_saved = 0;  ///< of payloads up, by what both sides have seen
  uint64_t history_shortened = 0;   ///< payloads up
  uint64_t history_refused = 0;     ///< payloads up that the shard could not read so: sent again as they are
  uint64_t raw_bytes_up = 0;
  uint64_t raw_bytes_down = 0;
  uint64_t dense_bytes = 0;
  uint64_t rounds = 0;
  uint64_t resends = 0;
  uint64_t reconnects = 0;
  uint64_t duplicates = 0;
  uint64_t dropped_stale = 0;
  uint64_t dropped_early = 0;  ///< of a step after the next one (a resend brings it again)
  uint64_t dropped_malformed = 0;
  uint64_t dropped_unexpected = 0;  ///< messages that do not belong here, by kind or identity
  uint64_t not_counted = 0;
  // What was lost by name: sums of |value|.
  double unreturnable = 0;       ///< of contributions whose fate is known only as "counted"
  double lost_save_too_old = 0;  ///< a loaded residual: something of this worker was counted since it was saved (R9b)
  double lost_off_log = 0;       ///< what belonged to a state that is not on the log (R9a)
  double lost_cut = 0;           ///< the same, where a cut went back to somebody else's state (R10)
  uint64_t entries_void = 0;     ///< of contributions that were counted in steps that are not on the log any more
  uint64_t returns = 0;          ///< how often this process was removed and came back
  uint64_t resyncs = 0;          ///< those of them that it asked for itself, because an update was forgotten (R6)
  TimeNs time_in_communication = 0;
};

/// The law as the audit found it last, summed over all parts: entered = held + in_flight + carried + lost. Of this
/// worker, its earlier processes in the job included.
struct AuditSums {
  bool audits = false;  ///< the job asks for it
  double entered = 0;   ///< what was pushed, after weights, clipping and momentum, and what it began with
  double held = 0;      ///< the residual
  double in_flight = 0;
  double carried = 0;  ///< by updates, as the job's log says
  double lost = 0;     ///< by name: codec errors dropped, what is unreturnable or off the log, what dead processes held
  double rounded_off = 0;  ///< of `lost`: what f32 additions rounded off, in this process
  double imbalance = 0;    ///< sum of |what does not balance| over parts: 0, or there is a bug
  uint64_t checks = 0;     ///< of parts
};

/// One worker of one job as a state machine: (state, message, now) -> actions. R1, R4, R5, R7b, R9, the handshake,
/// liveness, reconnection and resending. No socket, clock or thread: the shell and the simulator drive it.
///
/// How to drive: start(); then on_connected/on_disconnected/on_message as they happen, on_tick() no later than
/// next_deadline(), work() until it returns false (one call is one selection or one coded part, so that a shell can
/// hand bytes to the socket in between), end_turn() after each batch of messages (gathered acks go out).
///
/// Threads  one at a time, but for slots: those may be filled on other threads meanwhile.
class SessionCore {
 public:
  explicit SessionCore(CoreConfig config);
  ~SessionCore();

  // --- life
  // ---------------------------------------------------------------------------------------------------------------
  void start(TimeNs now, Actions& actions);
  /// Somebody took the connection of the present attempt; whether it speaks the protocol is not known yet. For
  /// sentences only.
  void on_accepted(uint32_t shard);
  void on_connected(uint32_t shard, TimeNs now, Actions& actions);
  void on_disconnected(uint32_t shard, const std::string& reason, TimeNs now, Actions& actions);
  void on_message(uint32_t shard, protocol::Message&& message, TimeNs now, Actions& actions);
  /// Bytes came that are no message: counted; a version mismatch ends the session.
  void on_bad_message(uint32_t shard, const Error& error, TimeNs now, Actions& actions);
  /// Path switch: a datagram came, from whomever. What is sent goes into the sink, as by every other call.
  void on_packet(const protocol::ReceivedPacket& packet, TimeNs now, Actions& actions);
  void on_tick(TimeNs now, Actions& actions);
  void end_turn(TimeNs now, Actions& actions);
  /// Selects or codes one piece of what is waiting, the highest priority first. False: nothing is waiting.
  bool work(TimeNs now, Actions& actions);
  /// Whether work() would find something: a message may have opened the step that a push waits for.
  bool has_work(TimeNs now) const;
  TimeNs next_deadline() const;
  /// Does one piece of the bookkeeping of applied updates that nobody waits for (what comes back into the residual).
  /// False: all is done. For moments without messages; what the next step needs of it is done there at the latest.
  bool settle_one();
  bool settled() const;
  /// Whether a step was pushed whose update is not applied.
  bool in_flight() const;

  /// Goodbye(finished) as soon as everything pushed is applied and acknowledged.
  /// Errors  invalid_argument: fused tensors were not pushed equally often.
  Status finish(TimeNs now, Actions& actions);
  /// Goodbye with that reason to every shard, at once; the session is over.
  void leave(protocol::Goodbye::Reason reason, const std::string& sentence, TimeNs now, Actions& actions);
  /// Ends the session with an error of the shell's own (Goodbye(failed) goes out).
  void fail_session(Error error, TimeNs now, Actions& actions);

  Phase phase() const;
  /// Changes whenever steps_allowed(), phase() or error() may have.
  uint64_t changes() const;
  /// Why the session ended; set exactly in Phase::kEnded.
  const std::optional<Error>& error() const;
  /// One sentence about what the job waits for: shards not reached, workers not joined, workers the shards wait for.
  std::string waiting_for() const;
  /// Where the shard is to be reached: as configured, or, when it was started again elsewhere, as the view says.
  const std::string& shard_address(uint32_t shard) const;

  /// Answers an Actions::give_weights with the weights of the part after part_steps_applied(part) steps; they are
  /// copied, and go out in runs of protocol::kSnapshotRunBytes. Nothing is sent where the epoch is another by now.
  /// REQUIRES: weights.size() is the part's dimension.
  void give_weights(const GiveWeights& asked, std::span<const float> weights, TimeNs now, Actions& actions);

  // --- pushing
  // ------------------------------------------------------------------------------------------------------------
  /// Steps that may be pushed so far: step s of the tensor may be filled iff s < steps_allowed(tensor) (the step before
  /// is coded, and s <= applied + staleness). Never falls.
  uint64_t steps_allowed(uint32_t tensor) const;
  /// Where the tensor's gradient of its next step is filled in, on any thread, then handed over by commit_push().
  /// Stable address.
  /// REQUIRES: steps_pushed(tensor) < steps_allowed(tensor) while it is filled.
  PushSlot& slot(uint32_t tensor);
  /// The slot was filled: the step's number. With the last tensor of a bucket its coding is queued for work().
  /// Errors  invalid_argument: the slot is not filled, or was committed while fused neighbours were not.
  Result<uint64_t> commit_push(uint32_t tensor, TimeNs now);
  /// Fill and commit in one. unavailable: the step is not allowed yet. What ended the session.
  Result<uint64_t> push_dense(uint32_t tensor, std::span<const float> gradient, float weight, TimeNs now);
  Result<uint64_t> push_sparse(uint32_t tensor, IndexSpan indices, std::span<const float> values, float weight,
                               TimeNs now);

  /// Hands out what is kept back of the tensor and forgets it: from now on it is the caller's, as if it had never
  /// entered.
  /// Errors  invalid_argument: a step of the tensor's bucket is pushed and not applied yet. What ended the session.
  Result<Stream> take_residual(uint32_t tensor);

  // --- inspection
  // ---------------------------------------------------------------------------------------------------------
  const protocol::JobSpec& spec() const;
  const protocol::JobLayout& layout() const;
  const protocol::JobView& view() const;
  uint64_t life() const;
  /// What goes to a shard beside the rounds is headed with it. Empty: the shard has not welcomed us on this connection.
  std::optional<protocol::Header> header_to(uint32_t shard) const;
  uint64_t steps_pushed(uint32_t tensor) const;
  uint64_t steps_applied(uint32_t bucket) const;  ///< least n over its parts
  uint64_t part_steps_applied(uint32_t part) const;
  uint64_t part_decided_in(uint32_t part) const;  ///< epoch in which the last of them was decided
  /// Steps that were delivered: with apply_after_acks the others, up to part_steps_applied(), are held.
  uint64_t part_steps_handed(uint32_t part) const;
  /// What will be delivered of the part once enough members have it, in order. Weights that are given, or saved, are
  /// those after all of this (give_weights(), saved_state()).
  std::vector<DeliveredUpdate> held(uint32_t part) const;
  /// Every shard has said that this worker is a synced member, and what they decided without it has come: the next
  /// steps wait for this worker, if the job's mode waits for anybody.
  bool is_waited_for() const;
  const CoreCounters& counters() const;
  BucketCounters bucket_counters(uint32_t bucket) const;
  /// How the bucket is coded on its way up; nullptr: the job names its codecs, or nothing was sent yet.
  const CodecChoice* codec_choice(uint32_t bucket) const;

  /// Path switch: how it goes; empty: another path.
  std::optional<SwitchPathStatus> switch_status() const;

  /// R: residual with everything filled and not sent yet, and everything returned. Copies.
  /// REQUIRES: no slot of the bucket is being filled.
  Stream residual(uint32_t bucket) const;
  /// O: in order of part and step.
  std::vector<OutstandingView> outstanding(uint32_t bucket) const;
  /// [dimension] of the bucket: what entered; what was applied here (the sums delivered); what was lost by name
  /// (quantization errors dropped or rounded off, and what is unreturnable), a copy.
  /// REQUIRES: LedgerMode::kPerIndex.
  std::span<const double> entered(uint32_t bucket) const;
  std::span<const double> applied(uint32_t bucket) const;
  std::vector<double> ledger(uint32_t bucket) const;
  /// The ledger has all of these, also what the update carried of them: only who knows the log can tell one from the
  /// other.
  const std::vector<UnreturnableView>& unreturnable() const;
  /// [dimension]: what of a loaded state was taken over; entered() does not include it. A loaded residual is in none of
  /// the books until its part is settled: then it is here and in residual(), or it is dropped, and only the counters
  /// know it.
  /// REQUIRES: LedgerMode::kPerIndex.
  std::span<const double> opening_residual(uint32_t bucket) const;

  /// Goes over all parts now. Selections go over some, in turn. REQUIRES: no slot is being filled.
  AuditSums audit(Actions& actions);
  /// What was found last.
  AuditSums audit_sums() const;

  /// What save() writes. REQUIRES: no slot is being filled.
  SavedState saved_state() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::worker
