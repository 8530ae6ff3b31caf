#include <algorithm>

#include "kernels/magnitude/top_k_search.h"
#include "kernels/select/registry.h"

namespace millrace {
namespace {

/// The k entries of largest magnitude, exactly, by radix select over all of them: no sample, no threshold. The
/// reference of the others, and not slower on data that misleads a sample.
///
/// Source   [RedSync19, 2.1]; radixSelect: [Alabi12].
class RadixSelector final : public Selector {
 public:
  explicit RadixSelector(uint64_t k) : k_(k) {}
  Status select(const StreamView& accumulator, const SelectContext&, IndexBuffer& positions) override {
    positions.clear();
    const std::span<const float> values = accumulator.values;
    const uint64_t k = std::min<uint64_t>(k_, values.size());
    if (k == 0) return {};
    return emit_top_k(values, k, Zeros::kSkipped, search_top_k_by_radix(values, k), positions);
  }

 private:
  uint64_t k_;
};

std::unique_ptr<Selector> make_radix(const SelectionSpec& spec, uint64_t dimension) {
  return std::make_unique<RadixSelector>(k_of(spec, dimension));
}

}  // namespace

SelectionEntry radix_selection() {
  return {.info = {.selection = SelectionId::kRadix,
                   .name = "radix",
                   .paper = "[RedSync19, 2.1]",
                   .summary = "exactly k, by radix select over all entries",
                   .parameters = kShareAlone,
                   .may_alternate_signs = true},
          .validate = validate_density_or_k,
          .make = make_radix,
          .takes_all = k_is_all};
}

}  // namespace millrace
