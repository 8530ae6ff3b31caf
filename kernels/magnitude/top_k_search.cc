#include "kernels/magnitude/top_k_search.h"

#include <algorithm>
#include <array>

#include "kernels/magnitude/magnitude_sample.h"
#include "kernels/magnitude/radix_select.h"

namespace millrace {
namespace {

std::unexpected<Error> non_finite() {
  return fail(ErrorCode::kNonFinite, "NaN or infinity among the values to select from");
}

// Copies the positions that are in, without a branch an entry; `out` has room for one more than there are.
size_t keep_above_threshold(const uint32_t* positions, const MagnitudeKey* keys, size_t count, TopKThreshold& threshold,
                            uint32_t* out) {
  size_t kept = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t tie = keys[i] == threshold.key && threshold.ties != 0 ? 1 : 0;
    out[kept] = positions[i];
    kept += (keys[i] > threshold.key ? 1 : 0) + tie;
    threshold.ties -= tie;
  }
  return kept;
}

void emit_from_values(std::span<const float> values, TopKThreshold threshold, uint64_t k, IndexBuffer& positions) {
  std::array<uint32_t, kScanBlock + kScanSlack> block_positions;
  std::array<MagnitudeKey, kScanBlock + kScanSlack> block_keys;
  positions.resize(k + 1);
  size_t used = 0;
  for (size_t at = 0; at < values.size() && used < k; at += kScanBlock) {
    const size_t count = std::min(kScanBlock, values.size() - at);
    const size_t found = scan_block(values.data() + at, count, static_cast<uint32_t>(at), threshold.key,
                                    block_positions.data(), block_keys.data())
                             .found;
    used += keep_above_threshold(block_positions.data(), block_keys.data(), found, threshold, positions.data() + used);
  }
  positions.resize(used);
}

void emit_from_candidates(const Candidates& candidates, TopKThreshold threshold, uint64_t k, IndexBuffer& positions) {
  positions.resize(k + 1);
  positions.resize(keep_above_threshold(candidates.positions.data(), candidates.keys.data(), candidates.keys.size(),
                                        threshold, positions.data()));
}

}  // namespace

TopKThreshold threshold_at(std::span<const MagnitudeKey> keys, uint64_t k) {
  Buffer<MagnitudeKey> scratch;
  const MagnitudeKey key = kth_largest_key(keys, k, scratch);
  uint64_t above = 0;
  for (const MagnitudeKey candidate : keys) above += candidate > key ? 1 : 0;
  return {key, k - above};
}

Result<TopKSearch> search_top_k(std::span<const float> values, uint64_t k, ThresholdGuess guess) {
  const bool all = values.size() < kSampleFrom;
  // Many candidates (k near n) are more writing than the radix passes over the values are reading.
  if (!all && guess.expected > values.size() / 2) return search_top_k_by_radix(values, k);
  TopKSearch search;
  const MagnitudeKey key_min = all ? 0 : std::max<MagnitudeKey>(guess.key, 1);
  const uint64_t limit = all ? values.size() : guess.expected + guess.expected / 4 + kScanBlock;
  search.candidates.positions.reserve(limit + kScanBlock + kScanSlack);
  search.candidates.keys.reserve(limit + kScanBlock + kScanSlack);
  // The scan also detects a sample that is not finite: it finds keys from infinity up with any guess.
  const ScanEnd end = collect_at_least(values, std::min(key_min, kInfinityKey), limit, search.candidates);
  if (end == ScanEnd::kNonFinite) return non_finite();
  const uint64_t found = search.candidates.keys.size();
  if (end == ScanEnd::kComplete && found >= k) {
    search.threshold = threshold_at(search.candidates.keys, k);
    return search;
  }
  if (end == ScanEnd::kComplete && key_min == 1) {  // all that is not zero was found: the rest of k are zeros
    search.threshold = {0, k - found};
    search.from_values = true;
    return search;
  }
  return search_top_k_by_radix(values, k);
}

Result<TopKSearch> search_top_k_by_radix(std::span<const float> values, uint64_t k) {
  const auto key = kth_largest_key_of_values(values, k);
  if (!key) return non_finite();
  TopKSearch search;
  const uint64_t above = count_at_least(values, *key + 1).found;
  search.threshold = {*key, k - above};
  search.from_values = true;
  return search;
}

Status emit_top_k(std::span<const float> values, uint64_t k, Zeros zeros, const Result<TopKSearch>& search,
                  IndexBuffer& positions) {
  positions.clear();
  if (!search) return std::unexpected(search.error());
  TopKThreshold threshold = search->threshold;
  if (zeros == Zeros::kSkipped && threshold.key == 0) threshold.ties = 0;
  if (search->from_values) {
    emit_from_values(values, threshold, k, positions);
    return {};
  }
  emit_from_candidates(search->candidates, threshold, k, positions);
  return {};
}

void emit_largest(const Candidates& candidates, uint64_t k, IndexBuffer& positions) {
  emit_from_candidates(candidates, threshold_at(candidates.keys, k), k, positions);
}

}  // namespace millrace
