#include "kernels/grid/reselect_sums.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "kernels/grid/reselect_kernels.h"

namespace millrace {
namespace {

constexpr int kExponentLowest = -128;

/// From an f64's exponent and fraction, as one number, to the bin.
int bins_moved(int8_t exponent) {
  constexpr int kBias = 1023;
  return (exponent - kExponentLowest - kBias) * (1 << SumHistogram::kFractionBits) + 1;
}

uint32_t magnitude(int32_t value) {
  const auto bits = static_cast<uint32_t>(value);
  return value < 0 ? 0 - bits : bits;
}

/// The least magnitude of an integer in `bin` or above, on the scale of 2^exponent; 2^32 where there is none.
uint64_t least_of_bin(uint32_t bin, int8_t exponent) {
  constexpr uint32_t kFractions = 1U << SumHistogram::kFractionBits;
  const uint32_t place = (bin - 1) >> SumHistogram::kFractionBits;
  const int leading = static_cast<int>(place) - exponent + kExponentLowest;
  if (leading < 0) return 1;
  constexpr int kLeadingMax = 31;
  if (leading > kLeadingMax) return uint64_t{1} << 32;
  // In steps of the bin's 32nd part of its leading bit; below 32 an integer has fewer bits behind that, so round up.
  const uint64_t parts = kFractions + ((bin - 1) & (kFractions - 1));
  return ((parts << leading) + kFractions - 1) >> SumHistogram::kFractionBits;
}

/// Which side of the cut a value is on, without its bin.
struct Sides {
  uint64_t at_least;  ///< magnitudes of the boundary bin
  uint64_t above;     ///< of the bins above it
};

/// One window's: how many stay. magnitude_of is monotone in the bin.
template <typename Index, typename Value, typename MagnitudeOf>
uint32_t select_in_window(const SumThreshold& threshold, const Sides& sides, std::span<Index> indices,
                          std::span<Value> values, const MagnitudeOf& magnitude_of) {
  uint64_t at_boundary = 0;
  for (const Value value : values) {
    const uint64_t size = magnitude_of(value);
    at_boundary += static_cast<uint64_t>(size >= sides.at_least) - static_cast<uint64_t>(size >= sides.above);
  }
  // in_bin < 2^48 and a window has at most 2^16 indices: no overflow.
  uint64_t quota = (at_boundary * threshold.take + threshold.in_bin / 2) / threshold.in_bin;
  uint32_t kept = 0;
  for (size_t at = 0; at < indices.size(); ++at) {
    const uint64_t size = magnitude_of(values[at]);
    const bool is_above = size >= sides.above;
    const bool ties = !is_above & (size >= sides.at_least) & (quota > 0);
    quota -= ties;
    indices[kept] = indices[at];
    values[kept] = values[at];
    kept += is_above | ties;
  }
  return kept;
}

}  // namespace

uint32_t SumHistogram::bin_of(int32_t sum, int8_t exponent) {
  // An f64 holds every i32, and has the leading bit's exponent over the fraction already, counted from 2^-1023.
  constexpr int kDropped = 52 - static_cast<int>(kFractionBits);
  const auto bits = std::bit_cast<uint64_t>(static_cast<double>(sum)) & ~(uint64_t{1} << 63);
  const auto bin = static_cast<uint32_t>(static_cast<int>(bits >> kDropped) + bins_moved(exponent));
  return bits == 0 ? 0 : bin;
}

uint32_t SumHistogram::bin_of(float sum) {
  const uint32_t bits = std::bit_cast<uint32_t>(sum) & 0x7fff'ffff;
  // An f32 has its leading bit's exponent over the fraction already, counted from 2^-127 and not from 2^-128.
  constexpr uint32_t kDropped = 23 - kFractionBits;
  return bits == 0 ? 0 : 1 + (1U << kFractionBits) + (bits >> kDropped);
}

void SumHistogram::add(const MagnitudeHistogram& sums) {
  constexpr uint32_t kFiner = 7 - kFractionBits;  // bits of fraction that its bins have more
  for (const MagnitudeHistogram::Bin& one : sums.bins()) {
    counts_[1 + (1U << kFractionBits) + (one.bin >> kFiner)] += one.count;
  }
  total_ += sums.total();
}

void SumHistogram::add(std::span<const int32_t> sums, int8_t exponent) {
  static_assert(kFractionBits == kSumBinFractionBits);
  std::array<uint32_t, 512> bins;
  for (size_t first = 0; first < sums.size(); first += bins.size()) {
    const size_t count = std::min(bins.size(), sums.size() - first);
    bins_of(sums.subspan(first, count), bins_moved(exponent), std::span(bins).first(count));
    for (size_t at = 0; at < count; ++at) ++counts_[bins[at]];
  }
  total_ += sums.size() - std::exchange(counts_[0], 0);  // zeros do not count
}

void SumHistogram::add(std::span<const float> sums) {
  for (const float sum : sums) {
    const uint32_t bin = bin_of(sum);
    counts_[bin] += bin != 0;
    total_ += bin != 0;
  }
}

void SumHistogram::clear() {
  std::ranges::fill(counts_, 0);
  total_ = 0;
}

SumThreshold threshold_of(const SumHistogram& histogram, uint64_t k) {
  if (k == 0 || histogram.total() <= k) return {};
  uint64_t above = 0;
  for (uint32_t bin = SumHistogram::kBins - 1; bin > 0; --bin) {
    const uint64_t here = histogram.count(bin);
    if (above + here >= k) return {bin, k - above, here};
    above += here;
  }
  return {};
}

uint32_t apply_threshold(const SumThreshold& threshold, int8_t exponent, std::span<uint16_t> indices,
                         std::span<int32_t> values) {
  if (threshold.bin == 0) return static_cast<uint32_t>(indices.size());
  const Sides sides{least_of_bin(threshold.bin, exponent), least_of_bin(threshold.bin + 1, exponent)};
  if (sides.at_least > UINT32_MAX) return 0;
  // First drops the entries below the boundary, which are most of them; then separates the few that are left.
  const uint32_t left = keep_at_least(static_cast<uint32_t>(sides.at_least), indices, values);
  return select_in_window(threshold, sides, indices.first(left), values.first(left),
                          [](int32_t value) { return uint64_t{magnitude(value)}; });
}

uint32_t apply_threshold(const SumThreshold& threshold, uint32_t window_indices, std::span<uint32_t> indices,
                         std::span<float> values) {
  if (threshold.bin == 0) return static_cast<uint32_t>(indices.size());
  uint32_t kept = 0;
  for (size_t first = 0; first < indices.size();) {
    const uint64_t end = (uint64_t{indices[first]} / window_indices + 1) * window_indices;
    const auto last = std::ranges::lower_bound(indices.subspan(first), end, {}, [](uint32_t i) { return uint64_t{i}; });
    const size_t count = static_cast<size_t>(last - indices.subspan(first).begin());
    const uint32_t here = select_in_window(threshold, {threshold.bin, uint64_t{threshold.bin} + 1},
                                           indices.subspan(first, count), values.subspan(first, count),
                                           [](float value) { return uint64_t{SumHistogram::bin_of(value)}; });
    std::copy_n(indices.begin() + static_cast<ptrdiff_t>(first), here, indices.begin() + kept);
    std::copy_n(values.begin() + static_cast<ptrdiff_t>(first), here, values.begin() + kept);
    kept += here;
    first += count;
  }
  return kept;
}

void Reselection::on_claim(uint32_t step) {
  if (k_ == 0) return;
  // An opening that goes back has nothing to go by; an honest worker never causes it.
  if (counting_ && step == step_) return;
  threshold_ = counting_ && step_ + 1 == step ? threshold_of(histogram_, k_) : SumThreshold{};
  histogram_.clear();
  step_ = step;
  counting_ = true;
}

uint32_t Reselection::on_close(uint32_t step, int8_t exponent, std::span<uint16_t> indices, std::span<int32_t> values) {
  const auto all = static_cast<uint32_t>(indices.size());
  if (k_ == 0 || !counting_ || step != step_) return all;
  histogram_.add(values, exponent);
  return apply_threshold(threshold_, exponent, indices, values);
}

void Reselection::reset() {
  histogram_.clear();
  threshold_ = {};
  counting_ = false;
}

}  // namespace millrace
