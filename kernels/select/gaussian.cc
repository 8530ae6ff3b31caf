#include <algorithm>
#include <optional>

#include "kernels/draw/draw.h"
#include "kernels/magnitude/tail_sums.h"
#include "kernels/select/registry.h"
#include "kernels/select/top_k.h"
#include "kernels/threshold/gaussian_search.h"

namespace millrace {
namespace {

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
