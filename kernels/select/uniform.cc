#include <cmath>

#include "kernels/draw/draw.h"
#include "kernels/select/drawing_selector.h"
#include "kernels/select/registry.h"

namespace millrace {
namespace {

/// Draws each entry with the probability p = k / dimension, regardless of its size, and sends it as g / p: the
/// reference of GSpar.
///
/// The gap to the next one drawn is geometric: floor(log u / log(1 - p)) for u uniform in (0, 1].
/// Errors   non_finite also where g / p would be, drawn or not.
/// Cost     a read pass, and a logarithm for each drawn.
/// Source   [GSpar18, 4] (UniSp).
class UniformSelector final : public DrawingSelector {
 public:
  explicit UniformSelector(double probability) : DrawingSelector("uniform"), probability_(probability) {}

  Status draw(const StreamView& accumulator, const SelectContext& context, IndexBuffer& positions,
              Buffer<float>& drawn) override {
    positions.clear();
    drawn.clear();
    const std::span<const float> values = accumulator.values;
    if (Status fits = fits_scaled(values, 1 / probability_); !fits) return fits;
    RandomSequence random(context.random, kDrawStream);
    const double log_left = std::log1p(-probability_);
    uint64_t at = 0;
    while (true) {
      const double u = 1 - random.next_unit();
      at += probability_ < 1 ? static_cast<uint64_t>(std::log(u) / log_left) : 0;
      if (at >= values.size()) return {};
      if (values[at] != 0) {
        positions.push_back(static_cast<uint32_t>(at));
        drawn.push_back(static_cast<float>(static_cast<double>(values[at]) / probability_));
      }
      ++at;
    }
  }

 private:
  double probability_;
};

std::unique_ptr<Selector> make_uniform(const SelectionSpec& spec, uint64_t dimension) {
  return std::make_unique<UniformSelector>(static_cast<double>(k_of(spec, dimension)) / static_cast<double>(dimension));
}

}  // namespace

SelectionEntry uniform_selection() {
  return {.info = {.selection = SelectionId::kUniform,
                   .name = "uniform",
                   .paper = "[GSpar18, 4] (UniSp)",
                   .summary = "each entry drawn with one probability and scaled up; about k entries, unbiased",
                   .parameters = kShareAlone,
                   .use = SelectionUse::kUnbiased},
          .validate = validate_density_or_k,
          .make = make_uniform};
}

}  // namespace millrace
