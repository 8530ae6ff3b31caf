#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/reduce/magnitude_histogram.h"
#include "server/aggregation/shared_histogram.h"

/// Agrees on one threshold for a bucket over all its parts and shards (Ok-Topk's global top-k without moving the
/// entries). Shards exchange histograms of their sums. Every shard computes the same cut from the same histograms, and
/// each takes its quota.
namespace millrace::server {

/// Splits `take` over holders in proportion to their entries, by largest remainder; equal remainders: the lower holder.
/// The parts sum exactly to min(take, sum of in_bin) and none is over its in_bin.
///
/// Source   [OkTopk22, 3.1.3] (global top-k values); the quota is Millrace's own: ties must not make an update
///          larger than k.
std::vector<uint64_t> split_take(uint64_t take, std::span<const uint64_t> in_bin);

/// Selects the entries of one part for its update: all entries of the bins above `bin`, and the `take` largest of that
/// bin.
struct PartThreshold {
  uint32_t bin = 1;
  uint64_t take = 0;
  bool operator==(const PartThreshold&) const = default;
};

/// Says how a part is summed and cut in one pass. Only sums of magnitude `edge` and more are processed further. Those
/// of `threshold` and more are the update if their number is at least `least` and at most `most`.
struct FusedThreshold {
  float edge = 0;  ///< > 0, at most `threshold`
  float threshold = 0;
  uint64_t least = 0;
  uint64_t most = 0;
};

/// Counts the entries in bins above `bin`.
uint64_t count_above(const MagnitudeHistogram& histogram, uint32_t bin);

/// Returns the magnitude that about `count` entries reach, if the entries of a bin lie evenly in it; > 0.
float magnitude_reached_by(const MagnitudeHistogram& histogram, double count);

/// The threshold of one bucket at one shard: a state machine of its own.
///
/// Exact steps   (period 1, step % period == 0, or nothing agreed yet) wait for the histograms of all shards of the
///               bucket. The update is then exactly the min(k, non-zero entries) largest of the whole sum; ties: lower
///               shard, then lower index.
/// Reuse steps   never wait. A part is cut by the last agreed threshold. The running count of the step is held within 2
///               % of this shard's share at that threshold.
/// Quick steps   reuse steps without a histogram (most: see counts_magnitudes). This shard's own threshold follows the
///               count of the last one, so that the shard meets its share without all magnitudes.
/// Silent shard  an exact step that has waited for `timeout` falls back to a reuse step. With nothing agreed yet, it
///               uses the threshold of the histograms that have arrived.
/// Memory        histograms of at most staleness + 3 steps; see on_remote. The caller charges those that it gives; sums
///               of them are charged here.
class BucketThreshold {
 public:
  struct Config {
    uint64_t k = 0;
    uint32_t period = 1;
    uint32_t staleness = 0;
    uint32_t shard = 0;
    std::vector<uint32_t> shards;  ///< that hold parts of the bucket, ascending, `shard` among them
    size_t local_parts = 0;        ///< of this shard
    TimeNs timeout_ns = 0;
    MemoryAccount* account = nullptr;  ///< outlives this; nullptr: sums of histograms are not charged
  };

  enum class Remote : uint8_t { kTaken, kLate, kAhead, kUnknownShard };

  /// An exact step's cut: one quota of the boundary bin for all local parts.
  struct LocalThreshold {
    uint32_t bin = 1;
    uint64_t quota = 0;
  };

  explicit BucketThreshold(Config config) : config_(std::move(config)), begins_(config_.local_parts, 0) {}

  /// R8d: Lets the part continue at `step`, after its shard restarted without its state. The part contributes nothing
  /// to earlier steps, in which other parts of the bucket may still be. Call it before any other call about the part.
  void begins_at(size_t local_part, uint64_t step);

  const std::vector<uint32_t>& shards() const { return config_.shards; }

  /// Returns whether a part must wait for the other shards at this step.
  bool is_exact(uint64_t step) const;

  /// Adds a local part's sum of `step`; a later one of the same step replaces the earlier. Returns the shard's own
  /// histogram when this completed (or changed) it: it goes to the other shards of the bucket.
  SharedHistogram on_local(size_t local_part, uint64_t step, SharedHistogram histogram, TimeNs now);

  /// Adds another shard's histogram. kLate: the step is decided, only counted. kAhead: further ahead than staleness
  /// allows.
  Remote on_remote(uint32_t shard, uint64_t step, SharedHistogram histogram);

  /// Returns the agreed cut of exactly this step, once all shards' histograms are there; else nothing.
  std::optional<LocalThreshold> exact_threshold(uint64_t step) const;

  /// Returns the time from which an exact step falls back; nothing where none waits.
  std::optional<TimeNs> deadline() const;

  /// Extends the deadlines by a time in which this process itself did not run.
  void extend_deadlines(TimeNs paused);

  /// Gives up waiting for silent shards. Returns the steps given up: their parts are to be cut by reused_threshold().
  std::vector<uint64_t> expire(TimeNs now);

  /// Returns whether `step` was given up, or no part waits for it: its parts then get reused_threshold().
  bool may_reuse(uint64_t step) const;

  /// Returns whether all shards count the magnitudes of this step, to agree on a threshold. They do in exact steps and
  /// in every kCountEvery-th. They also do while the sums have no more entries than an update may have: a share is then
  /// no size to meet.
  bool counts_magnitudes(uint64_t step) const;

  /// Returns how a local part is cut in one pass; nothing where its magnitudes are needed.
  std::optional<FusedThreshold> fused_threshold(size_t local_part, uint64_t step);

  /// Records that `count` entries of the part reached the threshold of its fused_threshold(); the next threshold
  /// depends on it.
  void reached(size_t local_part, uint64_t step, uint64_t count);

  /// Records that a quick cut missed its share by so wide a margin that the part was summed whole. If all parts were,
  /// the next threshold is set by that histogram.
  void counted_again(size_t local_part, uint64_t step, SharedHistogram histogram);

  /// Returns whether `count` entries may be the part's update; if so, counts them. REQUIRES: may_reuse(step).
  bool accept(size_t local_part, uint64_t step, uint64_t count);

  /// Returns the cut of one local part at `step` by the last agreed threshold, held to the band of this shard's share.
  /// REQUIRES: may_reuse(step).
  PartThreshold reused_threshold(size_t local_part, uint64_t step, const MagnitudeHistogram& histogram);

  /// Returns how many of the largest sums are the update. Only the `at_hand` sums from fused_threshold()'s edge on are
  /// known; nothing where they are too few.
  std::optional<uint64_t> reuse_largest(size_t local_part, uint64_t step, uint64_t at_hand);

  /// Forgets the data of the steps below `step`: all local parts have decided them.
  void decided_below(uint64_t step);

  /// Returns the shards whose histogram of `step` is missing.
  std::vector<uint32_t> missing(uint64_t step) const;

  /// Returns the lower edge of the agreed boundary bin as a magnitude; 0 while nothing is agreed.
  double agreed_magnitude() const;

 private:
  struct Board {
    std::vector<SharedHistogram> local;          ///< by local part
    SharedHistogram own;                         ///< sum of local, when all are there
    std::map<uint32_t, SharedHistogram> remote;  ///< by shard
    std::optional<TimeNs> waiting_since;
    bool given_up = false;
  };
  struct Agreed;
  /// A reuse step, by local part: the share of each, the entries that reached the quick threshold, the histograms
  /// counted nevertheless.
  struct Running {
    std::shared_ptr<const Agreed> agreed;  ///< when it began: the share that it is held to
    std::vector<std::optional<uint64_t>> shares;
    std::vector<std::optional<uint64_t>> reached;
    std::vector<SharedHistogram> counted;
  };
  /// The limits of one part's count that keep a step's running count in the band.
  struct Band {
    uint64_t least = 0;
    uint64_t most = 0;
  };
  /// The quick threshold.
  struct Level {
    SharedHistogram own;  ///< the newest of all local parts
    /// The number of entries that shall reach the threshold by that histogram, as a multiple of the share.
    double aim = 1;
    double spread = 0;  ///< by how much of the share quick thresholds have missed it lately
    float edge = 0;
    float threshold = 0;
  };
  struct Agreed {
    uint64_t step = 0;
    bool whole = false;  ///< all shards were in it
    bool cuts = false;   ///< there were more entries than k
    double expected_sum = 0;
    HistogramThreshold cut;
    uint64_t quota = 0;            ///< of this shard
    double fraction = 0;           ///< of the boundary bin that is taken
    std::vector<double> expected;  ///< entries, by local part
  };

  SharedHistogram sum_of(std::span<const SharedHistogram> histograms) const;
  void agree(uint64_t step, const Board& board);
  Band band(size_t local_part, const Running& running) const;
  double wanted(const MagnitudeHistogram& histogram) const;
  uint64_t take(size_t local_part, Running& running, double wanted, uint64_t at_hand) const;
  Running& running(uint64_t step);
  void set_level(SharedHistogram own);
  void aim();
  bool complete(const Board& board) const { return board.own && board.remote.size() + 1 == config_.shards.size(); }

  Config config_;
  std::vector<uint64_t> begins_;  ///< by local part: the first step that it is summed in here
  uint64_t decided_below_ = 0;
  std::map<uint64_t, Board> boards_;
  std::shared_ptr<const Agreed> agreed_;
  Level level_;
  std::map<uint64_t, Running> running_;  ///< by reuse step
};

}  // namespace millrace::server
