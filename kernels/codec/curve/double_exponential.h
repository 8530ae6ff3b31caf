#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace {

/// y = a q^i + c s^i at the points i = 0, 1, ... of a curve: DeepReduce's a e^(bx) + c e^(dx) with q = e^b and s = e^d.
/// The receiver multiplies the powers up, which gives the same on every machine; exponential functions differ.
struct DoubleExponential {
  double a = 0;
  double c = 0;
  double q = 1;
  double s = 1;
};

/// Says which end of the points is i = 0.
enum class CurveStart : uint8_t { kFirst, kLast };

/// Fits the magnitudes of the points of one sign, by least squares; double_exponential.cc says how.
///
/// points  [n], finite, n >= 1; `start` is the end with the largest magnitude.
/// Cost    two passes, and at most 1e6 operations for any n.
DoubleExponential fit_double_exponential(std::span<const float> points, CurveStart start);

/// Computes the decoded magnitudes: protocol/wire/fitted_codecs.md. All are finite and not negative.
void evaluate_double_exponential(const DoubleExponential& fit, std::span<float> magnitudes);

}  // namespace millrace
