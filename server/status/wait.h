#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/clock.h"
#include "monitoring/status/shard_status.h"

namespace millrace::server {

/// The reason why a job at one shard is blocked.
enum class Wait : uint8_t {
  kNothing = 0,
  kJoin,           ///< the job has not started: workers that have not joined it
  kHello,          ///< members that have not sent Hello to this shard
  kContributions,  ///< members that have not contributed
  kDeadline,       ///< the quorum is in; the others may still come until the deadline
  kMagnitudes,     ///< histograms of other shards, or of the bucket's other parts
  kStore,          ///< the store's first weights, or that it catches up
  /// Members that have not acknowledged an update, which is applied once enough have (apply_after_acks).
  kAcknowledgements,
  kMemory,     ///< room: for another update, until acknowledgements come, or for a first contribution
  kComputing,  ///< decoding, summing or coding
  kRecovery,   ///< members of a job whose rounds this shard does not know, to report their state
  kWeights,    ///< members that give their weights to one that joins
};

/// Returns "join", "contributions", ...; "" for nothing.
std::string_view wait_name(Wait wait);

/// Why a job makes no progress, for users: of the oldest open step.
struct Waiting {
  Wait wait = Wait::kNothing;
  std::vector<uint32_t> workers;
  std::vector<uint32_t> shards;
  TimeNs since = 0;
  std::string because;
  WaitingStep at;
  TimeNs due = 0;  ///< Wait::kDeadline
};

}  // namespace millrace::server
