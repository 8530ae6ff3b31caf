#include <algorithm>

#include "kernels/magnitude/magnitude_scan.h"
#include "kernels/magnitude/radix_select.h"
#include "kernels/select/registry.h"
#include "kernels/select/top_k.h"
#include "kernels/threshold/reused_threshold.h"

namespace millrace {
namespace {

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

  Retained retained() const override { return threshold_.retained(); }
  Status restore_retained(std::span<const uint64_t> retained) override { return threshold_.restore_retained(retained); }

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
