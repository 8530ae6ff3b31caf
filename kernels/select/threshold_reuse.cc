#include <algorithm>
#include <cmath>

#include "kernels/magnitude/decisions.h"
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
/// Source   [OkTopk22, 3.1.3, algorithm 1]; differs in: the correction, and the bounds.
class ThresholdReuseSelector final : public Selector {
 public:
  ThresholdReuseSelector(uint64_t k, uint32_t period) : k_(k), threshold_(period) {}

  Status select(const StreamView& accumulator, const SelectContext&, IndexBuffer& positions) override {
    const std::span<const float> values = accumulator.values;
    const uint64_t k = std::min<uint64_t>(k_, values.size());
    if (threshold_.is_due()) return evaluate(values, k, positions);
    const ScanEnd end = collect_positions(values, threshold_.key(), ReusedThreshold::count_max(k), positions);
    if (end == ScanEnd::kNonFinite) {
      positions.clear();
      return fail(ErrorCode::kNonFinite, "NaN or infinity among the values to select from");
    }
    if (end == ScanEnd::kComplete && threshold_.accept(positions.size(), k)) return {};
    return evaluate(values, k, positions);
  }

 private:
  Status evaluate(std::span<const float> values, uint64_t k, IndexBuffer& positions) {
    if (auto done = select_top_k_nonzero(values, k, positions); !done) return done;
    if (positions.empty() || positions.size() < k) {
      threshold_.forget();
      return {};
    }
    Buffer<MagnitudeKey> keys(positions.size());
    std::transform(positions.begin(), positions.end(), keys.begin(),
                   [&](uint32_t position) { return magnitude_key(values[position]); });
    Buffer<MagnitudeKey> scratch;
    const MagnitudeKey inner = kth_largest_key(keys, ReusedThreshold::inner_rank(k), scratch);
    threshold_.keep(k, *std::min_element(keys.begin(), keys.end()), inner);
    return {};
  }

  uint64_t k_;
  ReusedThreshold threshold_;
};

std::unique_ptr<Selector> make_threshold_reuse(const SelectionSpec& spec, uint64_t dimension) {
  return std::make_unique<ThresholdReuseSelector>(k_of(spec, dimension), spec.period);
}

Status validate_reuse(const SelectionSpec& spec) {
  if (spec.period == 0) return fail(ErrorCode::kInvalidArgument, "the period of threshold reuse is at least 1 step");
  return validate_density_or_k(spec);
}

}  // namespace

uint64_t ReusedThreshold::inner_rank(uint64_t k) { return k - k / kSlopePart; }

bool ReusedThreshold::accept(uint64_t count, uint64_t k) {
  if (count > count_max(k) || count < k / 2) return false;
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
