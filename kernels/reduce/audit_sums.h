#pragma once

#include <cmath>
#include <span>

#include "kernels/stream/stream.h"

namespace millrace {

/// Holds sums of values, in f64: the quantity of the conservation law.
struct Mass {
  double sum = 0;
  double magnitude = 0;  ///< sum of |value|

  void count(double value) {
    sum += value;
    magnitude += std::abs(value);
  }
  Mass& operator+=(const Mass& other) {
    sum += other.sum;
    magnitude += other.magnitude;
    return *this;
  }
};

/// Holds a + b rounded, and its exact rounding error (TwoSum: [Knuth97, 4.2.2]).
template <typename T>
struct Rounded {
  T sum = 0;
  T off = 0;
};
template <typename T>
Rounded<T> rounded_sum(T a, T b) {
  const T sum = a + b;
  const T part = sum - a;
  return {sum, (a - (sum - part)) + (b - part)};
}

/// Adds up f64 values and keeps the rounding errors: as with twice the digits.
class LongSum {
 public:
  void add(double value) {
    const Rounded<double> next = rounded_sum(sum_, value);
    sum_ = next.sum;
    rest_ += next.off;
  }
  void add(const LongSum& other) {
    add(other.sum_);
    add(other.rest_);
  }
  void subtract(const LongSum& other) {
    add(-other.sum_);
    add(-other.rest_);
  }
  double value() const { return sum_ + rest_; }

 private:
  double sum_ = 0;
  double rest_ = 0;
};

/// How far a sum may be from the exact one, over the magnitude: at most 2^11 additions in a row, 2^-53 each.
inline constexpr double kMassError = 0x1p-42;

/// Order    blocks of 4096 values, in lanes that depend on the instruction set; on a binary grid every order is exact.
/// Cost     one read pass.
Mass mass_of(std::span<const float> values);

/// Returns the mass of the values whose index is marked: bit (index - base) of `marks`, from the lowest bit of the
/// first word.
///
/// indices  as many as values, each at least base and within the marks
/// values   finite
/// Order    as mass_of(); an unmarked value counts as 0
Mass mass_where(IndexSpan indices, std::span<const float> values, uint32_t base, std::span<const uint32_t> marks);

/// The same of what additions rounded off, which is small itself: one addition after the other, of at most 2^32.
inline constexpr double kRoundedError = 0x1p-20;

/// Holds the sum of the values that an addition in f32 added, and its rounding errors.
struct Accumulated {
  Mass taken;    ///< of the products, as they were rounded before they were added
  Mass rounded;  ///< target before + taken - target after, entry by entry exact

  Accumulated& operator+=(const Accumulated& other) {
    taken += other.taken;
    rounded += other.rounded;
    return *this;
  }
};

/// Adds as add_scaled(), with the same bits, and returns the added values and the rounding errors.
///
/// scale    of a dense stream; 1 for a sparse one.
/// Cost     dense: the one pass that add_scaled() takes too; sparse: and one over the entries.
Accumulated accumulate(std::span<float> target, const StreamView& stream, float scale);

/// Returns the rounding error of adding two streams in f32: exact sum - rounded sum, over the indices that both have.
Mass rounded_off(const StreamView& a, const StreamView& b);

}  // namespace millrace
