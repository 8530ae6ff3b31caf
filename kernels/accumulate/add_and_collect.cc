#include "kernels/accumulate/add_and_collect.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <new>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/magnitude/magnitude_sample.h"
#include "kernels/magnitude/radix_select.h"
#include "kernels/magnitude/top_k_search.h"
#include "kernels/magnitude/value_chunks.h"
#include "kernels/reduce/slice_kernels.h"
#include "kernels/stream/stream.h"

namespace millrace {
namespace {

constexpr size_t kSummedMin = 256;
constexpr size_t kSummedMax = 16384;
/// One sum of a sample is two cache misses, which cost as much as this many collected entries (measured).
constexpr double kEntriesPerSummed = 8;
/// More than n / this many entries are not collected: their writes cost more than a second pass.
constexpr size_t kCollectedShare = 16;

size_t chunks_of(size_t count) { return (count + kValueChunk - 1) / kValueChunk; }

/// A guess of the magnitude of some largest entries, with the entries to expect from it on, and the most to collect.
struct CollectionGuess {
  MagnitudeKey key = 0;
  uint64_t expected = 0;
  uint64_t limit = 0;
};

/// Returns the size of a sample of which another entry costs about as much as it saves. A sample of s entries collects
/// 4 sqrt(wanted n / s) + 4 n / s more than the wanted ones, by safe_sample_rank(). Each term alone has its best size:
/// the larger is taken.
size_t summed_for(uint64_t wanted, size_t n) {
  const double root = 2 * std::sqrt(static_cast<double>(wanted) * static_cast<double>(n)) / kEntriesPerSummed;
  const double of_few = 2 * std::sqrt(static_cast<double>(n) / kEntriesPerSummed);
  return std::clamp(static_cast<size_t>(std::max(std::cbrt(root * root), of_few)), kSummedMin, kSummedMax);
}

/// Guesses the magnitude of the `wanted` largest entries of target + scale * values; expects 0: no guess.
CollectionGuess guess_of_sum(std::span<const float> target, std::span<const float> values, float scale,
                             uint64_t wanted) {
  const size_t n = target.size();
  if (wanted == 0 || n < kCollectFrom || wanted > n / kCollectedShare) return {};
  Buffer<MagnitudeKey> keys(summed_for(wanted, n));
  for_each_sample(n, keys.size(),
                  [&](size_t i, size_t at) { keys[i] = magnitude_key(target[at] + scale * values[at]); });
  const double rank = safe_sample_rank(wanted, n, keys.size());
  const double entries_per_key = static_cast<double>(n) / static_cast<double>(keys.size());
  const double expected = rank * entries_per_key;
  if (expected > static_cast<double>(n) / kCollectedShare) return {};
  Buffer<MagnitudeKey> scratch;
  const MagnitudeKey key = kth_largest_key(keys, static_cast<uint64_t>(rank), scratch);
  // As much above the expected number as safe_sample_rank() is below.
  const double most = (rank + 4 * std::sqrt(rank) + 4) * entries_per_key;
  return {std::clamp<MagnitudeKey>(key, 1, kInfinityKey), static_cast<uint64_t>(expected), static_cast<uint64_t>(most)};
}

/// The collection of all chunks, shared by the threads.
class Collection {
 public:
  Collection(std::span<float> target, std::span<const float> values, float scale, CollectionGuess guess)
      : target_(target),
        values_(values),
        scale_(scale),
        key_min_(guess.key),
        limit_(guess.limit),
        room_(kScanBlock + kCollectSlack + 2 * guess.expected / std::max<size_t>(1, chunks_of(target.size()))),
        stopped_(guess.expected == 0),
        chunks_(stopped_ ? 0 : chunks_of(target.size())) {}

  /// Adds a chunk. Does not throw.
  void add(size_t chunk) {
    const size_t end = std::min(target_.size(), (chunk + 1) * kValueChunk);
    size_t used = 0;
    for (size_t at = chunk * kValueChunk; at < end;) {
      if (stopped_ || !make_room(chunks_[chunk], used)) {
        stopped_ = true;
        add_scaled_dense(target_.subspan(at, end - at), values_.subspan(at, end - at), scale_);
        break;
      }
      const size_t count = std::min(kScanBlock, end - at);
      const size_t found = add_and_collect_block(
          target_.subspan(at, count), values_.subspan(at, count), scale_, static_cast<uint32_t>(at), key_min_,
          chunks_[chunk].positions.data() + used, chunks_[chunk].keys.data() + used);
      check(std::span<const MagnitudeKey>(chunks_[chunk].keys).subspan(used, found));
      used += found;
      at += count;
    }
    if (chunk >= chunks_.size()) return;
    chunks_[chunk].positions.resize(used);
    chunks_[chunk].keys.resize(used);
  }

  bool take(Candidates& all) const {
    if (stopped_) return false;
    join_chunks(chunks_, all);
    return true;
  }

 private:
  /// Makes room for a block after the used entries; contents are kept. False: memory ended.
  bool make_room(Candidates& chunk, size_t used) const {
    if (chunk.keys.size() >= used + kScanBlock + kCollectSlack) return true;
    try {
      chunk.positions.resize(2 * used + room_);
      chunk.keys.resize(2 * used + room_);
    } catch (const std::bad_alloc&) {
      return false;
    }
    return true;
  }

  /// Stops the collection where an entry is not finite, or there are too many. Whether all chunks together have too
  /// many does not depend on their order.
  void check(std::span<const MagnitudeKey> keys) {
    MagnitudeKey largest = 0;
    for (const MagnitudeKey key : keys) largest = std::max(largest, key);
    if (largest >= kInfinityKey || found_.fetch_add(keys.size()) + keys.size() > limit_) stopped_ = true;
  }

  std::span<float> target_;
  std::span<const float> values_;
  float scale_;
  MagnitudeKey key_min_;
  uint64_t limit_;
  size_t room_;  ///< of a chunk at first: as a rule it does not grow
  std::atomic<bool> stopped_;
  std::atomic<uint64_t> found_ = 0;
  std::vector<Candidates> chunks_;
};

}  // namespace

bool all_finite_on_threads(std::span<const float> values) {
  std::atomic<bool> finite = true;
  const auto check_chunk = [&](size_t begin, size_t end) {
    if (finite && !all_finite(values.subspan(begin, end - begin))) finite = false;
  };
  for_value_chunks(values.size(), check_chunk, kMemoryPass);
  return finite;
}

void scale_on_threads(std::span<const float> values, float scale, std::span<float> target) {
  MILLRACE_CHECK(target.size() == values.size(), target.size(), values.size());
  const auto scale_chunk = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) target[i] = scale * values[i];
  };
  for_value_chunks(values.size(), scale_chunk, kMemoryPass);
}

bool add_and_collect(std::span<float> target, std::span<const float> values, float scale, uint64_t wanted,
                     Candidates& largest) {
  MILLRACE_CHECK(target.size() == values.size(), target.size(), values.size());
  Collection collection(target, values, scale, guess_of_sum(target, values, scale, wanted));
  // From the end: a check that has just walked the values left their end in the cache.
  const size_t chunks = chunks_of(target.size());
  for_chunks(chunks, [&](size_t from_end) { collection.add(chunks - 1 - from_end); }, kMemoryPass);
  try {
    return collection.take(largest);
  } catch (const std::bad_alloc&) {
    return false;  // the values are added, and a scan finds the entries
  }
}

}  // namespace millrace
