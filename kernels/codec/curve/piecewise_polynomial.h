#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace millrace {

inline constexpr size_t kPolynomialDegree = 5;
inline constexpr size_t kCoefficients = kPolynomialDegree + 1;

/// Magnitudes of coefficients that are sent; smaller ones are sent as 0. The lower bounds keep the receiver's results
/// out of the denormal numbers, on which machines are slow. The upper ones keep the sum of six, which bounds a point,
/// finite.
inline constexpr double kCoefficientMin = 0x1p-100;
inline constexpr double kCoefficientMax = 0x1p125;

inline bool coefficient_valid(float value) {
  const double magnitude = std::abs(static_cast<double>(value));
  return value == 0 || (magnitude >= kCoefficientMin && magnitude <= kCoefficientMax);
}

/// Rounds a coefficient of the fit to the form in which it is sent. False: it is too large.
inline bool round_coefficient(double value, float& rounded) {
  if (!(std::abs(value) <= kCoefficientMax)) return false;
  rounded = std::abs(value) < kCoefficientMin ? 0.0F : static_cast<float>(value);
  return true;
}

/// Holds a run of the curve with a polynomial of its own.
struct Piece {
  size_t begin = 0;
  size_t length = 0;
};

/// Returns DeepReduce's number of pieces for a monotone curve whose points have one sign. It is ceil(2 sqrt(M)), M the
/// difference of the first and the last slope. Where the paper is unclear see piecewise_polynomial.cc.
///
/// points  [n] of one sign, descending; n >= 1.
size_t piece_count(std::span<const float> points);

/// Divides the curve into at most `count` pieces, in order, as DeepReduce does: repeatedly where the curve is furthest
/// from its chord.
///
/// points  [n], n >= 1.
/// Cost    every cut reads the piece that it cuts.
std::vector<Piece> segment_curve(std::span<const float> points, size_t count);

/// Fits a polynomial of degree at most 5 to the points of one piece by least squares. It is in the powers of
/// t = (2 i - (n - 1)) / n.
///
/// points  [n], n >= 1; fewer than 6: of degree n - 1.
std::array<double, kCoefficients> fit_polynomial(std::span<const float> points);

/// Computes the decoded points of a piece: protocol/wire/fitted_codecs.md. Coefficients are valid.
void evaluate_polynomial(std::span<const float, kCoefficients> coefficients, std::span<float> points);

}  // namespace millrace
