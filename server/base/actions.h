#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/log_line.h"
#include "protocol/job/switch_layout.h"
#include "protocol/messages/messages.h"
#include "protocol/messages/peer_id.h"
#include "server/base/audit_event.h"

/// The actions that the shard core asks of its driver (the process millrace-server, the simulator). The core itself has
/// no socket, clock or thread.
namespace millrace::server {

/// A stage of a task that follows the one that its kind names.
enum class TaskStage : uint8_t { kThreshold, kEncode };

/// Learns when a running task enters its next stage. For the timeline: no result depends on it.
class StageWatch {
 public:
  virtual void enter(TaskStage stage) = 0;

 protected:
  ~StageWatch() = default;
};

/// The step that a task works on, for the timeline.
struct TaskRound {
  uint64_t step = 0;
  uint32_t part = 0;                    ///< or the bucket
  std::optional<uint32_t> worker = {};  ///< whose contribution; empty: of all of them
};

/// Heavy numeric work as a value: a pure function of immutable inputs that it shares (a StoreTask: of arrays that it
/// owns meanwhile). The driver of the core calls run() once, on any thread, inline or much later. It hands the task
/// back by ShardCore::on_task_done(). Tasks may finish in any order; a task that is never handed back stalls its round
/// only.
class Task {
 public:
  enum class Kind : uint8_t { kDecode, kReduce, kQuota, kEncode, kMerge, kStore };

  virtual ~Task() = default;
  virtual Kind kind() const = 0;
  virtual uint64_t job() const = 0;
  /// Runs the task. May throw std::bad_alloc: the result is then the error that the task was made with.
  virtual void run() = 0;
  /// Returns about how long one core takes: shows whether another thread pays off.
  virtual uint64_t cost_ns() const = 0;
  virtual TaskRound round() const { return {}; }
  /// Sets the object that run() tells its stages to, or none. It outlives run().
  void watch(StageWatch* watch) { watch_ = watch; }

 protected:
  StageWatch* stage_watch() const { return watch_; }

 private:
  StageWatch* watch_ = nullptr;
};

struct SendToPeer {
  protocol::PeerId to;
  protocol::Message message;
};

/// Sends over the connection that this shard opened to another (see ConnectShard). Without a connection the message may
/// be dropped.
struct SendToShard {
  uint32_t shard = 0;
  protocol::Message message;
};

/// Opens (or moves) the connection to another shard. Comes before the first SendToShard to it.
struct ConnectShard {
  uint32_t shard = 0;
  std::string address;
};

/// A request of a job's store to the disk (server/store/DESIGN.md). Carried out in order; each is answered by
/// ShardCore::on_store_written() or on_store_loaded(), at any time.
struct StoreRequest {
  enum class What : uint8_t {
    kLoad,    ///< the save of that name, whole
    kBegin,   ///< a new save: its file begins with these bytes; one that was not ended is given up
    kAppend,  ///< continues with these bytes
    kEnd,     ///< these are the last: it takes the place of the save before
    kGiveUp,  ///< removes a save that was begun and not ended, if there is one; without bytes
  };
  What what = What::kLoad;
  uint64_t job = 0;
  std::string name;  ///< the job's
  SharedBytes bytes;
};

/// Begins or ends that shard 0 replaces a job's switch by its own aggregator of datagrams.
struct DatagramChange {
  uint64_t job = 0;                            ///< of the table
  std::optional<protocol::JobSpec> spec = {};  ///< empty: it ends
  protocol::SwitchLayout layout = {};
};

/// The counted or measured events. The label says which (a reason, a message's name); empty where there is one kind
/// only.
enum class Metric : uint8_t {
  kMessages,              ///< received, by body name
  kDropped,               ///< messages not answered, by reason
  kRefused,               ///< messages answered with Refuse or Abort, by reason
  kWorkerHandshakes,      ///< Hellos, "accepted" or "refused"
  kShardHandshakes,       ///< ShardHellos, likewise
  kContributions,         ///< admitted
  kContributionBytes,     ///< payload bytes admitted
  kContributionEntries,   ///< decoded
  kContributionRawBytes,  ///< the same as plain pairs of index and value
  kDuplicates,            ///< contributions that were here before
  /// Contributions to decided steps, by answer: "crossed" (none: the update is under way), "update", "counted",
  /// "not_counted", "acknowledged".
  kLate,
  kServedAgain,        ///< retained updates sent because a worker reports them as missing
  kMergedUpdates,      ///< updates sent that have several steps in one
  kMergedSteps,        ///< steps in them
  kLeftOut,            ///< expected contributions that steps were decided without
  kRestarted,          ///< decisions begun again because the members changed
  kRounds,             ///< steps of parts decided
  kRoundSeconds,       ///< measured: from the first contribution of a step of a part to its decision
  kWaitSeconds,        ///< measured: from the first contribution to the last one
  kSumEntries,         ///< entries of sums that were made whole, before they were cut
  kFillIn,             ///< measured, of whole sums: entries / entries of its largest contribution
  kFusedThresholds,    ///< parts cut while they were summed, by result: "as_it_was", "trimmed", "summed_again"
  kUpdateEntries,      ///< entries of updates
  kUpdateBytes,        ///< payload bytes of updates, once a round
  kUpdateRawBytes,     ///< the same as plain pairs of index and value
  kPulls,              ///< weights pulled out of a store, by result: "answered", "refused"
  kStoreSaves,         ///< of a job's store, by result: "written", "failed"
  kDigests,            ///< digests of members compared: "agree", "differ", "too_old" to be known here
  kExchangeFallbacks,  ///< parts cut by the last threshold because a shard was silent
  kLateHistograms,     ///< histograms that came when they could not be used any more
  kCodecErrorDown,     ///< sum over entries of |sum - decoded| of updates
  kAuditImbalance,     ///< of audited jobs: what updates carry and their contributors did not send; 0 but for a bug
  kMembersJoined,
  kMembersFinished,
  kMembersRemoved,  ///< by reason: "silent", "failed", "behind", "wrong"
  kRecoveries,      ///< by outcome: "begun", "activated", "cut"
  kSettled,         ///< parts of joining members, by weights: "own", "snapshot", "none"
  kSnapshotBytes,   ///< of weights, handed on to joining members
  kPathChanges,     ///< of jobs of path switch, by the new decider: "server", "switch"
  kJobsOpened,
  kJobsEnded,    ///< by reason: "finished", "too_few_workers", "superseded", "abandoned", "shutdown", ...
  kTableErrors,  ///< by error code
  kKeysRefused,  ///< connections whose key is not allowed
};

struct MetricEvent {
  Metric metric = Metric::kMessages;
  std::string job;         ///< empty: none
  std::string_view label;  ///< static storage
  double value = 1;        ///< added to a counter; observed by a measure
};

/// Filled by the core, emptied by its driver. Sends to one peer go out in this order.
struct Actions {
  std::vector<SendToPeer> to_peers;
  std::vector<ConnectShard> connects;  ///< before to_shards
  std::vector<SendToShard> to_shards;
  std::vector<std::shared_ptr<Task>> tasks;
  std::vector<StoreRequest> store_requests;
  std::vector<DatagramChange> datagrams;
  std::vector<LogLine> log;
  std::vector<MetricEvent> metrics;
  std::vector<AuditEvent> audit;  ///< as they happened; the driver adds those of files and keys, and its own kRefuse

  void clear() {
    to_peers.clear();
    connects.clear();
    to_shards.clear();
    tasks.clear();
    store_requests.clear();
    datagrams.clear();
    log.clear();
    metrics.clear();
    audit.clear();
  }
};

}  // namespace millrace::server
