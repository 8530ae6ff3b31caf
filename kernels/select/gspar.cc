#include "kernels/draw/draw.h"
#include "kernels/magnitude/tail_sums.h"
#include "kernels/select/drawing_selector.h"
#include "kernels/select/registry.h"
#include "kernels/threshold/gspar_magnitude.h"

namespace millrace {
namespace {

/// Draws each entry with p = min(|g| / magnitude, 1), k of them at most in expectation, and sends it as g / p. Entries
/// with p < 1 then have one magnitude, those with p = 1 their own value.
///
/// With lambda = 1 / magnitude in the paper's symbols, line 1 is magnitude = (sum of |g|) / k. Lines 3 and 4 replace
/// it, for the p < 1 alone, by (sum of |g|) / (k - number with p = 1). So no vector p is needed. Their c is never below
/// 1, since p sums to k at most, and is 1 where the magnitude stays: the end. It is 0 / 0 where all but zeros have p =
/// 1: the end too. (6) wants 0 < p; zeros have p = 0 and are never drawn. With enough iterations p is Proposition 1's:
/// of all p that sum to k the one of least variance.
///
/// Cost     a read pass, one an iteration, and that of draw_by_size().
/// Source   [GSpar18, 2.2, algorithm 3]; its kappa is k / dimension.
class GsparSelector final : public DrawingSelector {
 public:
  GsparSelector(uint64_t k, uint32_t iterations) : DrawingSelector("gspar"), k_(k), iterations_(iterations) {}

  Status draw(const StreamView& accumulator, const SelectContext& context, IndexBuffer& positions,
              Buffer<float>& values) override {
    positions.clear();
    values.clear();
    const TailSums all = tail_sums(accumulator.values, kInfinityKey);
    if (all.above > 0) return refuse_non_finite();
    if (all.magnitude == 0) return {};
    GsparMagnitude magnitude(all.magnitude, k_, iterations_);
    while (magnitude.goes_on()) magnitude.take(tail_sums(accumulator.values, magnitude.key()));
    draw_by_size(accumulator.values, magnitude.value(), context.random, positions, values);
    return {};
  }

 private:
  uint64_t k_;
  uint32_t iterations_;
};

std::unique_ptr<Selector> make_gspar(const SelectionSpec& spec, uint64_t dimension) {
  return std::make_unique<GsparSelector>(k_of(spec, dimension), spec.iterations);
}

constexpr SelectionParameter kGsparParameters[] = {
    kShareParameter,
    {.form = "ITERATIONS",
     .set = [](std::string_view word, SelectionSpec& spec) { return set_count(word, spec.iterations); },
     .value = [](const SelectionSpec& spec) { return SelectionNumber(uint64_t{spec.iterations}); }}};

Status validate_gspar(const SelectionSpec& spec) {
  if (spec.iterations == 0) return fail(ErrorCode::kInvalidArgument, "gspar iterates at least once");
  return validate_density_or_k(spec);
}

}  // namespace

SelectionEntry gspar_selection() {
  return {.info = {.selection = SelectionId::kGspar,
                   .name = "gspar",
                   .paper = "[GSpar18, 2.2, algorithm 3]",
                   .summary = "drawn with probabilities by size, greedy; about k entries, unbiased",
                   .parameters = kGsparParameters,
                   .use = SelectionUse::kUnbiased},
          .validate = validate_gspar,
          .make = make_gspar};
}

}  // namespace millrace
