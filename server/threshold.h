#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/reduce/magnitude_histogram.h"

/// The one threshold of a bucket over all its parts and shards (Ok-Topk's global top-k without moving the entries):
/// shards exchange histograms of their sums, every shard computes the same cut from the same histograms, and each takes
/// its quota.
namespace millrace::server {

/// Splits `take` over holders in proportion to what each has, by largest remainder; equal remainders: the lower holder.
/// The parts sum exactly to min(take, sum of in_bin) and none is over its in_bin.
///
/// Source   oktopk.txt, section 3.1.3 (global top-k values); the quota is Millrace's own: ties must not make an update
///          larger than k.
std::vector<uint64_t> split_take(uint64_t take, std::span<const uint64_t> in_bin);

/// What of one part goes into its update: all entries of the bins above `bin`, and the `take` largest of that bin.
struct PartCut {
  uint32_t bin = 1;
  uint64_t take = 0;
  bool operator==(const PartCut&) const = default;
};

using SharedHistogram = std::shared_ptr<const MagnitudeHistogram>;

/// Entries in bins above `bin`.
uint64_t count_above(const MagnitudeHistogram& histogram, uint32_t bin);

/// The threshold of one bucket at one shard: a state machine of its own.
///
/// Exact steps   (period 1, step % period == 0, or nothing agreed yet) wait for the histograms of all shards of the
///               bucket; the update is then exactly the min(k, non-zero entries) largest of the whole sum, ties by
///               lower shard, then lower index.
/// Reuse steps   never wait: a part is cut by the last agreed threshold; the running count of the step is held within 2
///               % of this shard's share at that threshold.
/// Silent shard  an exact step that has waited for `timeout` falls back to a reuse step, or, with nothing agreed yet,
///               to the threshold of the histograms that are there.
/// Memory        histograms of at most staleness + 3 steps; see on_remote.
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
  };

  enum class Remote : uint8_t { kTaken, kLate, kAhead, kUnknownShard };

  /// An exact step's cut: one quota of the boundary bin for all local parts.
  struct LocalCut {
    uint32_t bin = 1;
    uint64_t quota = 0;
  };

  explicit BucketThreshold(Config config) : config_(std::move(config)) {}

  const std::vector<uint32_t>& shards() const { return config_.shards; }

  /// Must a part wait for the other shards at this step?
  bool is_exact(uint64_t step) const;

  /// A local part's sum of `step`; a later one of the same step replaces the earlier. Returns the shard's own histogram
  /// when this completed (or changed) it: it goes to the other shards of the bucket.
  SharedHistogram on_local(size_t local_part, uint64_t step, SharedHistogram histogram, TimeNs now);

  /// Another shard's histogram. kLate: the step is settled, only counted. kAhead: further ahead than staleness allows.
  Remote on_remote(uint32_t shard, uint64_t step, SharedHistogram histogram);

  /// The agreed cut of exactly this step, when all shards' histograms are in; else nothing.
  std::optional<LocalCut> exact_cut(uint64_t step) const;

  /// An exact step falls back from this time on; nothing where none waits.
  std::optional<TimeNs> deadline() const;

  /// Gives up waiting for silent shards; returns the steps given up: their parts are to be cut by reuse_cut().
  std::vector<uint64_t> expire(TimeNs now);

  /// True when `step` was given up, or is otherwise not waited for: reuse_cut() is what its parts get.
  bool may_reuse(uint64_t step) const;

  /// The cut of one local part at `step` by the last agreed threshold, held to the band of this shard's share.
  /// REQUIRES: may_reuse(step). The part's histogram was given to on_local().
  PartCut reuse_cut(size_t local_part, uint64_t step, const MagnitudeHistogram& histogram);

  /// All local parts have decided the steps below `step`: what they needed is forgotten.
  void decided_below(uint64_t step);

  /// Shards whose histogram of `step` is missing.
  std::vector<uint32_t> missing(uint64_t step) const;

  /// Lower edge of the agreed boundary bin as a magnitude; 0 while nothing is agreed.
  double agreed_magnitude() const;

 private:
  struct Board {
    std::vector<SharedHistogram> local;          ///< by local part
    SharedHistogram own;                         ///< sum of local, when all are there
    std::map<uint32_t, SharedHistogram> remote;  ///< by shard
    std::optional<TimeNs> waiting_since;
    bool given_up = false;
  };
  struct Share {
    double expected = 0;
    uint64_t actual = 0;
  };
  struct Agreed {
    uint64_t step = 0;
    bool whole = false;  ///< all shards were in it
    ThresholdCut cut;
    uint64_t quota = 0;            ///< of this shard
    double fraction = 0;           ///< of the boundary bin that is taken
    std::vector<double> expected;  ///< entries, by local part
  };

  void agree(uint64_t step, const Board& board);
  bool complete(const Board& board) const { return board.own && board.remote.size() + 1 == config_.shards.size(); }

  Config config_;
  uint64_t decided_below_ = 0;
  std::map<uint64_t, Board> boards_;
  std::optional<Agreed> agreed_;
  std::map<uint64_t, std::vector<std::optional<Share>>> running_;  ///< reuse steps: what each local part got
};

}  // namespace millrace::server
