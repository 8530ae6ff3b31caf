#include "worker/switch/grid.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/base/check.h"

namespace millrace::worker {
namespace {

constexpr int kHeadroomBits = 2;
constexpr int kFallMax = 4;
constexpr int kFallOfZeros = 8;
constexpr double kF32Integers = 1 << 24;

int bits_of(int32_t value) {
  const int64_t wide = value;
  return static_cast<int>(std::bit_width(static_cast<uint64_t>(wide < 0 ? -wide : wide)));
}

}  // namespace

int32_t grid_limit(protocol::WindowValueCodec codec, uint32_t workers) {
  MILLRACE_CHECK(workers >= 1);
  const uint32_t share = static_cast<uint32_t>(INT32_MAX) / workers;
  if (codec == protocol::WindowValueCodec::kFixed16) return static_cast<int32_t>(std::min<uint32_t>(share, INT16_MAX));
  return static_cast<int32_t>(std::bit_floor(share));
}

int32_t to_grid(float value, int exponent, int32_t limit) {
  const double scaled = std::ldexp(static_cast<double>(value), -exponent);
  if (std::fabs(scaled) < limit) return static_cast<int32_t>(std::nearbyint(scaled));
  // From 2^24 steps on an f32 has not all integers: only a power of two can be taken off it without rounding.
  const bool is_coarse = std::fabs(scaled) >= kF32Integers;
  const auto sent = is_coarse ? static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(limit))) : limit;
  return scaled > 0 ? sent : -sent;
}

float grid_remainder(float value, int32_t sent, int exponent) {
  return static_cast<float>(static_cast<double>(value) - std::ldexp(static_cast<double>(sent), exponent));
}

ExponentTable::ExponentTable(int initial, int32_t limit) : limit_(limit), state_{.whole = initial, .windows = {}} {
  MILLRACE_CHECK(initial >= kExponentMin && initial <= kExponentMax, initial);
}

int ExponentTable::of(uint32_t window) const {
  const auto found = state_.windows.find(window);
  return found != state_.windows.end() ? found->second : state_.whole;
}

void ExponentTable::observe(uint32_t window, int exponent, std::span<const int32_t> sums) {
  if (sums.empty()) return;
  int bits = 0;
  for (const int32_t sum : sums) bits = std::max(bits, bits_of(sum));
  seen_[window] = {exponent, bits};
}

int ExponentTable::next(int before, int highest_bit) const {
  const int wanted = highest_bit + kHeadroomBits - (bits_of(limit_) - 1);
  return std::clamp(std::max(wanted, before - kFallMax), kExponentMin, kExponentMax);
}

void ExponentTable::end_step() {
  if (seen_.empty()) return;
  int whole_bit = INT32_MIN;  // of the whole update: exponent + bits
  for (const auto& [window, seen] : seen_) {
    if (seen.bits == 0) {
      state_.windows[window] = std::max(seen.exponent - kFallOfZeros, kExponentMin);
      continue;
    }
    whole_bit = std::max(whole_bit, seen.exponent + seen.bits);
    state_.windows[window] = next(seen.exponent, seen.exponent + seen.bits);
  }
  state_.whole =
      whole_bit == INT32_MIN ? std::max(state_.whole - kFallOfZeros, kExponentMin) : next(state_.whole, whole_bit);
  seen_.clear();
}

void ExponentTable::restore(State state) {
  state_ = std::move(state);
  seen_.clear();
}

}  // namespace millrace::worker
