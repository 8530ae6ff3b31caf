#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/words.h"
#include "kernels/draw/draw.h"
#include "kernels/magnitude/tail_sums.h"
#include "kernels/select/drawing_selector.h"
#include "kernels/select/registry.h"

namespace millrace {
namespace {

/// The fewest entries in expectation such that E|sent|^2 <= (1 + variance) |g|^2: each is drawn with
/// p = min(|g| / magnitude, 1) and sent as g / p.
///
/// The algorithm asks for the smallest k "such that the second inequality of (10) is true"; (10) is an equation, (11)
/// is meant. There k counts those with p = 1, and the rest determines 1 / lambda, which is the magnitude:
///
///     (variance * sum of g^2 + sum over the rest of g^2) / (sum over the rest of |g|)
///
/// Nothing is sorted for k. The magnitude is the root of H(x) = sum over |g| < x of |g| (x - |g|), less variance * sum
/// of g^2. That is convex and linear in pieces, and Newton's step on it is the formula above with |g| < x for the rest.
/// From above it falls to the root, each step halving H or its slope at least, and stops where no entry more has p = 1.
///
/// The magnitude is rounded down: the variance never goes over the budget.
/// Cost     a read pass, one a step (a few; more where the budget is small), and that of draw_by_size().
/// Source   [GSpar18, 2.2, algorithm 2, equation 11].
class GsparClosedSelector final : public DrawingSelector {
 public:
  explicit GsparClosedSelector(double variance) : DrawingSelector("gspar_closed"), variance_(variance) {}

  Status draw(const StreamView& accumulator, const SelectContext& context, IndexBuffer& positions,
              Buffer<float>& values) override {
    positions.clear();
    values.clear();
    const TailSums all = tail_sums(accumulator.values, kInfinityKey);
    if (all.above > 0) return refuse_non_finite();
    if (all.magnitude == 0) return {};
    draw_by_size(accumulator.values, magnitude_of(accumulator.values, all), context.random, positions, values);
    return {};
  }

 private:
  static float rounded_down(double value) {
    const float nearest = finite_magnitude(value);
    if (static_cast<double>(nearest) <= value) return nearest;
    // Below the smallest magnitude: then all that is not 0 is exact.
    return std::max(std::nextafter(nearest, 0.0F), std::numeric_limits<float>::denorm_min());
  }

  float magnitude_of(std::span<const float> values, const TailSums& all) const {
    const double budget = variance_ * all.squares;
    float magnitude = rounded_down((budget + all.squares) / all.magnitude);
    uint64_t exact = 0;
    while (true) {
      const TailSums rest = tail_sums(values, magnitude_key(magnitude));
      if (rest.above == exact || rest.magnitude == 0) return magnitude;
      exact = rest.above;
      const float next = rounded_down((budget + rest.squares) / rest.magnitude);
      if (!(next < magnitude)) return magnitude;
      magnitude = next;
    }
  }

  double variance_;
};

std::unique_ptr<Selector> make_gspar_closed(const SelectionSpec& spec, uint64_t) {
  return std::make_unique<GsparClosedSelector>(spec.variance);
}

constexpr SelectionParameter kVarianceParameters[] = {
    {.form = "VARIANCE",
     .amount = SelectionAmount::kVariance,
     .set = [](std::string_view word,
               SelectionSpec& spec) { return assign_number(word, spec.variance) && spec.variance > 0; },
     .value = [](const SelectionSpec& spec) { return SelectionNumber(spec.variance); }}};

Status validate_gspar_closed(const SelectionSpec& spec) {
  if (std::isfinite(spec.variance) && spec.variance > 0) return {};
  return fail(ErrorCode::kInvalidArgument, "a variance budget is finite and above 0");
}

}  // namespace

SelectionEntry gspar_closed_selection() {
  return {
      .info = {.selection = SelectionId::kGsparClosed,
               .name = "gspar_closed",
               .paper = "[GSpar18, 2.2, algorithm 2]",
               .summary =
                   "drawn with probabilities by size; the fewest entries for a variance of (1 + VARIANCE), unbiased",
               .parameters = kVarianceParameters,
               .use = SelectionUse::kUnbiased},
      .validate = validate_gspar_closed,
      .make = make_gspar_closed};
}

}  // namespace millrace
