#include "worker/peer/oktopk/oktopk_threshold.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

#include "worker/peer/collectives/integer_collectives.h"

namespace millrace::peer {
namespace {

/// The digit that the `wanted`-th largest has, counted from the largest; wanted becomes its place among those of that
/// digit.
Result<size_t> digit_of(const std::vector<uint64_t>& counts, uint64_t& wanted) {
  for (size_t digit = counts.size(); digit-- > 0;) {
    if (wanted <= counts[digit]) return digit;
    wanted -= counts[digit];
  }
  return fail(ErrorCode::kMalformed, "histograms of magnitudes do not add up");
}

}  // namespace

int threshold_digit_bits(uint64_t k) {
  constexpr int kBitsMin = 4, kBitsMax = 11;
  return std::clamp(static_cast<int>(std::bit_width(k)) - 4, kBitsMin, kBitsMax);
}

Task<Result<MagnitudeKey>> kth_largest_of_all(Channel& channel, std::span<const float> values, uint64_t k,
                                              uint32_t first_tag) {
  using Key = MagnitudeKey;
  const int digit_bits = threshold_digit_bits(k);
  std::vector<Key> keys;
  keys.reserve(values.size());
  for (const float value : values) {
    if (value != 0) keys.push_back(magnitude_key(value));
  }
  int left = kThresholdBits;
  Key prefix = 0;
  uint64_t wanted = k;
  for (bool first = true; left > 0; first = false, first_tag += kNumberTags) {
    const int bits = std::min(digit_bits, left);
    left -= bits;
    std::vector<uint64_t> counts(size_t{1} << bits, 0);
    const Key mask = (Key{1} << bits) - 1;
    for (const Key key : keys) ++counts[(key >> left) & mask];
    const Result<std::vector<uint64_t>> sums = co_await sum_numbers(channel, std::move(counts), first_tag);
    if (!sums) co_return std::unexpected(sums.error());
    if (first && std::accumulate(sums->begin(), sums->end(), uint64_t{0}) <= k) co_return Key{1};
    const Result<size_t> digit = digit_of(*sums, wanted);
    if (!digit) co_return std::unexpected(digit.error());
    prefix = prefix << bits | static_cast<Key>(*digit);
    std::erase_if(keys, [&](Key key) { return key >> left != prefix; });
  }
  // Of hostile sums: a threshold of 0 would take zeros.
  co_return std::max(prefix, Key{1});
}

}  // namespace millrace::peer
