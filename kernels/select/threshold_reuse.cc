#include <algorithm>
#include <cmath>

#include "kernels/magnitude/magnitude_scan.h"
#include "kernels/magnitude/radix_select.h"
#include "kernels/select/registry.h"
#include "kernels/select/top_k.h"

namespace millrace {
namespace {

// The slope is measured between the k-th and this part of k above it: near, because it changes fast at a bounded tail.
constexpr uint64_t kSlopePart = 8;
constexpr double kSlopeMax = 1e6;  // equal magnitudes: no move of the threshold is small enough.
// A count within 1/32 of k is noise, not drift: the threshold stays as it is.
constexpr double kDeadBand = 1.0 / 32;

/// Finds the k-th largest magnitude exactly once a period and reuses it in between ([OkTopk22, 3.1.3]: it changes
/// slowly).
///
/// The paper reuses it unchanged. Then a scale that grows by 1 % a step selects 8 % more entries each step (Gaussian, 1
/// % density), twice k after ten. So after a step whose count is off, the count moves the threshold. Near the threshold
/// the count falls as threshold^-slope, with the slope measured at the exact evaluation. The rest is bounds:
///
///   - count over 2k or under k/2        the exact top-k is taken at once (and memory stays within O(k))
///   - count outside [3/4 k, 4/3 k]      the next step evaluates exactly
///
/// The state is three numbers; a selector that starts without them evaluates exactly.
///
/// Source   [OkTopk22, 3.1.3, algorithm 1]; differs in: the correction, and the bounds.
class ThresholdReuseSelector final : public Selector {
 public:
  ThresholdReuseSelector(uint64_t k, uint32_t period) : k_(k), period_(period) {}

  Status select(const StreamView& accumulator, const SelectContext&, IndexBuffer& positions) override {
    const std::span<const float> values = accumulator.values;
    const uint64_t k = std::min<uint64_t>(k_, values.size());
    if (state_.steps_left == 0) return evaluate(values, k, positions);
    const ScanEnd end = collect_positions(values, magnitude_key(state_.threshold), 2 * k, positions);
    if (end == ScanEnd::kNonFinite) {
      positions.clear();
      return fail(ErrorCode::kNonFinite, "NaN or infinity among the values to select from");
    }
    if (end == ScanEnd::kOverLimit || positions.size() < k / 2) return evaluate(values, k, positions);
    follow(static_cast<double>(positions.size()) / static_cast<double>(std::max<uint64_t>(k, 1)));
    return {};
  }

 private:
  struct State {
    float threshold = 0;
    double slope = 1;
    uint32_t steps_left = 0;  // that reuse the threshold; 0: evaluate
  };

  Status evaluate(std::span<const float> values, uint64_t k, IndexBuffer& positions) {
    if (auto done = select_top_k_nonzero(values, k, positions); !done) return done;
    state_ = {};
    // Fewer than k entries are not zero: there is no threshold that is worth keeping.
    if (positions.empty() || positions.size() < k) return {};
    Buffer<MagnitudeKey> keys(positions.size());
    std::transform(positions.begin(), positions.end(), keys.begin(),
                   [&](uint32_t position) { return magnitude_key(values[position]); });
    state_.threshold = magnitude_of_key(*std::min_element(keys.begin(), keys.end()));
    state_.slope = kSlopeMax;
    state_.steps_left = period_ - 1;
    const uint64_t inner = k - k / kSlopePart;
    if (inner == k) return {};
    Buffer<MagnitudeKey> scratch;
    const float higher = magnitude_of_key(kth_largest_key(keys, inner, scratch));
    const double fall = std::log(static_cast<double>(k) / static_cast<double>(inner));
    const double rise = std::log(static_cast<double>(higher) / static_cast<double>(state_.threshold));
    state_.slope = std::clamp(fall / rise, 1.0, kSlopeMax);
    return {};
  }

  // Moves the threshold after a step that selected `over_k` times k entries.
  void follow(double over_k) {
    --state_.steps_left;
    if (over_k < 3.0 / 4 || over_k > 4.0 / 3) state_.steps_left = 0;
    if (std::abs(over_k - 1) <= kDeadBand) return;
    const double moved = static_cast<double>(state_.threshold) * std::pow(over_k, 1 / state_.slope);
    // Denormal thresholds may round to 0, which would select zeros; huge ones to infinity, which no finite value
    // reaches.
    const MagnitudeKey key = magnitude_key(static_cast<float>(moved));
    state_.threshold = magnitude_of_key(std::clamp<MagnitudeKey>(key, 1, kInfinityKey - 1));
  }

  uint64_t k_;
  uint32_t period_;
  State state_;
};

std::unique_ptr<Selector> make_threshold_reuse(const SelectionSpec& spec, uint64_t dimension) {
  return std::make_unique<ThresholdReuseSelector>(k_of(spec, dimension), spec.period);
}

Status validate_reuse(const SelectionSpec& spec) {
  if (spec.period == 0) return fail(ErrorCode::kInvalidArgument, "the period of threshold reuse is at least 1 step");
  return validate_density_or_k(spec);
}

}  // namespace

SelectionEntry threshold_reuse_selection() {
  return {.info = {.selection = SelectionId::kThresholdReuse,
                   .name = "threshold_reuse",
                   .paper = "[OkTopk22, 3.1.3]",
                   .summary = "the exact k-th magnitude once a period, reused in between; about k entries",
                   .parameters = kShareAndPeriod,
                   .reuses_threshold = true},
          .validate = validate_reuse,
          .make = make_threshold_reuse};
}

}  // namespace millrace
