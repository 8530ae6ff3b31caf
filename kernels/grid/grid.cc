#include "kernels/grid/grid.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/grid/grid_kernels.h"
#include "kernels/packet/entry_sum.h"

namespace millrace {
namespace {

constexpr int kHeadroomBits = 2;
constexpr int kFallMax = 4;
constexpr int kFallOfZeros = 8;
constexpr uint32_t kF32Integers = 1 << 24;

int bits_of(int32_t value) {
  const int64_t wide = value;
  return static_cast<int>(std::bit_width(static_cast<uint64_t>(wide < 0 ? -wide : wide)));
}

int lowered(int exponent) { return std::max(exponent - kFallOfZeros, kGridExponentLowest); }

}  // namespace

int32_t exact_f32_limit(uint32_t workers) {
  MILLRACE_CHECK(workers >= 1 && workers <= kF32Integers, workers);
  return static_cast<int32_t>(std::bit_floor(kF32Integers / workers));
}

double grid_step(int exponent) {
  constexpr int kBias = 1023;
  constexpr int kFractionBits = 52;
  MILLRACE_CHECK(exponent > -kBias && exponent <= kBias, exponent);
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + kBias) << kFractionBits);
}

int32_t to_grid(float value, int exponent, int32_t limit) {
  // The product with a power of two is exact: an f32 times 2^120 is in the range of f64.
  const double scaled = static_cast<double>(value) * grid_step(-exponent);
  if (std::fabs(scaled) < limit) return static_cast<int32_t>(std::nearbyint(scaled));
  // From 2^24 steps on an f32 has not all integers: only a power of two can be taken off it without rounding.
  const bool is_coarse = std::fabs(scaled) >= kF32Integers;
  const auto sent = is_coarse ? static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(limit))) : limit;
  return scaled > 0 ? sent : -sent;
}

uint32_t to_grid(std::span<const float> values, int exponent, int32_t limit, std::span<int32_t> out) {
  const double inverse = grid_step(-exponent);
  const double most = limit;
  if (round_to_integers(values, inverse, most, out) == 0) [[likely]]
    return 0;
  uint32_t over = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    over += std::fabs(static_cast<double>(values[i]) * inverse) > most ? 1 : 0;
    out[i] = to_grid(values[i], exponent, limit);
  }
  return over;
}

float on_grid(float value, int exponent, int32_t limit) {
  return static_cast<float>(std::ldexp(static_cast<double>(to_grid(value, exponent, limit)), exponent));
}

float grid_remainder(float value, int32_t sent, int exponent) {
  return static_cast<float>(static_cast<double>(value) - static_cast<double>(sent) * grid_step(exponent));
}

ExponentTable::ExponentTable(int initial, int32_t limit, std::vector<uint32_t> groups)
    : limit_(limit), groups_(std::move(groups)) {
  MILLRACE_CHECK(initial >= kGridExponentLowest && initial <= kGridExponentHighest, initial);
  MILLRACE_CHECK(!groups_.empty() && groups_.front() == 0 && std::ranges::is_sorted(groups_), groups_.size());
  state_.whole.assign(groups_.size(), initial);
}

size_t ExponentTable::group_of(uint32_t block) const {
  return static_cast<size_t>(std::ranges::upper_bound(groups_, block) - groups_.begin()) - 1;
}

int ExponentTable::of(uint32_t block) const {
  const auto found = std::ranges::lower_bound(state_.blocks, block, {}, &std::pair<uint32_t, int>::first);
  const bool is_there = found != state_.blocks.end() && found->first == block;
  return is_there ? found->second : state_.whole[group_of(block)];
}

void ExponentTable::observe(uint32_t block, int exponent, std::span<const int32_t> sums) {
  if (sums.empty()) return;
  const int bits = static_cast<int>(std::bit_width(magnitudes_or(sums)));
  seen_.push_back({block, exponent, bits});
}

void ExponentTable::observe_values(uint32_t block, std::span<const float> sums) {
  float largest = 0;
  for (const float sum : sums) largest = std::max(largest, std::fabs(sum));
  if (largest == 0) return;
  const int exponent = of(block);
  constexpr int kTopMax = 127;  // of a finite f32
  const int top = std::isfinite(largest) ? std::ilogb(largest) : kTopMax;
  const int bits = std::clamp(top + 1 - exponent, 1, 31);
  seen_.push_back({block, exponent, bits});
}

int ExponentTable::next(int before, int highest_bit) const {
  const int wanted = highest_bit + kHeadroomBits - (bits_of(limit_) - 1);
  return std::clamp(std::max(wanted, before - kFallMax), kGridExponentLowest, kGridExponentHighest);
}

/// One of each block, ascending: its last exponent, its largest bits.
void ExponentTable::join_seen() {
  std::ranges::stable_sort(seen_, {}, &Seen::block);
  size_t kept = 0;
  for (const Seen& seen : seen_) {
    if (kept > 0 && seen_[kept - 1].block == seen.block) {
      seen_[kept - 1].exponent = seen.exponent;
      seen_[kept - 1].bits = std::max(seen_[kept - 1].bits, seen.bits);
    } else {
      seen_[kept++] = seen;
    }
  }
  seen_.resize(kept);
}

/// settled  ascending.
void ExponentTable::set(const std::vector<std::pair<uint32_t, int>>& exponents) {
  std::vector<std::pair<uint32_t, int>>& blocks = state_.blocks;
  const auto known = static_cast<std::ptrdiff_t>(blocks.size());
  std::ptrdiff_t at = 0;
  for (const auto& [block, exponent] : exponents) {
    while (at < known && blocks[static_cast<size_t>(at)].first < block) ++at;
    if (at < known && blocks[static_cast<size_t>(at)].first == block) {
      blocks[static_cast<size_t>(at)].second = exponent;
    } else {
      blocks.emplace_back(block, exponent);
    }
  }
  std::inplace_merge(blocks.begin(), blocks.begin() + known, blocks.end());
}

void ExponentTable::end_step() {
  join_seen();
  std::vector<std::pair<uint32_t, int>> exponents;
  exponents.reserve(seen_.size());
  constexpr int kNone = INT32_MIN;
  std::map<size_t, int> whole_bits;  // of the groups that have results: exponent + bits of the largest sum
  for (const Seen& seen : seen_) {
    int& whole_bit = whole_bits.try_emplace(group_of(seen.block), kNone).first->second;
    if (seen.bits == 0) {
      exponents.emplace_back(seen.block, lowered(seen.exponent));
      continue;
    }
    whole_bit = std::max(whole_bit, seen.exponent + seen.bits);
    exponents.emplace_back(seen.block, next(seen.exponent, seen.exponent + seen.bits));
  }
  set(exponents);
  for (const auto& [group, bit] : whole_bits) {
    int& whole = state_.whole[group];
    whole = bit == kNone ? lowered(whole) : next(whole, bit);
  }
  seen_.clear();
}

void ExponentTable::end_step_of_nonzero() {
  std::erase_if(seen_, [](const Seen& one) { return one.bits == 0; });
  std::vector<uint8_t> has_any(groups_.size(), 0);
  for (const Seen& seen : seen_) has_any[group_of(seen.block)] = 1;
  for (auto& [block, exponent] : state_.blocks) {
    if (has_any[group_of(block)] == 0) exponent = lowered(exponent);
  }
  for (size_t group = 0; group < groups_.size(); ++group) {
    if (has_any[group] == 0) state_.whole[group] = lowered(state_.whole[group]);
  }
  end_step();
}

void ExponentTable::restore(State state) {
  MILLRACE_CHECK(state.whole.size() == groups_.size(), state.whole.size(), groups_.size());
  state_ = std::move(state);
  seen_.clear();
}

}  // namespace millrace
