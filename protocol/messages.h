#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "protocol/job_spec.h"

/// The messages of workers and shards as values. Their bytes, and what each does when it is repeated or late: WIRE_FORMAT.md,
/// messages.capnp, frame.h. Numbers in brackets are the transitions of the protocol of rounds (server/DESIGN.md).
namespace millrace::protocol {

inline constexpr uint32_t kProtocolVersion = 1;
inline constexpr uint32_t kProtocolVersionMin = 1;

/// Optional abilities, negotiated by intersection. None is defined in version 1.
using Capabilities = uint64_t;

enum class MemberState : uint8_t { kSynced = 1, kJoining = 2 };

struct Member {
  uint32_t worker = 0;
  uint64_t life = 0;   ///< incarnation; grows with every return
  uint64_t nonce = 0;  ///< drawn by the process: tells a reconnecting process from a second one
  MemberState state = MemberState::kSynced;
  bool operator==(const Member&) const = default;
};

struct ShardEntry {
  std::string address;  ///< "tcp://host:port"
  uint64_t life = 0;    ///< grows with every start of that shard
  bool operator==(const ShardEntry&) const = default;
};

/// A job's row in the membership table, as every process sees it. Every change is one compare-and-swap on the epoch.
struct JobView {
  uint64_t job = 0;
  uint64_t epoch = 0;
  bool started = false;  ///< all expected workers have joined once; set with the last join
  bool finished = false;
  std::vector<Member> members;     ///< by worker, ascending
  std::vector<ShardEntry> shards;  ///< by shard number
  uint64_t lineage = 0;
  std::vector<uint64_t> lineage_parents;  ///< parent of lineage i, for i >= 1
  bool operator==(const JobView&) const = default;
};

/// In every message: who, to whom, in which period. Zero where not known yet (Hello).
struct Header {
  uint64_t job = 0;
  uint64_t epoch = 0;
  uint32_t worker = 0;      ///< the worker's side of the conversation; unused between shards
  uint64_t life = 0;        ///< the worker's incarnation
  uint32_t shard = 0;       ///< the shard's side; between shards: the sender
  uint64_t shard_life = 0;  ///< of that shard, as the sender knows it
  bool operator==(const Header&) const = default;
};

/// worker -> shard: first message on every connection, and again after a reconnect (same nonce: same incarnation).
struct Hello {
  uint32_t version_min = kProtocolVersionMin;
  uint32_t version_max = kProtocolVersion;
  Capabilities capabilities = 0;
  std::string software;  ///< "millrace 0.1.0"
  uint64_t nonce = 0;
  JobSpec spec;
  uint32_t shard_count = 0;  ///< the worker's idea of the shard map
  uint64_t layout_hash = 0;
  ByteBuffer auth;  ///< room for authentication; empty in version 1
  bool operator==(const Hello&) const = default;
};

/// shard -> worker: admitted. A repeated Hello is answered with the same.
struct Welcome {
  uint32_t version = kProtocolVersion;
  Capabilities capabilities = 0;
  std::string software;
  JobView view;
  uint32_t heartbeat_ms = 0;
  uint32_t dead_after_ms = 0;
  uint64_t message_bytes_max = 0;
  bool operator==(const Welcome&) const = default;
};

/// shard -> worker: no, why, and whether trying again can help. About one contribution when part/step are set.
struct Refuse {
  ErrorCode code = ErrorCode::kInternal;
  std::string sentence;
  bool retry = false;
  bool about_contribution = false;
  uint32_t part = 0;
  uint64_t step = 0;
  bool operator==(const Refuse&) const = default;
};

/// shard -> worker, on every epoch change [7], before anything else of that epoch on this connection.
struct ViewChange {
  JobView view;
  bool operator==(const ViewChange&) const = default;
};

/// worker -> shard [1]. Payload: one container. The bytes of (part, step, worker, life) never change; a resend repeats them.
struct Contribution {
  uint32_t part = 0;
  uint64_t step = 0;
  uint64_t payload_hash = 0;  ///< container_identity() of the payload
  double weight = 1;
  double entered = 0;           ///< audit: sum of what entered this worker's accumulator of the part so far
  double opening_residual = 0;  ///< audit: sum of the residual that this life began with
  bool again = false;           ///< sent before: its answer, or the step's update, may be lost
  bool operator==(const Contribution&) const = default;
};

/// shard -> worker: the contribution was here before (admitted, not counted again) [2].
struct Duplicate {
  uint32_t part = 0;
  uint64_t step = 0;
  bool operator==(const Duplicate&) const = default;
};

struct ContributorId {
  uint32_t worker = 0;
  uint64_t life = 0;
  bool operator==(const ContributorId&) const = default;
};

/// Per part, a function of the part's log: rides in every update, never forgotten.
struct SummaryEntry {
  uint32_t worker = 0;
  uint64_t life = 0;          ///< of the last counted contribution
  uint64_t last_step = 0;     ///< last counted step of any life
  uint64_t counted_mask = 0;  ///< bit i: step last_step - i counted under `life` (last staleness + 1 pairs)
  double entered = 0;         ///< audit, cumulative
  double carried = 0;
  bool operator==(const SummaryEntry&) const = default;
};

struct Summary {
  std::vector<SummaryEntry> workers;
  std::vector<std::pair<uint64_t, uint64_t>> epochs;  ///< (epoch, first step decided in it)
  double threshold = 0;                               ///< what the next decision depends on
  bool operator==(const Summary&) const = default;
};

/// shard -> worker [3, 4]. Payload: one container holding the sum over the contributors (never divided).
struct Update {
  uint32_t part = 0;
  uint64_t step = 0;
  uint64_t decided_in = 0;  ///< epoch of deciding; re-serving does not change it
  std::vector<ContributorId> contributors;
  double weight_sum = 0;  ///< of the contributors
  bool whole_sum = true;  ///< false: re-selected; entries not carried go back to the contributors' residuals
  uint64_t stable = 0;    ///< every member has acknowledged the steps below
  Summary summary;
  bool operator==(const Update&) const = default;
};

/// shard -> worker: the update of this step is forgotten; what became of the worker's contribution [2, 6].
struct Settled {
  uint32_t part = 0;
  uint64_t step = 0;
  bool counted = false;
  bool operator==(const Settled&) const = default;
};

/// worker -> shard [5]: steps below n of the part are applied. Also rides on heartbeats.
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

/// worker -> shard, every heartbeat_ms, and shard -> worker in answer: liveness, and why a job stands still.
struct Heartbeat {
  uint64_t sequence = 0;
  uint64_t steps_applied = 0;        ///< least n over the worker's parts
  uint64_t weights_digest = 0;       ///< room for the digest of the weights
  std::vector<uint32_t> waited_for;  ///< shard -> worker: who the oldest open step waits for
  std::vector<Ack::Entry>
      decided;             ///< shard -> worker: parts that are further than steps_applied says and than the worker
                           ///< has acknowledged, with their number of steps; at most kHeartbeatPartsMax
  bool finishing = false;  ///< worker -> shard: it pushes nothing more, and leaves when all of it is answered
  bool operator==(const Heartbeat&) const = default;
};

/// shard -> shard: who I am; refused when the shard maps differ.
struct ShardHello {
  uint32_t version_min = kProtocolVersionMin;
  uint32_t version_max = kProtocolVersion;
  uint64_t shard_map_hash = 0;
  std::string software;
  bool operator==(const ShardHello&) const = default;
};

/// shard -> shard: magnitudes of this shard's sums of (bucket, step). Payload: MagnitudeHistogram bytes. A later one for the same
/// (bucket, step) replaces the earlier (the epoch changed in between); a late one is only counted, one whose hash does not fit
/// is dropped.
struct ThresholdHistogram {
  uint32_t bucket = 0;
  uint64_t step = 0;
  uint64_t payload_hash = 0;  ///< histogram_hash()
  bool operator==(const ThresholdHistogram&) const = default;
};

/// either way: I leave, and why. A worker that has finished says so and is not waited for any more.
struct Goodbye {
  enum class Reason : uint8_t { kFinished = 1, kShutdown = 2, kFailed = 3 };
  Reason reason = Reason::kFinished;
  std::string sentence;
  bool operator==(const Goodbye&) const = default;
};

/// shard -> worker: the job has ended with an error at this shard (a shard came back empty, too few workers live).
struct Abort {
  ErrorCode code = ErrorCode::kInternal;
  std::string sentence;
  bool operator==(const Abort&) const = default;
};

using Body = std::variant<Hello, Welcome, Refuse, ViewChange, Contribution, Duplicate, Update, Settled, Ack, Heartbeat,
                          ShardHello, ThresholdHistogram, Goodbye, Abort>;

/// A message and its raw payload frame (empty where it has none). Copying shares the payload.
struct Message {
  Header header;
  Body body;
  SharedBytes payload;
};

/// What a histogram message of a job must carry as its hash: a changed bin, bucket or step would cut the shards' sums at
/// different thresholds without anybody noticing.
uint64_t histogram_hash(uint64_t job, const ThresholdHistogram& body, ByteSpan payload);

/// "contribution", "update", ...: logs and metric labels.
std::string_view body_name(const Body& body);

}  // namespace millrace::protocol
