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
#include "worker/core/residual/idle_tensor.h"
#include "worker/switch/switch_path.h"

namespace millrace::worker {

/// Holds the configuration of one worker, complete before its Hello.
struct CoreConfig {
  uint32_t worker = 0;
  uint64_t nonce = 0;      ///< drawn by the process; distinguishes a reconnect from a second process
  protocol::JobSpec spec;  ///< REQUIRES: protocol::validate(spec)
  std::vector<std::string> shard_addresses;
  uint64_t random_seed = 0;  ///< of jitter only; contributions follow spec.seed
  std::string software = "millrace";
  TimeNs resend_after = 2 * kNsPerS;  ///< doubles, with jitter
  TimeNs resend_after_max = 30 * kNsPerS;
  /// Bytes of a contribution. A smaller saving sends the contribution uncoded. Tests use less than 0.
  int64_t history_saves_min = 1;
  TimeNs reconnect_after = 100 * kNsPerMs;   ///< doubles, with jitter
  TimeNs reconnect_after_max = 5 * kNsPerS;  ///< ... to this, or a quarter of dead_after where that is less
  TimeNs connect_timeout = 10 * kNsPerS;     ///< until every shard has welcomed us for the first time.
  /// Afterwards: the session ends after this time without bytes from a shard.
  TimeNs shard_silence = 30 * kNsPerS;
  /// The shell can give the weights of a part, and replace them with others. So this worker may join a job that has
  /// started, and it rejoins after an eviction. Without weights, an eviction ends the session, unless the job has a
  /// store. With a store it rejoins with its log position alone.
  bool has_weights = false;
  /// With weights: one update may hold several steps, and is added with one scale (asynchronous mode).
  bool takes_merged = false;
  // Of jobs with codec auto: the speeds of coding, and the link to the shards. 0: measured by contributions and
  // updates.
  SpeedSource codec_speeds = fallback_speeds;
  double link_bits_per_s = 0;
  /// This process takes over from an earlier one of this worker, as soon as the earlier one is silent.
  bool returns = false;
  /// State that an earlier process saved; weights are the shell's. REQUIRES: fits(*saved, worker, spec).
  std::optional<SavedState> saved;
  SwitchAccess switch_access;          ///< path switch. REQUIRES: its sink and resolve() are set
  LedgerObserver* observer = nullptr;  ///< tests; outlives the core
};

enum class Phase : uint8_t {
  kJoining = 1,    ///< not every shard has welcomed us
  kWaiting = 2,    ///< joined; other workers are missing
  kRejoining = 3,  ///< the job runs, and this worker is not (or no longer) a synced member: nothing is sent or applied
  kRunning = 4,
  kFinishing = 5,  ///< finish() asked for; the last updates are awaited
  kFinished = 6,   ///< Goodbye(finished) is out
  kEnded = 7,      ///< with error()
};

/// Describes a contribution that is sent or about to be, and not answered yet (O[t] of R1).
struct OutstandingView {
  uint32_t part = 0;
  uint64_t step = 0;  ///< mode asynchronous, here and below: its number
  uint64_t incarnation = 0;
  uint64_t begin = 0;  ///< of the part in the bucket
  StreamView sent;     ///< as every receiver decodes it; indices local to the part
  ByteSpan payload;    ///< its container, independent of its form on the wire
};

/// Counts since the start.
struct CoreCounters {
  uint64_t payload_bytes_up = 0;  ///< containers, retransmissions included
  uint64_t payload_bytes_down = 0;
  int64_t history_bytes_saved = 0;  ///< of payloads up, by coding against the history
  uint64_t history_shortened = 0;   ///< payloads up.
  /// Payloads up that the shard could not read in the shortened form: sent again uncoded.
  uint64_t history_refused = 0;
  uint64_t raw_bytes_up = 0;
  uint64_t raw_bytes_down = 0;
  uint64_t dense_bytes = 0;
  uint64_t rounds = 0;
  uint64_t resends = 0;
  uint64_t reconnects = 0;
  uint64_t duplicates = 0;
  uint64_t dropped_stale = 0;
  /// Of a step after the next one; a retransmission brings it again.
  uint64_t dropped_early = 0;
  uint64_t dropped_malformed = 0;
  uint64_t dropped_unexpected = 0;  ///< messages that do not belong here, by kind or identity
  uint64_t not_counted = 0;
  // Lost values: sums of |value|.
  /// Of contributions whose outcome is known only as "counted".
  double unreturnable = 0;
  /// A loaded residual: a step after the save counted a contribution of this worker (R9b).
  double lost_save_too_old = 0;
  double lost_off_log = 0;    ///< values of a state that is not on the log (R9a)
  double lost_cut = 0;        ///< the same, where a cut went to another member's state (R10)
  uint64_t entries_void = 0;  ///< of contributions that were counted in steps that are not on the log any more
  uint64_t returns = 0;       ///< number of rejoins of this process.
  /// Rejoins that this worker asked for itself, because an update was no longer retained (R6).
  uint64_t resyncs = 0;
  TimeNs time_in_communication = 0;
};

/// Holds the conservation law's terms as the last audit found them, summed over all parts: entered = held + in_flight +
/// carried + lost. Of this worker, its earlier processes in the job included.
struct AuditSums {
  bool audits = false;  ///< the job asks for it.
  /// Pushed values after weights, clipping and momentum, and the values of the initial state.
  double entered = 0;
  double in_residual = 0;  ///< the residual
  double in_flight = 0;
  double carried = 0;  ///< by updates, according to the job's log.
  /// Dropped codec errors, unreturnable values, values off the log, and values that dead processes held.
  double lost = 0;
  double rounded_off = 0;  ///< of `lost`: rounding errors of f32 additions, in this process
  double imbalance = 0;    ///< sum of the absolute audit mismatch over parts; not 0 means a bug
  uint64_t checks = 0;     ///< number of checked parts
};

enum class ConnectionSign : uint8_t {
  kAccepted = 1,  ///< a process accepted the present attempt; it may not speak the protocol. For error texts only
  kReceived = 2,  ///< bytes arrived, perhaps a part of a message
  kSent = 3,      ///< bytes left, and more are queued behind them
};

/// Runs one worker of one job as a state machine: (state, message, now) -> actions. R1, R4, R5, R7b, R9, the handshake,
/// liveness, reconnection and retransmission. No socket, clock or thread: the shell and the simulator drive it.
///
/// The driver calls start() once, and on_connected/on_disconnected/on_message for each event. It calls on_tick() no
/// later than next_deadline(). It calls work() until it returns false. One call is one selection or one coded part, so
/// that a shell can send bytes in between. It calls end_pass() after each batch of messages, which sends the gathered
/// acks.
///
/// Threads  one at a time, but for slots: other threads may fill those meanwhile.
class SessionCore {
 public:
  explicit SessionCore(CoreConfig config);
  ~SessionCore();

  // --- incarnation
  // ---------------------------------------------------------------------------------------------------------------
  void start(TimeNs now, Actions& actions);
  /// Records a sign of a connection between messages. kReceived and kSent show that it is alive. kSent and many
  /// received bytes delay the time-outs of contributions, for at most a minute after the answer to a later heartbeat.
  /// Received bytes (ArrivingBytes) delay the repetition of this worker's state, too: the answer may be among them.
  void on_sign(uint32_t shard, ConnectionSign sign, TimeNs now, uint64_t bytes = 0);
  void on_connected(uint32_t shard, TimeNs now, Actions& actions);
  /// trouble  unavailable; unauthenticated: the shard, or this worker, did not accept the other's key.
  void on_disconnected(uint32_t shard, const Error& trouble, TimeNs now, Actions& actions);
  void on_message(uint32_t shard, protocol::Message&& message, TimeNs now, Actions& actions);
  /// Counts received bytes that are no message; a version mismatch ends the session.
  void on_bad_message(uint32_t shard, const Error& error, TimeNs now, Actions& actions);
  /// Takes a datagram of any sender (path switch). Packets to send go into the sink, as in every other call.
  void on_packet(const protocol::ReceivedPacket& packet, TimeNs now, Actions& actions);
  void on_tick(TimeNs now, Actions& actions);
  void end_pass(TimeNs now, Actions& actions);
  /// Selects or codes one piece of the waiting work, the highest priority first. Returns false where none is waiting.
  bool work(TimeNs now, Actions& actions);
  /// Says whether work() would find something: a message may have opened the step that a push waits for.
  bool has_work(TimeNs now) const;
  TimeNs next_deadline() const;
  /// Does one piece of the postponed bookkeeping of applied updates: entries that return to the residual. No step is
  /// blocked on it. Returns false when all is done. For moments without messages. The next step does the part that it
  /// needs itself.
  bool resolve_one_deferred();
  bool all_resolved() const;
  /// Says whether a step was pushed whose update is not applied.
  bool in_flight() const;

  /// Sends Goodbye(finished) as soon as everything pushed is applied and acknowledged.
  /// Errors  invalid_argument: fused tensors were not pushed equally often.
  Status finish(TimeNs now, Actions& actions);
  /// Sends Goodbye with that reason to every shard, at once; the session is over.
  void leave(protocol::Goodbye::Reason reason, const std::string& sentence, TimeNs now, Actions& actions);
  /// Ends the session with an error of the shell's own (Goodbye(failed) goes out).
  void fail_session(Error error, TimeNs now, Actions& actions);

  Phase phase() const;
  /// Changes whenever steps_allowed(), phase() or error() may have changed.
  uint64_t changes() const;
  /// Returns why the session ended; set exactly in Phase::kEnded.
  const std::optional<Error>& error() const;
  /// Returns one sentence about the process that the job is blocked on: shards not reached, workers not joined, workers
  /// whose contributions the shards lack.
  std::string waiting_for() const;
  /// Returns the shard's address: as configured, or of its last restart, as the membership has it.
  const std::string& shard_address(uint32_t shard) const;

  /// Answers an Actions::give_weights with the weights of the part after part_steps_applied(part) steps. Copies them,
  /// and sends them in runs of protocol::kGivenRunBytes. Sends nothing where the epoch has changed by now.
  /// REQUIRES: weights.size() is the part's dimension.
  void give_weights(const GiveWeights& asked, std::span<const float> weights, TimeNs now, Actions& actions);

  // --- pushing
  // ------------------------------------------------------------------------------------------------------------
  /// Returns the steps that may be pushed so far: step s of the tensor may be filled iff s < steps_allowed(tensor).
  /// That is: the step before is coded, and s <= applied + staleness. Never falls.
  uint64_t steps_allowed(uint32_t tensor) const;
  /// Returns the slot for the tensor's gradient of its next step. Any thread may fill it; commit_push() then hands it
  /// over. Stable address.
  /// REQUIRES: steps_pushed(tensor) < steps_allowed(tensor) while it is filled.
  PushSlot& slot(uint32_t tensor);
  /// Takes the filled slot and returns the step's number. With the last tensor of a bucket its coding is queued for
  /// work().
  /// Errors  invalid_argument: the slot is not filled, or was committed while fused neighbours were not.
  Result<uint64_t> commit_push(uint32_t tensor, TimeNs now);
  /// Fills and commits in one. Errors  unavailable: the step is not allowed yet. The error that ended the session.
  Result<uint64_t> push_dense(uint32_t tensor, std::span<const float> gradient, float weight, TimeNs now);
  Result<uint64_t> push_sparse(uint32_t tensor, IndexSpan indices, std::span<const float> values, float weight,
                               TimeNs now);

  /// Returns the tensor, to take and restore its residual and velocity.
  /// Errors  invalid_argument: a step of the tensor's bucket is pushed and not applied yet. The error that ended the
  ///         session.
  Result<IdleTensor> idle_tensor(uint32_t tensor);

  // --- inspection
  // ---------------------------------------------------------------------------------------------------------
  const protocol::JobSpec& spec() const;
  const protocol::JobLayout& layout() const;
  const protocol::Membership& membership() const;
  uint64_t incarnation() const;
  /// Returns the link to a shard. Empty: the shard has not welcomed us on this connection.
  std::optional<ShardLink> link_to(uint32_t shard) const;
  uint64_t steps_pushed(uint32_t tensor) const;
  uint64_t steps_applied(uint32_t bucket) const;  ///< least n over its parts
  uint64_t part_steps_applied(uint32_t part) const;
  uint64_t part_decided_in(uint32_t part) const;  ///< epoch in which the last of them was decided.
  /// Returns the number of delivered steps: with apply_after_acks the others, up to part_steps_applied(), are held.
  uint64_t part_steps_handed(uint32_t part) const;
  /// Returns the part's updates that are delivered once enough members have them, in order. Weights that are given, or
  /// saved, include all of these (give_weights(), saved_state()).
  std::vector<DeliveredUpdate> awaiting_acks(uint32_t part) const;
  /// Says whether the next steps need this worker, if the job's mode needs any worker. Every shard has reported this
  /// worker as a synced member, and the updates decided without it have arrived.
  bool is_waited_for() const;
  const CoreCounters& counters() const;
  BucketCounters bucket_counters(uint32_t bucket) const;

  /// Returns the state of path switch; empty: another path.
  std::optional<SwitchPathStatus> switch_status() const;

  /// Returns R: the residual with everything filled and not sent yet, and everything returned. Copies.
  /// REQUIRES: no slot of the bucket is being filled.
  Stream residual(uint32_t bucket) const;
  /// Returns the L2 norm of R, without a copy of a dense R.
  double residual_norm(uint32_t bucket) const;
  /// Returns O, in order of part and step.
  std::vector<OutstandingView> outstanding(uint32_t bucket) const;
  /// Reports the losses of a bucket that postponed work will book (Bucket::report_postponed()).
  void report_postponed(uint32_t bucket, LedgerObserver& observer) const;

  /// Checks all parts now. Selections check some, in rotation. REQUIRES: no slot is being filled.
  AuditSums audit(Actions& actions);
  /// Returns the sums of the last check.
  AuditSums audit_sums() const;

  /// Returns the state that save() writes. REQUIRES: no slot is being filled.
  SavedState saved_state() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::worker
