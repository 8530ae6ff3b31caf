#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// The status of a shard as values: a shard fills them in, /status carries them as JSON, `millrace status` reads them.
namespace millrace {

/// Holds a shard's status of one member. A report names the members, the processes that block a job, and the reason why
/// the job does not start or is stalled. `millrace status` combines the reports of several shards. Times are ages:
/// milliseconds before the request.
struct MemberStatus {
  uint32_t worker = 0;
  uint64_t incarnation = 0;
  bool joining = false;        ///< not synced: takes no part in steps yet
  bool connected = false;      ///< sent Hello to this shard
  bool finishing = false;      ///< pushes nothing more
  int64_t silent_ms = 0;       ///< since its last message here, or else since it was joined
  uint64_t steps_applied = 0;  ///< least step count that it acknowledged here
  uint64_t steps_behind = 0;   ///< behind the slowest part's decided steps

  /// Of its contributions that this shard took from this incarnation: as they came, and as plain f32 of every index.
  uint64_t contribution_bytes = 0;
  uint64_t dense_bytes = 0;
};

/// A member whose digest of a part is not the shard's: its weights are not those of the others.
struct DisagreementStatus {
  uint32_t worker = 0;
  uint32_t part = 0;
  uint64_t steps = 0;    ///< the number of steps after which it was found
  int64_t since_ms = 0;  ///< when
};

/// The weights of a job with a store.
struct StoreStatus {
  std::string optimizer;          ///< as in the job's options
  bool ready = false;             ///< it has its first weights
  uint64_t bytes = 0;             ///< of weights and the optimizer's state, here
  uint64_t steps_applied = 0;     ///< by the slowest part
  bool survives_restart = false;  ///< of this shard: by its last save, and the updates that are kept since
  uint64_t pulls_waiting = 0;
  uint64_t saves_written = 0;
  uint64_t saves_failed = 0;
  uint64_t saved_steps = 0;  ///< of the last save on this log: steps of the slowest part; 0: there is none
  std::string last_failure;  ///< of the saves since; empty: none
};

/// An audited job at this shard, by its summaries. Sums are signed, and so are losses.
struct AuditStatus {
  struct Worker {
    uint32_t worker = 0;
    double entered = 0;      ///< as in its last counted contributions, over all its incarnations
    double carried = 0;      ///< by updates
    double lost = 0;         ///< listed individually, and of ended incarnations, as reported
    double in_residual = 0;  ///< the remainder: in its residual, or on the way
    double imbalance = 0;    ///< sum of |imbalance of its own audit|, as last reported; must be 0
  };
  double entered = 0;
  double carried = 0;
  double lost = 0;
  double in_residual = 0;
  double updates_imbalance = 0;  ///< sum of |update - its carried values|, since this shard's start; must be 0
  std::vector<Worker> workers;   ///< that were ever counted, ascending
  double workers_imbalance() const {
    double sum = 0;
    for (const Worker& worker : workers) sum += worker.imbalance;
    return sum;
  }
  double imbalance() const { return updates_imbalance + workers_imbalance(); }
};

/// The codec of a part on its way down, of a job whose codec_down is auto, and the reason for it.
struct CodecStatus {
  uint32_t part = 0;
  std::string tensor;    ///< "tensor 'w'"
  std::string why;       ///< CodecChoice::text()
  uint64_t changes = 0;  ///< choices so far
};

/// The count of an event, with the event's name.
struct NamedCount {
  std::string name;
  uint64_t count = 0;
};

/// Shard 0's aggregator of datagrams, as far as this job goes.
struct AggregatorStatus {
  std::string phase;  ///< "closed", "collecting", "fetching", "open"
  uint32_t epoch = 0;
  uint32_t slots = 0;
  uint64_t memory_bytes = 0;
  uint64_t received = 0;  ///< datagrams
  uint64_t received_bytes = 0;
  uint32_t racks = 0;                   ///< that may add up in front of it
  uint64_t groups = 0;                  ///< whole sums of racks that were taken
  uint64_t closed = 0;                  ///< turns
  uint64_t resent = 0;                  ///< contributions that had come before
  uint64_t rejected = 0;                ///< datagrams that were not authentic: another key
  std::vector<NamedCount> events = {};  ///< all that is counted, where it is not 0 (switch_agg/DESIGN.md, "Counters")
  std::string waiting_for = {};         ///< "greetings", "kept_results", "contributions"; empty: nothing
  std::vector<uint32_t> waited_for = {};
  int64_t waiting_ms = 0;
  std::string waiting_because = {};  ///< the workers it is blocked on, or whose packets it rejects; empty: none
};

/// A job of path switch. Only shard 0 knows the members' reports and their reasons.
struct SwitchPathStatus {
  struct SwitchReport {
    uint32_t worker = 0;
    std::string says;  ///< of the switch, in this epoch: "silent", "answers"
  };
  /// Why a member's step under way is blocked, as that worker reports it.
  struct MemberWait {
    uint32_t worker = 0;
    std::string waits_for;  ///< "nothing" (it computes), "answer", "greetings", "contributions", "other_job"
    int64_t since_ms = 0;   ///< for how long it has reported this wait for this step
    uint64_t steps = 0;     ///< that are over at this worker
  };
  std::string decided_by;  ///< "switch", "server"
  std::string switch_address;
  std::string datagrams;  ///< of shard 0; empty: no aggregator replaces the switch
  std::string because;    ///< why it changed last, or cannot; empty: it never did
  int64_t since_ms = 0;   ///< of the last change
  uint64_t changes = 0;   ///< since this shard opened the job
  std::vector<SwitchReport> reports;
  uint32_t switch_job = 0;  ///< its number at the switch
  std::vector<MemberWait> waits;
  int64_t moved_ms = 0;  ///< since a step was over at some member
  std::optional<AggregatorStatus> aggregator;
};

/// A step of a part that is open.
struct WaitingStep {
  uint32_t bucket = 0;
  uint32_t part = 0;
  uint64_t step = 0;
  uint32_t here = 0;  ///< contributions that are in
};

struct JobStatus {
  std::string name;
  uint64_t job = 0;
  uint64_t epoch = 0;
  bool started = false;
  std::string mode;
  uint32_t workers = 0;  ///< expected
  uint32_t quorum = 0;
  uint32_t deadline_ms = 0;
  uint32_t heartbeat_ms = 0;
  uint32_t dead_after_ms = 0;
  bool recovering = false;  ///< after this shard's restart or a cut: it asks the members for their state
  uint64_t branch = 0;      ///< log branch of the activation that it serves under; 0: the initial one
  std::vector<MemberStatus> members;
  std::vector<DisagreementStatus> disagreements;
  uint32_t parts = 0;              ///< of this shard
  uint64_t steps_decided = 0;      ///< by the slowest part
  uint64_t steps_decided_max = 0;  ///< by the fastest part
  int64_t moved_ms = 0;            ///< since a step was decided here, or the job started
  // The processes that the oldest open step, or the start, is blocked on.
  std::string waiting_for;               ///< "join", "contributions", ... (server/status/wait.h); empty: nothing
  std::vector<uint32_t> waited_for;      ///< workers
  std::vector<uint32_t> waiting_shards;  ///< for their magnitudes
  int64_t waiting_ms = 0;                ///< since when
  std::string waiting_because;           ///< one sentence; empty when the job is not blocked
  std::optional<WaitingStep> waiting_step;
  int64_t decided_in_ms = 0;      ///< "deadline": time until then, if no contribution arrives
  uint64_t retained_updates = 0;  ///< that some member has not acknowledged
  uint64_t retained_bytes = 0;
  uint64_t memory_bytes = 0;
  uint64_t memory_bytes_max = 0;
  std::optional<StoreStatus> store;
  std::optional<AuditStatus> audit;
  std::optional<SwitchPathStatus> switch_path;  ///< of jobs of path switch
  std::vector<CodecStatus> codecs;              ///< by part; empty where the job names its codecs
};

struct PeerShardStatus {
  uint32_t shard = 0;
  std::string address;
  uint64_t incarnation = 0;
  bool heard = false;  ///< sent ShardHello to this shard in that incarnation
};

struct RefusalStatus {
  std::string of;  ///< "worker", "contribution", "shard", "by_shard", "unreadable"
  std::string job;
  uint32_t number = 0;  ///< of the worker or shard
  std::string software;
  std::string code;
  std::string sentence;
  uint64_t count = 0;
  int64_t first_ms = 0;
  int64_t last_ms = 0;
};

struct EndedJobStatus {
  std::string name;
  uint64_t job = 0;
  std::string how;       ///< "finished", "too_few_workers", ...
  std::string sentence;  ///< sent to its members; empty: none
  int64_t since_ms = 0;
};

/// The errors of the membership table, while it fails.
struct TableFailuresStatus {
  std::string code;
  uint64_t count = 0;
  int64_t first_ms = 0;
  int64_t last_ms = 0;
};

/// The keys of workers that a shard allows.
struct KeysStatus {
  uint64_t allowed = 0;
  uint64_t skipped_files = 0;  ///< of the folder: they have no key, and the log says why
  int64_t first_end_s = 0;     ///< Unix time at which the first key ends; 0: none has an end
};

struct StatusReport {
  uint32_t shard = 0;
  uint32_t shard_count = 0;
  uint64_t incarnation = 0;
  std::string address;  ///< for workers
  std::string software;
  std::string table;  ///< path; set by the process, which knows it
  bool shutting_down = false;
  bool leaving = false;  ///< a spare may take its number; it serves until then
  uint64_t memory_bytes = 0;
  uint64_t memory_bytes_max = 0;
  std::vector<JobStatus> jobs;
  std::vector<PeerShardStatus> peers;
  std::vector<RefusalStatus> refusals;  ///< the latest first
  std::vector<EndedJobStatus> ended;    ///< the latest first.
  /// Shard 0 in a switch's place: datagrams that belong to no job, or that its port dropped, by reason, where it is not
  /// 0.
  std::vector<NamedCount> datagrams_dropped = {};
  std::string table_error;  ///< the last one's sentence; empty: the table does not fail
  std::optional<TableFailuresStatus> table_failures;
  std::optional<KeysStatus> keys = {};  ///< with keys; set by the process
};

/// A job at a millrace-switch, from its /status: what `millrace status` reads.
struct SwitchJobStatus {
  std::string address;  ///< of the switch, for datagrams
  uint64_t job = 0;     ///< its number on the wire
  std::string role;
  std::string waiting_because;  ///< empty: it waits for nothing, and rejects nothing
};

}  // namespace millrace
