#include "kernels/threshold/gaussian_search.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/draw/draw.h"

namespace millrace {
namespace {

// How far one step scales.
constexpr double kDownMin = 0.5;
constexpr double kDownMax = 0.95;
constexpr double kUp = 1.25;

/// P(|X| >= x), X normal.
double beyond(double x, double mean, double deviation) {
  const double scale = 1 / (deviation * std::numbers::sqrt2);
  return (std::erfc((x - mean) * scale) + std::erfc((x + mean) * scale)) / 2;
}

MagnitudeKey finite_key(double threshold) { return magnitude_key(finite_magnitude(threshold)); }

/// The x that |X| reaches with probability `share`, X normal.
double normal_threshold(double share, double mean, double deviation) {
  if (!(deviation > 0)) return std::abs(mean);
  double low = 0;
  double high = std::abs(mean) + 40 * deviation;
  for (int halving = 0; halving < 64; ++halving) {
    const double middle = (low + high) / 2;
    (beyond(middle, mean, deviation) > share ? low : high) = middle;
  }
  return low;
}

}  // namespace

MagnitudeKey normal_key(const TailSums& sums, uint64_t n, uint64_t k) {
  const auto count = static_cast<double>(n);
  const double mean = sums.sum / count;
  const double deviation = std::sqrt(std::max(0.0, sums.squares / count - mean * mean));
  return finite_key(normal_threshold(static_cast<double>(k) / count, mean, deviation));
}

bool GaussianSearch::accept(std::optional<uint64_t> count) {
  ++tried_;
  const bool enough = !count || 4 * *count >= 3 * k_;
  if (count && (enough || key_ == 1)) return true;
  (enough ? too_low_ : too_high_) = key_;
  if (too_low_ > 0 && too_high_ < kInfinityKey) {
    key_ = too_low_ + (too_high_ - too_low_) / 2;
  } else {
    key_ = finite_key(static_cast<double>(magnitude_of_key(key_)) * (enough ? kUp : down(*count)));
  }
  return false;
}

// Returns the factor of the threshold that leaves k entries of an exponential tail, where it left `found`.
double GaussianSearch::down(uint64_t found) const {
  const auto all = static_cast<double>(n_);
  const double wanted = std::log(all / static_cast<double>(k_));
  const double had = std::log(all / static_cast<double>(std::max<uint64_t>(found, 1)));
  return std::clamp(wanted / had, kDownMin, kDownMax);
}

}  // namespace millrace
