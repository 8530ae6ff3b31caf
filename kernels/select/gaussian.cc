#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/draw/draw.h"
#include "kernels/magnitude/decisions.h"
#include "kernels/magnitude/tail_sums.h"
#include "kernels/select/registry.h"
#include "kernels/select/top_k.h"

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

/// Selects every entry over the threshold that would leave k if the values were normal, of their mean and deviation.
/// They are not: gradients have more near 0 and further out. The threshold is too high, so it is scaled until at least
/// 3k/4 are selected. The paper says "gradually scale"; here one step is by the factor that an exponential tail would
/// need, 0.5 to 0.95. Where the steps go past each other the middle is next.
///
/// It bounds nothing from above ("overestimates k in the first few epochs"); here more than 2k are not taken, so that
/// memory stays O(k). The text does not say that both tails count; they do.
///
/// Cost     a read pass for mean and deviation, one or more for thresholds.
/// Source   [GaussianK19]; [OkTopk22, 2, 5.4].
class GaussianSelector final : public Selector {
 public:
  explicit GaussianSelector(uint64_t k) : k_(k) {}

  Status select(const StreamView& accumulator, const SelectContext&, IndexBuffer& positions) override {
    positions.clear();
    const std::span<const float> values = accumulator.values;
    const TailSums all = tail_sums(values, kInfinityKey);
    if (all.above > 0) return refuse_non_finite();
    if (all.magnitude == 0) return {};
    const uint64_t k = std::min<uint64_t>(k_, values.size());
    GaussianSearch search(normal_key(all, values.size(), k), values.size(), k);
    while (search.goes_on()) {
      const ScanEnd end = collect_positions(values, search.key(), search.count_max(), positions);
      if (search.accept(end == ScanEnd::kOverLimit ? std::nullopt : std::optional<uint64_t>(positions.size())))
        return {};
    }
    return select_top_k_nonzero(values, k, positions);
  }

 private:
  uint64_t k_;
};

std::unique_ptr<Selector> make_gaussian(const SelectionSpec& spec, uint64_t dimension) {
  return std::make_unique<GaussianSelector>(k_of(spec, dimension));
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

SelectionEntry gaussian_selection() {
  return {
      .info =
          {.selection = SelectionId::kGaussian,
           .name = "gaussian",
           .paper = "[GaussianK19]; [OkTopk22, 5.4]",
           .summary =
               "a threshold from the values' mean and deviation, scaled until at least 3k/4 are selected, 2k at most",
           .parameters = kShareAlone},
      .validate = validate_density_or_k,
      .make = make_gaussian};
}

}  // namespace millrace
