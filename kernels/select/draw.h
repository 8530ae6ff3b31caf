#pragma once

#include <tbb/parallel_for.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/base/buffer.h"
#include "kernels/base/random.h"
#include "kernels/select/magnitude_scan.h"
#include "kernels/select/select.h"

namespace millrace {

/// Draws every value with the probability |x| / magnitude, at most 1, each apart from the others. What is drawn is sent as
/// `magnitude` with the sign of x, the same bits for all; a value of at least that magnitude is always taken, as it is. So
/// E[sent] = x.
///
/// values     [n], finite, n <= kDimensionMax. Zeros are never drawn.
/// magnitude  positive and finite.
/// key        value i has word i of (key, stream kDrawStream), and where that does not decide it 32 bits more: probabilities
///            are exact to 2^-53 of themselves and 2^-64.
/// positions, drawn   out: as many of each, positions strictly increasing.
/// Cost       one pass with 4 random bytes a value; memory O(what is drawn).
/// Threads    reentrant; uses TBB above a size, the result does not depend on it.
/// Source     [GSpar18, equation 4, 4.2] (no division where p < 1).
void draw_by_size(std::span<const float> values, float magnitude, RandomKey key, IndexBuffer& positions,
                  Buffer<float>& drawn);

inline constexpr uint64_t kDrawStream = 1;
inline constexpr uint64_t kRefineStream = 2;

/// Positions, relative to values[0], of every value that draw_by_size() may draw, and a few that it does not (2^-20 of
/// them). One thread's part; count <= kScanBlock; positions have room for count + kScanSlack.
///
/// inverse  1 / magnitude, rounded; a normal number.
size_t draw_candidates_f32(const float* values, const uint32_t* words, size_t count, float inverse,
                           uint32_t* positions);

/// What passes over values are cut into, for threads and for sums whose order is always the same.
inline constexpr size_t kDrawChunk = size_t{1} << 18;

/// Calls work(chunk) for each, on several threads where they are many.
template <typename Work>
void for_chunks(size_t chunks, const Work& work) {
  constexpr size_t kParallelFrom = 4;
  if (chunks < kParallelFrom) {
    for (size_t chunk = 0; chunk < chunks; ++chunk) work(chunk);
  } else {
    tbb::parallel_for(size_t{0}, chunks, work);
  }
}

/// The magnitude nearest to `value` that a finite f32 other than 0 has.
float finite_magnitude(double value);

/// A selection that only draws: a residual would make up a second time for what is not drawn.
class DrawingSelector : public Selector {
 public:
  explicit DrawingSelector(std::string_view name) : name_(name) {}
  Status select(const StreamView&, const SelectContext&, IndexBuffer& positions) final {
    positions.clear();
    return fail(ErrorCode::kUnsupported, name_ + " draws values scaled up, for unbiased jobs; use draw()");
  }

 private:
  std::string name_;
};

/// "NaN or infinity among the values ...".
std::unexpected<Error> refuse_non_finite();

/// Refuses values that are not finite, or would not be once multiplied by `scale`. One read pass.
Status fits_scaled(std::span<const float> values, double scale);

}  // namespace millrace
