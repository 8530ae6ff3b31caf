#include <algorithm>

#include "kernels/select/binary_search.h"
#include "kernels/select/registry.h"
#include "kernels/threshold/sampled_threshold.h"

namespace millrace {
namespace {

// "The interval of search is empirically set to 5" [RedSync19, 2.1].
constexpr uint32_t kSampledPeriod = 5;

/// The threshold of the binary search, found once a period and reused unchanged in between (the paper: every 5 steps).
///
/// Source   [RedSync19, 2.1] ("sampled threshold binary search selection"); differs in: the bounds.
class SampledSelector final : public Selector {
 public:
  SampledSelector(uint64_t k, uint32_t period) : k_(k), threshold_(period) {}

  Status select(const StreamView& accumulator, const SelectContext&, IndexBuffer& positions) override {
    const std::span<const float> values = accumulator.values;
    const uint64_t k = std::min<uint64_t>(k_, values.size());
    positions.clear();
    if (k == 0) return {};
    if (threshold_.is_due()) return search(values, k, positions);
    const ScanEnd end = collect_positions(values, threshold_.key(), SampledThreshold::count_max(k), positions);
    if (end == ScanEnd::kNonFinite) {
      positions.clear();
      return fail(ErrorCode::kNonFinite, "NaN or infinity among the values to select from");
    }
    if (end == ScanEnd::kComplete && threshold_.accept(positions.size(), k)) return {};
    return search(values, k, positions);
  }

  Retained retained() const override { return threshold_.retained(); }
  Status restore_retained(std::span<const uint64_t> retained) override { return threshold_.restore_retained(retained); }

 private:
  Status search(std::span<const float> values, uint64_t k, IndexBuffer& positions) {
    const auto key = select_k_to_2k(values, k, positions);
    if (!key) return std::unexpected(key.error());
    threshold_.keep(*key);
    return {};
  }

  uint64_t k_;
  SampledThreshold threshold_;
};

std::unique_ptr<Selector> make_sampled(const SelectionSpec& spec, uint64_t dimension) {
  return std::make_unique<SampledSelector>(k_of(spec, dimension), spec.period);
}

Status validate_sampled(const SelectionSpec& spec) {
  if (spec.period == 0) return fail(ErrorCode::kInvalidArgument, "the period of a reused threshold is at least 1 step");
  return validate_density_or_k(spec);
}

}  // namespace

SelectionEntry sampled_selection() {
  // No alternating signs: the threshold found for one sign would be the next step's for the other [RedSync19, 2.1.1].
  return {.info = {.selection = SelectionId::kSampled,
                   .name = "sampled",
                   .paper = "[RedSync19, 2.1]",
                   .summary = "the threshold of binary_search, reused for a period",
                   .parameters = kShareAndPeriod,
                   .reuses_threshold = true},
          .validate = validate_sampled,
          .make = make_sampled,
          .takes_all = k_is_all,
          .defaults = {.period = kSampledPeriod}};
}

}  // namespace millrace
