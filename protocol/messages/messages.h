#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "protocol/job/job_spec.h"

/// The messages of workers and shards as values. protocol/wire/messages.md, messages.capnp and frame.h describe their
/// bytes, and the effect of a repeated or late message. R9c and its like are rules of protocol/ROUNDS.md.
namespace millrace::protocol {

/// The newest version of the messages that this build speaks. Every change of messages.capnp, or of the bytes that a
/// message is written as, raises it by 1. A test fails until that is done (tests/support/format_versions.txt).
inline constexpr uint32_t kProtocolVersion = 4;
/// The oldest version of the messages that this build speaks. If builds of the version before cannot take part after a
/// change, it becomes kProtocolVersion. Both rules, and those of the other formats: protocol/wire/versions.md.
inline constexpr uint32_t kProtocolVersionMin = 2;

/// Optional abilities, a bit each, negotiated by intersection.
using Capabilities = uint64_t;
/// Of a worker: it takes several steps in one update (Update::merged).
inline constexpr Capabilities kTakesMerged = 1;

enum class MemberState : uint8_t { kSynced = 1, kJoining = 2 };

struct Member {
  uint32_t worker = 0;
  uint64_t incarnation = 0;  ///< incarnation; grows with every return
  uint64_t nonce = 0;        ///< drawn by the process: tells a reconnecting process from a second one; 0 to others
  MemberState state = MemberState::kSynced;
  bool operator==(const Member&) const = default;
};

struct ShardEntry {
  std::string address;         ///< "tcp://host:port"
  uint64_t incarnation = 0;    ///< grows with every start of that shard
  std::string datagrams = {};  ///< "host:port" of its aggregator of datagrams; empty: it has none
  bool operator==(const ShardEntry&) const = default;
};

/// Records that a shard has begun to serve a log that continues another one. The activation has the number of the new
/// log branch, and in `parent` that of the branch before (R8e, R10c). Log branch 0 is the job's beginning.
struct Activation {
  uint32_t shard = 0;
  uint64_t branch = 0;
  uint64_t parent = 0;
  bool operator==(const Activation&) const = default;
};

/// A job's row in the membership table, as every process sees it. Every change is one compare-and-swap on the epoch.
struct Membership {
  uint64_t job = 0;
  uint64_t epoch = 0;
  bool started = false;  ///< all expected workers have joined once; set with the last join
  bool finished = false;
  std::vector<Member> members;          ///< by worker, ascending
  std::vector<ShardEntry> shards;       ///< by shard number
  uint64_t branches = 0;                ///< numbered so far, for all shards together
  std::vector<Activation> activations;  ///< by log branch, then shard: a tree per shard; a cut has one for every shard
  uint64_t cut = 0;         ///< the epoch that the last cut (R10) began; 0: none. Shards with an older state drop it
  uint32_t cut_worker = 0;  ///< whose state it went back to
  uint32_t left = 0;        ///< workers that have finished and left: fewer may remain than apply_after_acks.
  /// Of a job of path switch: the process that decides its steps in this epoch. kServer: shard 0, by datagrams, until
  /// the switch answers.
  Path path = Path::kServer;
  bool operator==(const Membership&) const = default;
};

/// Identifies sender, receiver and period; in every message. Zero where not known yet (Hello).
struct Header {
  uint64_t job = 0;
  uint64_t epoch = 0;
  uint32_t worker = 0;             ///< the worker's side of the conversation; unused between shards
  uint64_t incarnation = 0;        ///< the worker's incarnation
  uint32_t shard = 0;              ///< the shard's side; between shards: the sender
  uint64_t shard_incarnation = 0;  ///< of that shard, as the sender knows it
  bool operator==(const Header&) const = default;
};

/// worker -> shard: first message on every connection, and again after a reconnect (same nonce: same incarnation).
struct Hello {
  uint32_t version_min = kProtocolVersionMin;
  uint32_t version_max = kProtocolVersion;
  Capabilities capabilities = 0;
  std::string software;  ///< software_name()
  uint64_t nonce = 0;
  JobSpec spec;
  uint32_t shard_count = 0;  ///< the worker's idea of the shard map
  uint64_t layout_hash = 0;
  ByteBuffer auth;           ///< room for authentication; empty in version 1
  bool returns = false;      ///< this process takes the place of an earlier one of this worker, if that is silent
  bool has_weights = false;  ///< can give and take snapshots (R9); where the job has a store a worker need not
  bool operator==(const Hello&) const = default;
};

/// shard -> worker: admitted. A repeated Hello is answered with the same.
struct Welcome {
  uint32_t version = kProtocolVersion;
  Capabilities capabilities = 0;
  std::string software;
  Membership membership;
  uint32_t heartbeat_ms = 0;
  uint32_t dead_after_ms = 0;
  uint64_t message_bytes_max = 0;
  bool operator==(const Welcome&) const = default;
};

/// shard -> worker: refused, with the reason, and whether trying again can help. About one contribution when part/step
/// are set.
struct Refuse {
  ErrorCode code = ErrorCode::kInternal;
  std::string sentence;
  bool retry = false;
  bool about_contribution = false;
  uint32_t part = 0;
  uint64_t step = 0;
  bool operator==(const Refuse&) const = default;
};

/// shard -> worker, on every epoch change (R7, R7a), before anything else of that epoch on this connection.
struct MembershipChange {
  Membership membership;
  /// To a member that is synced from this epoch on: steps decided of each of the shard's parts, by number. From these
  /// steps on, the shard waits for its contributions. To others: empty.
  std::vector<uint64_t> decided = {};
  bool operator==(const MembershipChange&) const = default;
};

/// worker -> shard (R1). Payload: one container. The bytes of (part, step, worker, incarnation) never change; a
/// retransmission
/// repeats them. Mode asynchronous: `step` is the contribution's number, from 0 on in each incarnation and part; so it
/// is in Refuse and Duplicate.
struct Contribution {
  uint32_t part = 0;
  uint64_t step = 0;
  uint64_t payload_hash = 0;  ///< container_identity() of the payload
  double weight = 1;
  // Audit, of the part, as of the selection; sums over all incarnations of the worker:
  double entered = 0;    ///< values that entered its accumulator, and its initial residual
  double lost = 0;       ///< values of those that it lost: listed individually, and of ended incarnations
  double imbalance = 0;  ///< imbalance of its audit; must be 0
  bool again = false;    ///< sent before: its answer, or the step's update, may be lost
  bool operator==(const Contribution&) const = default;
};

/// shard -> worker: the contribution was admitted before, and is not counted again (R2a).
struct Duplicate {
  uint32_t part = 0;
  uint64_t step = 0;
  bool operator==(const Duplicate&) const = default;
};

struct ContributorId {
  uint32_t worker = 0;
  uint64_t incarnation = 0;
  uint64_t sequence = 0;  ///< mode asynchronous: the contribution's number within the incarnation; else 0
  bool operator==(const ContributorId&) const = default;
};

/// The counts of one worker's contributions to a part, a function of the part's log: rides in every update, never
/// forgotten.
struct SummaryEntry {
  uint32_t worker = 0;
  uint64_t incarnation = 0;  ///< of the last counted contribution
  uint64_t last_step = 0;    ///< last counted step of any incarnation
  /// Bit i: step last_step - i was counted, under whichever incarnation (the last staleness + 1 steps); mode
  /// asynchronous: 1.
  uint64_t counted_mask = 0;
  // Audit, over all incarnations:
  double entered = 0;  ///< as in its last counted contribution
  double carried = 0;  ///< by the updates so far
  double lost = 0;     ///< as in its last counted contribution
  /// (incarnation, last step counted under it), both ascending: incarnations before `incarnation` in the mask's reach.
  /// Mode asynchronous: (incarnation, number counted under it), the last kEarlierIncarnationsMax lives.
  std::vector<std::pair<uint64_t, uint64_t>> earlier_incarnations = {};
  /// Mode asynchronous: of `incarnation` the contributions numbered below this were counted, and no others.
  uint64_t sequence = 0;
  bool operator==(const SummaryEntry&) const = default;
};

struct Summary {
  std::vector<SummaryEntry> workers;
  std::vector<std::pair<uint64_t, uint64_t>> epochs;  ///< (epoch, first step decided in it)
  double threshold = 0;                               ///< state of the next decision
  uint64_t log_digest = 0;                            ///< after the steps that this is a summary of (log_digest.h)
  bool operator==(const Summary&) const = default;
};

/// Mode asynchronous: one of the steps whose sums an update merges.
struct MergedStep {
  ContributorId contributor;
  double weight = 0;
  uint64_t identity = 0;  ///< container_identity() of the payload of this step's own update
  bool operator==(const MergedStep&) const = default;
};

/// shard -> worker (R3, R4). Payload: one container holding the sum over the contributors (never divided).
struct Update {
  uint32_t part = 0;
  uint64_t step = 0;        ///< of merged ones the last
  uint64_t decided_in = 0;  ///< epoch of deciding; re-serving does not change it
  std::vector<ContributorId> contributors;
  double weight_sum = 0;  ///< of the contributors
  bool whole_sum = true;  ///< false: re-selected; entries not carried go back to the contributors' residuals
  uint64_t stable = 0;    ///< every member has acknowledged the steps below
  uint64_t branch = 0;    ///< of the activation of the shard that sends it
  Summary summary;        ///< as of step + 1.
  /// Mode asynchronous, to a worker that takes it: the payload is the sum of these steps, in their order; `step` is the
  /// last. All have one denominator, `contributors` is empty. At least 2; none: the update is of one step.
  std::vector<MergedStep> merged = {};

  uint64_t first_step() const { return step - (merged.empty() ? 0 : merged.size() - 1); }
  bool operator==(const Update&) const = default;
};

/// shard -> worker: the update of this step is forgotten; the outcome of the worker's contribution (R2b, R6b).
struct StepDecided {
  uint32_t part = 0;
  uint64_t step = 0;
  bool counted = false;
  bool operator==(const StepDecided&) const = default;
};

/// worker -> shard (R5): steps below n of the part are taken (applied, or held). Also rides on heartbeats.
/// shard -> worker, of jobs with apply_after_acks: enough members have acknowledged the steps below n.
struct Ack {
  struct Entry {
    uint32_t part = 0;
    uint64_t n = 0;
    bool again = false;  ///< worker -> shard: the update of step n was decided and is not here
    bool operator==(const Entry&) const = default;
  };
  std::vector<Entry> entries;
  bool operator==(const Ack&) const = default;
};

/// worker -> shard, every heartbeat_ms, and shard -> worker in answer: liveness, and why a job is stalled.
struct Heartbeat {
  /// worker -> shard, in jobs of path switch: the state of the switch as the worker sees it.
  enum class Switch : uint8_t {
    kNoReport = 0,  ///< nothing to tell, or not asked
    kSilent = 1,    ///< or refuses the job: the path should be kServer
    kAnswers = 2,   ///< has answered probes for SwitchSpec::return_after: the path may be kSwitch again
  };
  /// worker -> shard 0, in jobs of path switch: the reason why the worker is blocked. Shards see no step of such a job.
  enum class SwitchWait : uint8_t {
    kNotReported = 0,
    kNothing = 1,        ///< no step is under way: its program computes
    kAnswer = 2,         ///< the decider answers nothing that this worker sends
    kGreetings = 3,      ///< the decider knows it, and others have not greeted in this epoch
    kContributions = 4,  ///< a step is under way: others' contributions, or results
    kOtherJob = 5,       ///< the decider is with another job of this number, or in a later epoch
  };
  /// The worker's applied state of a part: the digest of the steps below n (log_digest.h).
  struct Digest {
    uint32_t part = 0;
    uint64_t n = 0;
    uint64_t digest = 0;
    bool operator==(const Digest&) const = default;
  };
  uint64_t sequence = 0;
  uint64_t steps_applied = 0;        ///< least n of its parts; shard -> worker: decided (asynchronous: sent to it)
  std::vector<uint32_t> waited_for;  ///< shard -> worker: the workers that the oldest open step is blocked on
  std::vector<Ack::Entry>
      decided;             ///< shard -> worker: parts that are further than steps_applied says and than the worker
                           ///< has acknowledged, with their number of steps; at most kHeartbeatPartsMax
  bool finishing = false;  ///< worker -> shard: it pushes nothing more, and leaves once all pushes are answered.
  /// worker -> shard: of that shard's parts, at most kHeartbeatPartsMax; the others come with the next heartbeats.
  std::vector<Digest> digests = {};
  Switch switch_state = Switch::kNoReport;  ///< of the epoch in the header
  SwitchWait switch_wait = SwitchWait::kNotReported;
  uint64_t switch_steps = 0;  ///< of the job, over at this worker
  bool operator==(const Heartbeat&) const = default;
};

/// shard -> shard: the sender's identity; refused when the shard maps differ.
struct ShardHello {
  uint32_t version_min = kProtocolVersionMin;
  uint32_t version_max = kProtocolVersion;
  uint64_t shard_map_hash = 0;
  std::string software;
  bool operator==(const ShardHello&) const = default;
};

/// shard -> shard: magnitudes of this shard's sums of (bucket, step). Payload: MagnitudeHistogram bytes.
///
/// A later message for the same (bucket, step) replaces the earlier one (the epoch changed in between). A late one is
/// only counted. One whose hash does not match is dropped.
struct ThresholdHistogram {
  uint32_t bucket = 0;
  uint64_t step = 0;
  uint64_t payload_hash = 0;  ///< histogram_hash()
  bool operator==(const ThresholdHistogram&) const = default;
};

/// The first version of the messages that has Goodbye::reach.
inline constexpr uint32_t kGoodbyeReachSince = 4;

/// How far a log, or a member's state, goes in the parts of one shard.
struct LogReach {
  uint64_t steps = 0;       ///< the least over the parts
  uint64_t decided_in = 0;  ///< the epoch of the last step; the greatest over the parts
  bool operator==(const LogReach&) const = default;
};

/// either way: the sender leaves, and why; no step blocks on a worker that has finished. After an unanswered Hello it
/// carries no job, epoch and lives.
struct Goodbye {
  enum class Reason : uint8_t { kFinished = 1, kShutdown = 2, kFailed = 3 };
  Reason reason = Reason::kFinished;
  std::string sentence;
  std::vector<LogReach> reach = {};  ///< R10f: how far the model of a worker goes that has finished, by shard; or empty
  bool operator==(const Goodbye&) const = default;
};

/// shard -> worker: the job has ended with an error at this shard (a shard restarted without state, too few workers
/// live).
struct Abort {
  ErrorCode code = ErrorCode::kInternal;
  std::string sentence;
  bool operator==(const Abort&) const = default;
};

/// shard -> worker (R8b): this shard starts without state, and asks for the worker's. Answered with State, in the epoch
/// of the header.
struct Collect {
  bool operator==(const Collect&) const = default;
};

/// worker -> shard: the worker's state in every part of the job. A synced member sends it when it is asked (R8b), a
/// joiner sends it to every shard in every epoch (R9).
struct State {
  struct Part {
    uint32_t part = 0;
    uint64_t n = 0;              ///< steps in its weights
    uint64_t decided_in = 0;     ///< epoch in which step n - 1 was decided; 0 with n = 0
    uint64_t branch = 0;         ///< of its shard, as this worker knows it
    uint64_t retained_from = 0;  ///< it keeps the updates of [retained_from, n); n: none
    bool operator==(const Part&) const = default;
  };
  bool synced = false;
  bool stranded = false;    ///< R9d, R10a: a shard has reported that no member can help this worker
  std::vector<Part> parts;  ///< all of the job, ascending
  bool operator==(const State&) const = default;
};

/// shard -> worker (R8d): asks for the retained updates of a part, from that step on. Answered with Updates, then
/// Fetched.
struct Fetch {
  uint32_t part = 0;
  uint64_t first_step = 0;
  bool operator==(const Fetch&) const = default;
};

/// worker -> shard (R8d): ends the answer to Fetch; has the summary of the part as of n.
struct Fetched {
  uint32_t part = 0;
  uint64_t n = 0;
  uint64_t decided_in = 0;
  Summary summary;
  bool operator==(const Fetched&) const = default;
};

/// shard -> worker (R9, R9g): how a joiner continues with a part. The snapshot and the updates that it needs come
/// before.
struct Settle {
  enum class Weights : uint8_t {
    kOwn = 1,       ///< it continues with its own: the updates that they lack come
    kSnapshot = 2,  ///< it continues with the snapshot that it has just received
    kNone = 3,      ///< its own do not fit, and no member can give a snapshot: it is stranded (R9d)
  };
  uint32_t part = 0;
  uint64_t decided = 0;  ///< steps decided
  uint64_t branch = 0;   ///< of the activation of the shard that sends it
  bool on_log = false;   ///< its state is on the log: residual and outstanding contributions count (R9a)
  Weights weights = Weights::kOwn;
  std::optional<SummaryEntry> counted;  ///< the counts of this worker's contributions, under any incarnation
  bool operator==(const Settle&) const = default;
};

/// shard -> worker (R9d): asks for the worker's weights of these parts, for another worker. Answered with Snapshots.
struct SnapshotRequest {
  uint32_t for_worker = 0;
  uint64_t for_incarnation = 0;
  std::vector<uint32_t> parts;  ///< ascending, of this shard
  bool operator==(const SnapshotRequest&) const = default;
};

/// worker -> shard -> worker (R9d): a run of the weights of a part after n steps. Payload: values of the part's type,
/// little-endian, from index `offset` on. The runs of one snapshot arrive in order and have one n.
struct Snapshot {
  uint32_t part = 0;
  uint32_t for_worker = 0;
  uint64_t for_incarnation = 0;
  uint64_t n = 0;
  uint64_t decided_in = 0;  ///< epoch in which step n - 1 was decided
  uint64_t offset = 0;      ///< values before this run; the part's dimension tells which run is the last
  /// XXH3-64 of the payload. 0: no values; a worker without weights takes them from the store.
  uint64_t payload_hash = 0;
  Summary summary;  ///< as of n; in the last run
  bool operator==(const Snapshot&) const = default;
};

/// worker -> shard (R9e): every part is settled in the epoch of the header. The table makes it synced.
struct Synced {
  bool operator==(const Synced&) const = default;
};

/// The first version of the messages that has Pull::run.
inline constexpr uint32_t kPullRunsSince = 3;

/// worker -> shard: asks for weights of a part from the store, once it has applied that many steps. Payload: u32
/// indices of the part, strictly increasing, where `indices` is not 0; else none, and the range counts. Answered with
/// one Pulled.
struct Pull {
  uint64_t id = 0;  ///< the worker's own, from 1 on; the answer has it
  uint32_t part = 0;
  uint32_t indices = 0;  ///< in the payload; at most kPullValuesMax
  uint64_t at_least = 0;
  uint64_t offset = 0;  ///< of the range [offset, offset + count) of the part; count 0 asks for n alone
  uint64_t count = 0;   ///< at most kPullValuesMax
  /// Entries that are asked for from each index on; the next index lies behind them. 0: the index alone. In all at most
  /// kPullValuesMax.
  uint32_t run = 0;
  bool operator==(const Pull&) const = default;
};

/// shard -> worker: the weights that were pulled, in their order, after n steps. Payload: f32, little-endian.
struct Pulled {
  uint64_t id = 0;  ///< of the Pull; 0: of none, first weights of the part were dropped
  uint32_t part = 0;
  uint32_t values = 0;  ///< in the payload
  uint64_t n = 0;
  uint64_t payload_hash = 0;      ///< XXH3-64 of the payload; 0 without one
  std::optional<ErrorCode> code;  ///< there are none, and why
  std::string sentence;
  bool operator==(const Pulled&) const = default;
};

/// worker -> shard: a run of the weights that a part of the store begins with, from index `offset` on. Payload: f32.
/// The runs of a part arrive in order; one at offset 0 starts again. Not answered: a Pull is, once all runs are there.
struct Place {
  uint32_t part = 0;
  uint64_t offset = 0;
  uint64_t payload_hash = 0;  ///< XXH3-64 of the payload
  bool operator==(const Place&) const = default;
};

using AnyBody = std::variant<Hello, Welcome, Refuse, MembershipChange, Contribution, Duplicate, Update, StepDecided,
                             Ack, Heartbeat, ShardHello, ThresholdHistogram, Goodbye, Abort, Collect, State, Fetch,
                             Fetched, Settle, SnapshotRequest, Snapshot, Synced, Pull, Pulled, Place>;

/// The variant itself, with copies, moves and end in messages.cc. A compiler takes seconds over those of 25
/// alternatives, in each translation unit that has a message.
struct Body : AnyBody {
  using AnyBody::AnyBody;
  using AnyBody::operator=;
  Body();
  Body(const Body&);
  Body(Body&&) noexcept;
  Body& operator=(const Body&);
  Body& operator=(Body&&) noexcept;
  ~Body();
  bool operator==(const Body&) const;
};

/// A message and its raw payload frame (empty where it has none). Copying shares the payload.
struct Message {
  Header header;
  Body body;
  SharedBytes payload;
};

/// Returns the hash that a histogram message of a job must carry. A changed bin, bucket or step would otherwise give
/// the shards different thresholds without notice.
uint64_t histogram_hash(uint64_t job, const ThresholdHistogram& body, ByteSpan payload);

/// Returns the name of a message for logs and metric labels: "contribution", "update", ...
std::string_view body_name(const Body& body);

}  // namespace millrace::protocol
