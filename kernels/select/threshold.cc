#include <cmath>
#include <limits>

#include "kernels/base/words.h"
#include "kernels/magnitude/magnitude_scan.h"
#include "kernels/select/registry.h"
#include "kernels/select/top_k.h"

namespace millrace {
namespace {

class ThresholdSelector final : public Selector {
 public:
  explicit ThresholdSelector(float threshold) : threshold_(threshold) {}
  Status select(const StreamView& accumulator, const SelectContext&, IndexBuffer& positions) override {
    return select_threshold(accumulator.values, threshold_, accumulator.count(), positions);
  }

 private:
  float threshold_;
};

std::unique_ptr<Selector> make_threshold(const SelectionSpec& spec, uint64_t) {
  return std::make_unique<ThresholdSelector>(threshold_in_f32(spec.threshold));
}

constexpr SelectionParameter kThresholdParameters[] = {
    {.form = "MAGNITUDE",
     .amount = SelectionAmount::kMagnitude,
     .set = [](std::string_view word,
               SelectionSpec& spec) { return assign_number(word, spec.threshold) && spec.threshold > 0; },
     .value = [](const SelectionSpec& spec) { return SelectionNumber(spec.threshold); }}};

Status validate_threshold(const SelectionSpec& spec) {
  if (spec.threshold > 0 && spec.threshold <= double{std::numeric_limits<float>::max()}) return {};
  return fail(ErrorCode::kInvalidArgument, "a fixed threshold is above 0 and at most the largest f32, 3.4e38");
}

}  // namespace

float threshold_in_f32(double threshold) {
  const float nearest = static_cast<float>(threshold);
  if (static_cast<double>(nearest) >= threshold) return nearest;
  return std::nextafter(nearest, std::numeric_limits<float>::infinity());
}

Status select_threshold(std::span<const float> values, float threshold, uint64_t count_max, IndexBuffer& positions) {
  positions.clear();
  if (!(threshold > 0)) return fail(ErrorCode::kInvalidArgument, "a threshold is above 0");
  if (values.size() > kDimensionMax) return fail(ErrorCode::kLimitExceeded, "more than 2^32 values to select from");
  ScanEnd end = collect_positions(values, magnitude_key(threshold), count_max, positions);
  if (end == ScanEnd::kOverLimit) {
    // Cut to the first ones: look again, for all of them, and see that the rest is finite.
    end = collect_positions(values, magnitude_key(threshold), values.size(), positions);
    if (end == ScanEnd::kComplete) positions.resize(count_max);
  }
  if (end == ScanEnd::kComplete) return {};
  positions.clear();
  return fail(ErrorCode::kNonFinite, "NaN or infinity among the values to select from");
}

SelectionEntry threshold_selection() {
  return {.info = {.selection = SelectionId::kThreshold,
                   .name = "threshold",
                   .paper = "[Strom15]; [RedSync19, 1]",
                   .summary = "every entry with |x| >= a fixed threshold",
                   .parameters = kThresholdParameters,
                   .may_alternate_signs = true,
                   .alias = "fixed"},
          .validate = validate_threshold,
          .make = make_threshold};
}

}  // namespace millrace
