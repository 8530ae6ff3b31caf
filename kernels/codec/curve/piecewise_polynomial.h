#pragma once

#include <algorithm>
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

/// Holds the first two and the last two points of a curve.
struct CurveEnds {
  std::array<float, 2> first{};
  std::array<float, 2> last{};
};

/// Returns DeepReduce's number of pieces for a monotone curve whose points have one sign. It is ceil(2 sqrt(M)), M the
/// difference of the first and the last slope. Where the paper is unclear see piecewise_polynomial.cc.
///
/// points  [n] of one sign, descending; n >= 1.
size_t piece_count(std::span<const float> points);
/// Does the same by the ends of a curve of n points, which shorter curves than 3 need not have.
size_t piece_count(const CurveEnds& ends, size_t n);

/// Holds the place at which a piece would be cut, and how far the curve is from its chord there; 0: nowhere.
struct Boundary {
  size_t at = 0;
  double distance = 0;
};

/// A piece of fewer points is not cut: each part of a cut has a point for each coefficient.
inline constexpr size_t kCutFrom = 2 * kCoefficients;

/// Divides a curve of n points into at most `count` pieces, as segment_curve() does.
///
/// search  search(std::span<const Piece>, std::span<Boundary>): sets each piece's first point of those furthest from
///         the chord. A cut asks for its two parts at once.
template <typename Search>
std::vector<Piece> segment_curve_by(size_t n, size_t count, const Search& search) {
  std::vector<Piece> pieces = {{0, n}};
  std::vector<Boundary> boundaries(1);
  search(std::span<const Piece>(pieces), std::span(boundaries));
  while (pieces.size() < count) {
    const auto furthest = std::ranges::max_element(
        boundaries, [](const Boundary& a, const Boundary& b) { return a.distance < b.distance; });
    if (furthest->distance == 0) break;
    const auto j = furthest - boundaries.begin();
    const Piece left{pieces[j].begin, furthest->at};
    const std::array parts = {left, Piece{left.begin + left.length, pieces[j].length - left.length}};
    std::array<Boundary, 2> found;
    search(std::span<const Piece>(parts), std::span(found));
    pieces[j] = parts[0];
    boundaries[j] = found[0];
    pieces.insert(pieces.begin() + j + 1, parts[1]);
    boundaries.insert(boundaries.begin() + j + 1, found[1]);
  }
  return pieces;
}

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

/// Holds sums of point t^j over the points of a piece, in units of 2^exponent: that of their largest magnitude, or 0.
struct Moments {
  std::array<double, kCoefficients> sums{};
  int exponent = 0;
};

/// Returns the polynomial of fit_polynomial() by the moments of a piece of n points.
std::array<double, kCoefficients> polynomial_of(const Moments& moments, size_t n);

/// Computes the decoded points of a piece: protocol/wire/fitted_codecs.md. Coefficients are valid.
void evaluate_polynomial(std::span<const float, kCoefficients> coefficients, std::span<float> points);

}  // namespace millrace
