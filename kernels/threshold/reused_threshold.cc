#include "kernels/threshold/reused_threshold.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace millrace {
namespace {

// The slope is measured between the k-th and this part of k above it: near, because it changes fast at a bounded tail.
constexpr uint64_t kSlopePart = 8;
constexpr double kSlopeMax = 1e6;  // equal magnitudes: no move of the threshold is small enough.
// A count within 1/32 of k is noise, not drift: the threshold stays as it is.
constexpr double kDeadBand = 1.0 / 32;

}  // namespace

uint64_t ReusedThreshold::inner_rank(uint64_t k) { return k - k / kSlopePart; }

bool ReusedThreshold::accept(uint64_t count, uint64_t k) {
  if (count > count_max(k) || 2 * count < k) return false;
  follow(static_cast<double>(count) / static_cast<double>(std::max<uint64_t>(k, 1)));
  return true;
}

void ReusedThreshold::keep(uint64_t k, MagnitudeKey at, MagnitudeKey inner) {
  threshold_ = magnitude_of_key(at);
  slope_ = kSlopeMax;
  steps_left_ = period_ - 1;
  if (inner_rank(k) == k) return;
  const double fall = std::log(static_cast<double>(k) / static_cast<double>(inner_rank(k)));
  const double rise = std::log(static_cast<double>(magnitude_of_key(inner)) / static_cast<double>(threshold_));
  slope_ = std::clamp(fall / rise, 1.0, kSlopeMax);
}

void ReusedThreshold::forget() { *this = ReusedThreshold(period_); }

Retained ReusedThreshold::retained() const {
  return {magnitude_key(threshold_), std::bit_cast<uint64_t>(slope_), steps_left_};
}

Status ReusedThreshold::restore_retained(std::span<const uint64_t> retained) {
  RetainedReader reader(retained);
  const auto key = static_cast<MagnitudeKey>(reader.next(0, kInfinityKey - 1));
  // Numbers from 1 on are in the order of their bits.
  const double slope =
      std::bit_cast<double>(reader.next(std::bit_cast<uint64_t>(1.0), std::bit_cast<uint64_t>(kSlopeMax)));
  const auto steps_left = static_cast<uint32_t>(reader.next(0, key == 0 ? 0 : period_ - 1));
  if (Status status = reader.end(); !status) return status;
  threshold_ = magnitude_of_key(key);
  slope_ = slope;
  steps_left_ = steps_left;
  return {};
}

// Moves the threshold after a step that selected `over_k` times k entries.
void ReusedThreshold::follow(double over_k) {
  --steps_left_;
  if (over_k < 3.0 / 4 || over_k > 4.0 / 3) steps_left_ = 0;
  if (std::abs(over_k - 1) <= kDeadBand) return;
  const double moved = static_cast<double>(threshold_) * std::pow(over_k, 1 / slope_);
  // Denormal thresholds may round to 0, which would select zeros; huge ones to infinity, which no finite value
  // reaches.
  const MagnitudeKey key = magnitude_key(static_cast<float>(moved));
  threshold_ = magnitude_of_key(std::clamp<MagnitudeKey>(key, 1, kInfinityKey - 1));
}

}  // namespace millrace
