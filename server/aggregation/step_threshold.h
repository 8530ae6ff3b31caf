#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/grid/reselect_sums.h"
#include "server/aggregation/bucket_threshold.h"

namespace millrace::server {

/// The cuts of one bucket in a reproducible job. The cut of step t is a function of the decisions of all parts, on all
/// shards, in step t - 1, and of nothing else. So a part that is to decide t waits for the other shards' histograms of
/// t - 1. It waits without limit, since there is no earlier threshold to fall back on. The first step has the whole
/// sum.
///
/// Lost     a shard that lacks others' histograms sends its own again. A shard that receives a histogram for the second
///          time answers with its own. So a lost message is repeated, in either direction.
/// Memory   histograms of three steps. The caller charges those that it gives; sums of them are charged here.
class StepThreshold {
 public:
  struct Config {
    uint64_t k = 0;
    uint32_t shard = 0;
    std::vector<uint32_t> shards;  ///< that hold parts of the bucket, ascending, `shard` among them
    size_t local_parts = 0;        ///< of this shard
    /// Least time between two repetitions of a histogram to a shard.
    TimeNs repeat_ns = 0;
    MemoryAccount* account = nullptr;  ///< outlives this; nullptr: sums of histograms are not charged
  };

  /// kRepeated: known; answer_to() decides whether it is answered.
  enum class Remote : uint8_t { kTaken, kRepeated, kLate, kAhead, kUnknownShard };

  explicit StepThreshold(Config config) : config_(std::move(config)) {}

  const std::vector<uint32_t>& shards() const { return config_.shards; }

  /// Returns the cut of the step; nothing: histograms of the step before are missing.
  std::optional<SumThreshold> threshold(uint64_t step) const;

  /// Adds the sums of a local part that has decided the step, as before the cut. Returns the shard's own histogram when
  /// this was the last of its parts: it goes to the other shards.
  SharedHistogram on_decided(size_t local_part, uint64_t step, SharedHistogram histogram, TimeNs now);

  Remote on_remote(uint32_t shard, uint64_t step, SharedHistogram histogram);

  /// Returns this shard's own histogram for a shard that repeats a known one, and so may lack it. nullptr: nothing is
  /// sent, or it was sent a moment ago.
  SharedHistogram answer_to(uint32_t shard, uint64_t step, TimeNs now);

  /// Holds this shard's own histogram, to be sent again to the shards whose histograms it lacks.
  struct Repeat {
    uint64_t step = 0;
    SharedHistogram own;
    std::vector<uint32_t> to;
  };
  std::optional<Repeat> repeat(TimeNs now);
  std::optional<TimeNs> deadline() const;

  /// Returns the shards whose histogram the step waits for.
  std::vector<uint32_t> missing(uint64_t step) const;

 private:
  struct Board {
    std::vector<SharedHistogram> local;          ///< by local part
    SharedHistogram own;                         ///< sum of local, when all are there
    std::map<uint32_t, SharedHistogram> remote;  ///< by shard
    std::map<uint32_t, TimeNs> reported_at;      ///< when own was sent last, by shard
  };
  bool complete(const Board& board) const { return board.own && board.remote.size() + 1 == config_.shards.size(); }
  void agree(uint64_t step, const Board& board);
  const Board* waiting() const;

  Config config_;
  std::map<uint64_t, Board> boards_;             ///< by step
  std::map<uint64_t, SumThreshold> thresholds_;  ///< by the step that they are for
  uint64_t next_ = 0;                            ///< the first step that not all local parts have decided
};

}  // namespace millrace::server
