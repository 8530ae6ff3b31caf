#include <cmath>
#include <limits>

#include "kernels/select/magnitude_scan.h"
#include "kernels/select/registry.h"
#include "kernels/select/top_k.h"

namespace millrace {
namespace {

// The smallest T that is not below the threshold: |x| >= it is then the same as |x| >= threshold in f64.
template <typename T>
T rounded_up(double threshold) {
  const T nearest = static_cast<T>(threshold);
  if (static_cast<double>(nearest) >= threshold) return nearest;
  return std::nextafter(nearest, std::numeric_limits<T>::infinity());
}

template <typename T>
class ThresholdSelector final : public Selector<T> {
 public:
  explicit ThresholdSelector(T threshold) : threshold_(threshold) {}
  Status select(const StreamView<T>& accumulator, const SelectContext&, IndexBuffer& positions) override {
    return select_threshold(accumulator.values, threshold_, accumulator.count(), positions);
  }

 private:
  T threshold_;
};

template <typename T>
std::unique_ptr<Selector<T>> make_threshold(const SelectionSpec& spec, uint64_t) {
  return std::make_unique<ThresholdSelector<T>>(rounded_up<T>(spec.threshold));
}

Status validate_threshold(const SelectionSpec& spec) {
  if (std::isfinite(spec.threshold) && spec.threshold > 0) return {};
  return fail(ErrorCode::kInvalidArgument, "a fixed threshold is finite and above 0");
}

}  // namespace

template <typename T>
Status select_threshold(std::span<const T> values, T threshold, uint64_t count_max, IndexBuffer& positions) {
  positions.clear();
  if (!(threshold > 0)) return fail(ErrorCode::kInvalidArgument, "a threshold is above 0");
  if (values.size() > kDimensionMax) return fail(ErrorCode::kLimitExceeded, "more than 2^32 values to select from");
  ScanEnd end = collect_positions(values, magnitude_key(threshold), count_max, positions);
  if (end == ScanEnd::kOverLimit) {
    // Cut to the first ones: look again, for all of them, and see that the rest is finite.
    end = collect_positions<T>(values, magnitude_key(threshold), values.size(), positions);
    if (end == ScanEnd::kComplete) positions.resize(count_max);
  }
  if (end == ScanEnd::kComplete) return {};
  positions.clear();
  return fail(ErrorCode::kNonFinite, "NaN or infinity among the values to select from");
}

SelectionEntry threshold_selection() {
  return {{Selection::kThreshold, "threshold", "Strom 2015 (RedSync 1)", "every entry with |x| >= a fixed threshold",
           SelectionAmount::kMagnitude, SelectionExtra::kNone, SelectionUse::kKeepsRest, true, "fixed"},
          validate_threshold,
          make_threshold<float>,
          make_threshold<double>};
}

template Status select_threshold<float>(std::span<const float>, float, uint64_t, IndexBuffer&);
template Status select_threshold<double>(std::span<const double>, double, uint64_t, IndexBuffer&);

}  // namespace millrace
