#include "kernels/magnitude/magnitude_scan.h"
#include "kernels/select/registry.h"

namespace millrace {
namespace {

class EverythingSelector final : public Selector {
 public:
  Status select(const StreamView& accumulator, const SelectContext&, IndexBuffer& positions) override {
    const ScanEnd end = collect_positions(accumulator.values, 1, accumulator.count(), positions);
    if (end == ScanEnd::kComplete) return {};
    positions.clear();
    return fail(ErrorCode::kNonFinite, "NaN or infinity among the values to select from");
  }
};

std::unique_ptr<Selector> make_none(const SelectionSpec&, uint64_t) { return std::make_unique<EverythingSelector>(); }

Status accept(const SelectionSpec&) { return {}; }

}  // namespace

SelectionEntry none_selection() {
  return {.info = {.selection = SelectionId::kNone,
                   .name = "none",
                   .paper = "[SparCML19, 8.2]",
                   .summary = "every stored entry that is not zero (naturally sparse gradients)",
                   .use = SelectionUse::kBoth},
          .validate = accept,
          .make = make_none};
}

}  // namespace millrace
