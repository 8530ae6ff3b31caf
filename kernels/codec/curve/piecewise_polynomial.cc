// [DeepReduce21, 5], piecewise polynomial regression. Choices that the paper leaves open:
//
// - The number of pieces, p = ceil(2 sqrt(M)), comes from its lemma 1. The error is at most 2 M / p^2 with M the
//   variation of the slope. The lemma holds for curves over an interval of length 1; over [1, d] its proof loses a
//   factor of d - 1. (The integral of |C' - s0| is (d - 1) M / (2 p' + 2).) A parabola over 1000 points is a
//   counterexample (tests/kernels/codec/fit_poly_test.cc). With p = 2 sqrt(M) the bound is 1/2 in the units of the
//   gradient: for gradients of 0.001 always one piece. So here the curve is taken over [0, 1], its slopes n - 1 times
//   as large, and in units of its largest magnitude.
// - M as the difference of the first and the last slope is the variation where the slope is monotone. The curve of both
//   signs is not (it flattens in the middle), that of one sign is, about: pieces, and M, are of one sign.
// - The text does not define which segment is divided next: here the one whose furthest point is furthest. A cut leaves
//   both parts n' + 1 = 6 points.
// - A piece costs seven numbers. They take at most 1/9 of the bytes of the values, and are 64 at most of a sign.
#include "kernels/codec/curve/piecewise_polynomial.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace millrace {
namespace {

constexpr size_t kPiecesMax = 64;
constexpr size_t kPointsPerPiece = 64;

/// Distances between points and the chord of their piece.
struct Chord {
  std::span<const float> points;
  double first;
  double slope;

  explicit Chord(std::span<const float> piece) : points(piece), first(static_cast<double>(piece.front())) {
    slope = (static_cast<double>(piece.back()) - first) / static_cast<double>(piece.size() - 1);
  }
  double distance(size_t i) const {
    return std::abs(first + slope * static_cast<double>(static_cast<int64_t>(i)) - static_cast<double>(points[i]));
  }
};

/// The first of the furthest points. Blocks are searched for their largest distance only, in four chains, and the best
/// block for its place.
Boundary furthest_from_chord(std::span<const float> points) {
  constexpr size_t kBlock = 128;
  constexpr size_t kChains = 4;
  if (points.size() < kCutFrom) return {};
  const Chord chord(points);
  const size_t last = points.size() - kCoefficients;  // the last place of a cut
  double furthest = 0;
  size_t block = kCoefficients;
  size_t begin = kCoefficients;
  for (; begin + kBlock <= last + 1; begin += kBlock) {
    std::array<double, kChains> largest{};
    for (size_t i = begin; i < begin + kBlock; i += kChains) {
      for (size_t j = 0; j < kChains; ++j) largest[j] = std::max(largest[j], chord.distance(i + j));
    }
    const double of_block = std::max(std::max(largest[0], largest[1]), std::max(largest[2], largest[3]));
    if (of_block > furthest) {
      furthest = of_block;
      block = begin;
    }
  }
  Boundary boundary;
  const auto search = [&](size_t from, size_t to) {
    for (size_t i = from; i < to; ++i) {
      const double distance = chord.distance(i);
      if (distance > boundary.distance) boundary = {i, distance};
    }
  };
  search(block, std::min(block + kBlock, last + 1));
  search(begin, last + 1);
  return boundary;
}

/// Monic polynomials that are orthogonal over the points t_i (Gram), as coefficients of powers, and their squared
/// norms. P_k+1 = t P_k - b_k P_k-1 with b_k = k^2 (n^2 - k^2) / (n^2 (4 k^2 - 1)). So the least squares fit is a
/// projection, and no system of equations has to be solved.
struct GramPolynomials {
  std::array<std::array<double, kCoefficients>, kCoefficients> powers{};
  std::array<double, kCoefficients> norms{};

  explicit GramPolynomials(double n) {
    powers[0][0] = 1;
    powers[1][1] = 1;
    norms[0] = n;
    for (size_t k = 1; k < kCoefficients; ++k) {
      const auto kk = static_cast<double>(k * k);
      const double b = kk * (n * n - kk) / (n * n * (4 * kk - 1));
      norms[k] = norms[k - 1] * b;
      if (k + 1 == kCoefficients) break;
      for (size_t j = 0; j < kCoefficients; ++j) {
        powers[k + 1][j] = (j == 0 ? 0 : powers[k][j - 1]) - b * powers[k - 1][j];
      }
    }
  }
};

/// A power of two near the largest magnitude.
int polynomial_exponent_of(std::span<const float> points) {
  double largest = 0;
  for (const float point : points) largest = std::max(largest, std::abs(static_cast<double>(point)));
  return largest == 0 ? 0 : std::ilogb(largest);
}

/// Sums of point t^j: those that mirror each other together.
std::array<double, kCoefficients> moments_of(std::span<const float> points, double scale) {
  std::array<double, kCoefficients> sums{};
  const size_t n = points.size();
  const double step = 1.0 / static_cast<double>(n);
  for (size_t i = 0; i < n / 2; ++i) {
    const double t = static_cast<double>(n - 1 - 2 * i) * step;
    const double low = static_cast<double>(points[i]) * scale;
    const double high = static_cast<double>(points[n - 1 - i]) * scale;
    const double u = t * t;
    const double even = high + low;
    const double odd = (high - low) * t;
    sums[0] += even;
    sums[1] += odd;
    sums[2] += even * u;
    sums[3] += odd * u;
    sums[4] += even * u * u;
    sums[5] += odd * u * u;
  }
  if (n % 2 == 1) sums[0] += static_cast<double>(points[n / 2]) * scale;
  return sums;
}

}  // namespace

size_t piece_count(const CurveEnds& ends, size_t n) {
  const size_t most = std::clamp<size_t>(n / kPointsPerPiece, 1, kPiecesMax);
  if (n < 3) return 1;
  const std::array<double, 4> at = {static_cast<double>(ends.first[0]), static_cast<double>(ends.first[1]),
                                    static_cast<double>(ends.last[0]), static_cast<double>(ends.last[1])};
  const double largest = std::max(std::abs(at[0]), std::abs(at[3]));
  if (largest == 0) return 1;
  const double slope_change = std::abs((at[0] / largest - at[1] / largest) - (at[2] / largest - at[3] / largest));
  const double pieces = std::ceil(2 * std::sqrt(slope_change * static_cast<double>(n - 1)));
  return std::clamp<size_t>(static_cast<size_t>(pieces), 1, most);
}

size_t piece_count(std::span<const float> points) {
  const size_t n = points.size();
  if (n < 3) return 1;
  return piece_count(CurveEnds{{points[0], points[1]}, {points[n - 2], points[n - 1]}}, n);
}

std::vector<Piece> segment_curve(std::span<const float> points, size_t count) {
  return segment_curve_by(points.size(), count, [&](std::span<const Piece> pieces, std::span<Boundary> found) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      found[i] = furthest_from_chord(points.subspan(pieces[i].begin, pieces[i].length));
    }
  });
}

std::array<double, kCoefficients> polynomial_of(const Moments& moments, size_t n) {
  const GramPolynomials gram(static_cast<double>(n));
  std::array<double, kCoefficients> coefficients{};
  for (size_t k = 0; k < std::min(kCoefficients, n); ++k) {
    double projection = 0;
    for (size_t j = 0; j <= k; ++j) projection += gram.powers[k][j] * moments.sums[j];
    projection /= gram.norms[k];
    for (size_t j = 0; j <= k; ++j) coefficients[j] += projection * gram.powers[k][j];
  }
  for (double& coefficient : coefficients) coefficient = std::ldexp(coefficient, moments.exponent);
  return coefficients;
}

std::array<double, kCoefficients> fit_polynomial(std::span<const float> points) {
  MILLRACE_CHECK(!points.empty());
  const int exponent = polynomial_exponent_of(points);
  return polynomial_of({moments_of(points, std::ldexp(1.0, -exponent)), exponent}, points.size());
}

void evaluate_polynomial(std::span<const float, kCoefficients> coefficients, std::span<float> points) {
  std::array<double, kCoefficients> a;
  for (size_t j = 0; j < kCoefficients; ++j) a[j] = static_cast<double>(coefficients[j]);
  const auto n = static_cast<int64_t>(points.size());
  const double step = 1.0 / static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) {
    const double t = static_cast<double>(2 * i - (n - 1)) * step;
    const double u = t * t;
    const double even = (a[4] * u + a[2]) * u + a[0];
    const double odd = (a[5] * u + a[3]) * u + a[1];
    points[static_cast<size_t>(i)] = static_cast<float>(even + t * odd);
  }
}

}  // namespace millrace
