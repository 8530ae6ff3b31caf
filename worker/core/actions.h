#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/log_line.h"
#include "kernels/base/result.h"
#include "kernels/stream/shared_stream.h"
#include "protocol/messages/messages.h"

namespace millrace::worker {

struct SendAction {
  uint32_t shard = 0;
  protocol::Message message;
};

/// Says how messages outside the rounds are written to a shard.
struct ShardLink {
  protocol::Header header;
  uint32_t version = protocol::kProtocolVersion;  ///< of the messages, by the handshake
};

/// Delivers a decided sum of one part, in step order per part. The core shares the stream and resolves contributions by
/// it later. Steps that were decided without this worker are delivered with the next push of the bucket, which goes
/// into a later one.
struct DeliveredUpdate {
  uint32_t bucket = 0;
  uint32_t part = 0;
  uint64_t step = 0;        ///< of merged ones the last
  uint64_t first_step = 0;  ///< the same, but for merged ones
  uint64_t push = 0;        ///< the bucket's push whose answer this is, or comes before.
  /// The step's update was delivered before the push was assigned to the step: the receiver applies nothing.
  bool delivered_before = false;
  bool answers_push = true;  ///< it is the answer: that push went into this step
  uint64_t begin = 0;        ///< of the part in the bucket; the stream's indices are local to it
  SharedStream sum;
  uint32_t contributors = 0;
  double weight_sum = 0;
  double denominator = 1;      ///< as the job combines: 1, contributors or weight_sum
  bool counted = false;        ///< this worker is among the contributors
  bool step_complete = false;  ///< all parts of the bucket have this step now.
  /// `sum` is not added. It is dense and holds the part's weights after `steps` steps, which replace the present
  /// weights (R9d). It precedes any update of a later step, answers no push, and may have fewer steps than were applied
  /// before.
  bool replaces = false;
  uint64_t steps = 0;       ///< where it replaces: steps in these weights
  uint64_t decided_in = 0;  ///< epoch in which the step, or where it replaces the last of `steps`, was decided
};

/// Asks for this worker's weights of a part, which another worker needs. The shell answers with
/// SessionCore::give_weights(), now or later.
struct GiveWeights {
  uint32_t shard = 0;
  uint32_t part = 0;
  uint32_t for_worker = 0;
  uint64_t for_incarnation = 0;
  uint64_t epoch = 0;  ///< of the request; in another epoch no member needs the answer
  bool operator==(const GiveWeights&) const = default;
};

/// Describes the finished work of one call of SessionCore::work(), for the timeline.
struct WorkDone {
  enum class Kind : uint8_t { kSelected, kCoded };
  Kind kind = Kind::kSelected;
  uint32_t unit = 0;  ///< selected: the bucket; coded: the part
  uint64_t step = 0;
};

/// Holds the actions that a call of the core asks the shell to do, in order within each list. The caller clears it
/// between calls.
struct Actions {
  std::vector<SendAction> sends;
  std::vector<uint32_t> connects;  ///< shards to (re)connect to now; answered by on_connected / on_disconnected
  std::vector<DeliveredUpdate> delivered;
  /// Done after `delivered`: the given weights include those updates.
  std::vector<GiveWeights> give_weights;
  std::vector<LogLine> log;
  /// Of each step of a bucket that completed: the time from its first byte sent to its update.
  std::vector<TimeNs> steps_done;
  std::optional<WorkDone> work_done;

  void clear() {
    sends.clear();
    connects.clear();
    delivered.clear();
    give_weights.clear();
    log.clear();
    steps_done.clear();
    work_done.reset();
  }
};

}  // namespace millrace::worker
