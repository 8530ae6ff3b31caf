#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

/// Counters of a session, and its present state.
namespace millrace {
inline namespace v0 {

struct TensorStats {
  std::string name;
  uint64_t steps_pushed = 0;
  uint64_t steps_applied = 0;
  uint64_t entries_sent = 0;       ///< after selection and codec, all steps
  uint64_t entries_sent_last = 0;  ///< in the last step: the k that was achieved
  uint64_t entries_received = 0;
  uint64_t entries_returned = 0;  ///< sent, omitted by the update, and added to the residual again
  uint64_t false_positives = 0;   ///< entries that a lossy index codec added
  uint64_t non_finite_dropped = 0;
  uint64_t entries_discarded = 0;  ///< unbiased: of contributions that missed their step
  double discarded = 0;            ///< the sum of their values
  double residual_norm = 0;        ///< L2 norm of the present residual
  double dropped_error = 0;        ///< sum of errors dropped: of quantization (codec_error drop), of draws (unbiased)
  double dropped_magnitude = 0;    ///< the sum of their magnitudes.
  /// codec_up auto: the chosen codecs and the reason. Empty: the job names its codecs.
  std::string codec_choice = {};
};

/// Sums of a job with `audit`, over all tensors, including this worker's earlier processes in the job. entered =
/// residual + in_flight + carried + lost.
struct AuditStats {
  bool audits = false;   ///< the job asks for it; else all of these are 0
  double entered = 0;    ///< pushed values after weights, clipping and momentum, and values of a loaded state
  double residual = 0;   ///< in the residual now
  double in_flight = 0;  ///< contributed, and not answered
  double carried = 0;    ///< by updates, according to the job's log.
  /// Dropped codec errors, unreturnable values, values off the log, and values that dead processes had in their
  /// residual.
  double lost = 0;
  double rounded_off = 0;  ///< of `lost`: rounding errors of f32 additions
  double imbalance = 0;    ///< sum of the absolute audit mismatch over the parts; not 0 means a bug
  uint64_t checks = 0;     ///< number of checked parts
};

/// Counters of a job's datagrams on path switch.
struct SwitchStats {
  bool used = false;              ///< the job's path is a switch; else all of these are 0
  bool at_switch = false;         ///< the switch decides the steps at present, not a shard in its place
  uint64_t turns = 0;             ///< completed results of windows
  uint64_t resends = 0;           ///< retransmitted packets
  uint64_t timeouts = 0;          ///< turns whose result did not arrive in time
  uint64_t fallbacks = 0;         ///< changes of the job from the switch to a shard
  uint64_t came_back = 0;         ///< changes of the job from a shard to the switch
  uint64_t congestion_marks = 0;  ///< packets marked with network congestion (ECN).
  /// On this machine: packets that the system refused, or that were longer than a packet may be.
  uint64_t packets_lost = 0;
  /// Further counters by name: the reasons of dropped packets, and actions (worker/switch/DESIGN.md, "Counters").
  std::map<std::string, uint64_t> events = {};
};

/// Sums since connect(). Tensors of one bucket share its counts, which the first of them reports.
struct Stats {
  uint64_t bytes_up = 0;  ///< containers, envelopes and datagrams, retransmissions included
  uint64_t bytes_down = 0;
  /// Of these, containers: contributions as coded, retransmissions included; path switch: 0.
  uint64_t payload_bytes_up = 0;
  uint64_t payload_bytes_down = 0;
  uint64_t raw_bytes_up = 0;  ///< the entries sent, as plain (u32, f32) pairs
  uint64_t raw_bytes_down = 0;
  int64_t history_bytes_saved = 0;  ///< of the bytes sent, by option `history`
  uint64_t history_shortened = 0;   ///< contributions that were sent shorter by it
  uint64_t history_refused = 0;     ///< of these, ones that a shard could not read: sent again in full
  uint64_t dense_bytes = 0;         ///< the bytes that dense exchange would have moved, one way
  uint64_t rounds = 0;              ///< steps of buckets applied
  uint64_t resends = 0;
  uint64_t reconnects = 0;
  uint64_t duplicates = 0;             ///< contributions that a shard had already
  uint64_t updates_dropped_stale = 0;  ///< of an older epoch, or seen before
  uint64_t updates_dropped_malformed = 0;
  uint64_t messages_dropped_unexpected = 0;  ///< messages of shards with an impossible kind, shard or part
  uint64_t not_counted = 0;                  ///< contributions that were returned whole (unbiased: discarded)
  uint64_t returns = 0;                      ///< times that this session was evicted or left behind, and rejoined
  uint64_t returns_asked_for = 0;  ///< of these, rejoins that the worker asked for, since a needed update was no longer
                                   ///< retained
  // Lost values: sums of |value|.
  /// Of a saved residual that is older than a counted contribution of this worker.
  double lost_save_too_old = 0;
  double lost_off_log = 0;  ///< values of a state that the job's log does not contain
  double lost_cut = 0;      ///< values of a state that a cut removed, since no live member had it.
  /// Counted in a step whose update is not retained: the carried values are unknown.
  double unreturnable = 0;
  /// Entries of contributions that were counted in steps that the job's log no longer contains. All members that had
  /// their updates are gone, so these entries are lost as well. Only `audit` reports the sum of their values.
  uint64_t entries_void = 0;
  /// Time from the first byte of a step at the socket to its complete update, summed.
  double time_in_communication_s = 0;
  double time_blocked_s = 0;  ///< callers' time in push() and await(), also where it ran out
  // Of CUDA devices, where tensors have their residual or weights there:
  uint64_t bytes_to_devices = 0;     ///< over the bus
  uint64_t bytes_from_devices = 0;   ///< ... without the copies that this call itself makes
  uint64_t device_memory_bytes = 0;  ///< memory of the devices that the session holds at present
  AuditStats audit;
  SwitchStats by_switch;
  std::vector<TensorStats> tensors;
};

/// Holds a session's present state, for displays.
struct SessionStatus {
  /// The job runs, and this worker is not, or no longer, a synced member: pushes block.
  bool returning = false;
  uint64_t returns = 0;     ///< number of rejoins
  std::string waiting_for;  ///< one sentence: the shard or worker on which the job, or this worker, is blocked.
  /// Of a job with `audit`: the latest mismatch. Not 0 means a bug.
  double audit_imbalance = 0;
  /// Counts the workers that left the job without finishing and have not rejoined. Training continues without their
  /// rows. After the last update and before finish(), 0 means that all workers contributed to the job's result.
  uint32_t workers_missing = 0;
};

}  // namespace v0
}  // namespace millrace
