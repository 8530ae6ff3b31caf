#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/codec/codec.h"
#include "kernels/codec/curve/piecewise_polynomial.h"
#include "kernels/codec/curve/sorted_curve.h"
#include "tests/support/oracles/select_oracle.h"

namespace millrace {
namespace {

using Powers = std::array<double, kCoefficients>;

double position(size_t i, size_t n) {
  return (2.0 * static_cast<double>(i) - (static_cast<double>(n) - 1)) / static_cast<double>(n);
}

long double value_at(const Powers& powers, double t) {
  long double sum = 0;
  for (size_t j = kCoefficients; j-- > 0;) sum = sum * t + powers[j];
  return sum;
}

/// Returns descending positive values: a selection's values of a Gaussian to a power.
std::vector<float> fit_poly_descending(size_t n, double power, uint64_t seed) {
  RandomSequence random(RandomKey::from(seed));
  std::vector<float> values;
  while (values.size() < n) {
    const double value = random.next_normal();
    if (value > 2) values.push_back(static_cast<float>(std::pow(value, power)));
  }
  std::ranges::sort(values, std::greater());
  return values;
}

/// Least squares by the normal equations of Legendre polynomials, eliminated in long double; fewer points: a lower
/// degree.
struct SlowFit {
  std::vector<long double> points;

  explicit SlowFit(const std::vector<float>& values) {
    const size_t n = values.size();
    const size_t terms = std::min(kCoefficients, n);
    std::vector<std::vector<long double>> basis(n, std::vector<long double>(terms));
    for (size_t i = 0; i < n; ++i) {
      const long double t = position(i, n);
      for (size_t k = 0; k < terms; ++k) {
        const auto m = static_cast<long double>(k);
        basis[i][k] = k == 0 ? 1 : k == 1 ? t : ((2 * m - 1) * t * basis[i][k - 1] - (m - 1) * basis[i][k - 2]) / m;
      }
    }
    std::vector<std::vector<long double>> rows(terms, std::vector<long double>(terms + 1, 0.0L));
    for (size_t j = 0; j < terms; ++j) {
      for (size_t i = 0; i < n; ++i) {
        for (size_t k = 0; k < terms; ++k) rows[j][k] += basis[i][j] * basis[i][k];
        rows[j][terms] += basis[i][j] * static_cast<long double>(values[i]);
      }
    }
    for (size_t k = 0; k < terms; ++k) {
      for (size_t i = 0; i < terms; ++i) {
        if (i == k) continue;
        const long double factor = rows[i][k] / rows[k][k];
        for (size_t j = k; j <= terms; ++j) rows[i][j] -= factor * rows[k][j];
      }
    }
    points.resize(n, 0.0L);
    for (size_t i = 0; i < n; ++i) {
      for (size_t k = 0; k < terms; ++k) points[i] += rows[k][terms] / rows[k][k] * basis[i][k];
    }
  }
};

TEST(FitPolynomial, IsTheLeastSquaresFitOfAnyNumberOfPoints) {
  for (const size_t n : {1, 2, 3, 4, 5, 6, 7, 8, 13, 100, 1001, 20'000}) {
    for (const double power : {1.0, 4.0}) {
      const auto values = fit_poly_descending(n, power, n);
      const Powers powers = fit_polynomial(values);
      const SlowFit slow(values);
      for (size_t i = 0; i < n; ++i) {
        ASSERT_NEAR(static_cast<double>(value_at(powers, position(i, n)) - slow.points[i]), 0,
                    1e-11 * double{values[0]})
            << n << ' ' << i;
        if (n <= kCoefficients) {
          ASSERT_NEAR(static_cast<double>(value_at(powers, position(i, n))), double{values[i]},
                      1e-11 * double{values[0]});
        }
      }
    }
  }
}

TEST(FitPolynomial, GivesBackThePowersOfAPolynomial) {
  const Powers wanted = {3, -1, 0.5, 2, -0.25, 7};
  for (const size_t n : {6, 7, 50, 10'001}) {
    std::vector<float> values(n);
    for (size_t i = 0; i < n; ++i) values[i] = static_cast<float>(value_at(wanted, position(i, n)));
    const Powers powers = fit_polynomial(values);
    for (size_t j = 0; j < kCoefficients; ++j) EXPECT_NEAR(powers[j], wanted[j], 1e-4) << n << ' ' << j;
  }
}

TEST(FitPolynomial, TheLargestAndTheSmallestNumbersDoNotOverflow) {
  for (const float unit : {std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min() * 1e6F}) {
    const std::vector<float> values(100, unit);
    const Powers powers = fit_polynomial(values);
    EXPECT_NEAR(powers[0] / double{unit}, 1, 1e-6);
    for (size_t j = 1; j < kCoefficients; ++j) EXPECT_NEAR(powers[j] / double{unit}, 0, 1e-6);
  }
}

TEST(PieceCount, PieceCount_TwiceTheRootOfTheSlopeChangeInUnitsOfTheLargest) {
  std::vector<float> values(1001, 1);
  values[0] = 4;
  // M = 3 / 4 * 1000, p = ceil(2 sqrt(750)) = 55, of which 1001 / 64 = 15 are allowed.
  EXPECT_EQ(piece_count(values), 15u);
  values.assign(128 * 60, 1);
  values[0] = 1 + 0x1p-7;
  // M = 7679 / 129, p = ceil(15.43).
  EXPECT_EQ(piece_count(values), 16u);
  for (float& value : values) value *= -1e-3F;
  EXPECT_EQ(piece_count(values), 16u);
  std::ranges::reverse(values);
  EXPECT_EQ(piece_count(values), 16u);
  EXPECT_EQ(piece_count(std::vector<float>(1000, 2.0)), 1u);
  EXPECT_EQ(piece_count(std::vector<float>(1000, 0.0)), 1u);
  for (size_t n = 1; n < 6; ++n) EXPECT_EQ(piece_count(fit_poly_descending(n, 3, 1)), 1u);
}

/// The segmentation by its definition: all pieces are searched again for every cut.
std::vector<std::pair<size_t, size_t>> slow_segments(const std::vector<float>& values, size_t count) {
  std::vector<size_t> starts = {0, values.size()};
  while (starts.size() <= count) {
    double furthest = 0;
    size_t cut = 0;
    for (size_t j = 0; j + 1 < starts.size(); ++j) {
      const size_t first = starts[j];
      const size_t last = starts[j + 1] - 1;
      const double from = values[first];
      const double slope = (double{values[last]} - from) / static_cast<double>(last - first);
      for (size_t i = first + 6; i + 5 <= last; ++i) {
        const double distance = std::pow(from + slope * static_cast<double>(i - first) - double{values[i]}, 2);
        if (distance > furthest) {
          furthest = distance;
          cut = i;
        }
      }
    }
    if (furthest == 0) break;
    starts.insert(std::ranges::upper_bound(starts, cut), cut);
  }
  std::vector<std::pair<size_t, size_t>> pieces;
  for (size_t j = 0; j + 1 < starts.size(); ++j) pieces.emplace_back(starts[j], starts[j + 1] - starts[j]);
  return pieces;
}

TEST(SegmentCurve, CutsWhereTheCurveIsFurthestFromItsChord) {
  for (const size_t n : {1, 2, 11, 12, 13, 30, 500, 3000}) {
    for (const size_t count : {1, 2, 8, 60}) {
      const auto values = fit_poly_descending(n, 3, n + count);
      std::vector<std::pair<size_t, size_t>> pieces;
      for (const Piece& piece : segment_curve(values, count)) pieces.emplace_back(piece.begin, piece.length);
      EXPECT_EQ(pieces, slow_segments(values, count)) << n << ' ' << count;
      if (n >= 500 && count <= 8) {
        EXPECT_EQ(pieces.size(), count);
      }
      for (const auto& [begin, length] : pieces) {
        EXPECT_GE(length, std::min(n, kCoefficients));
      }
    }
  }
}

/// The least error that any line has over the points of a convex or concave run: half of its distance from the chord.
double line_error(const std::vector<double>& values, size_t first, size_t last) {
  double furthest = 0;
  const double slope = last == first ? 0 : (values[last] - values[first]) / static_cast<double>(last - first);
  for (size_t i = first; i <= last; ++i) {
    furthest = std::max(furthest, std::abs(values[first] + slope * static_cast<double>(i - first) - values[i]));
  }
  return furthest / 2;
}

// Lemma 1 (10) claims that some piecewise linear spline with p knots is within 2 M / p^2 of a curve over [1, d]. Here
// the curve's slope varies by M. The claim is false: p knots leave a piece of at least (d - 1) / (p + 1). Over such a
// piece every line is further than that from a parabola.
TEST(DeepReduceLemma1, IsFalseOverOneToDAndHoldsWithTheLengthOfTheInterval) {
  constexpr size_t kPoints = 1001;
  std::vector<double> parabola(kPoints);
  for (size_t i = 0; i < kPoints; ++i) {
    const double left = 1 - static_cast<double>(i) / (kPoints - 1);
    parabola[i] = left * left * (kPoints - 1) / 2;  // slopes from -1 to 0: M = 1
  }
  for (const size_t p : {2, 4, 8, 16}) {
    const double claimed = 2.0 / static_cast<double>(p * p);
    // Every piece of a parabola of that length has the same error, so the shortest that the longest piece can be is
    // enough.
    const size_t longest = (kPoints - 1) / (p + 1);
    EXPECT_GT(line_error(parabola, 0, longest), claimed) << p;
    double worst = 0;
    for (size_t j = 0; j <= p; ++j) {
      worst = std::max(worst, line_error(parabola, j * (kPoints - 1) / (p + 1), (j + 1) * (kPoints - 1) / (p + 1)));
    }
    EXPECT_LE(worst, claimed * (kPoints - 1)) << p;
  }
}

// The corrected lemma for curves of gradients: with knots where the proof has them the bound is 2 M (d - 1) / p^2.
TEST(DeepReduceLemma1, HoldsForSortedGradientsWithTheFactorThatTheProofLoses) {
  for (const double power : {1.0, 3.0}) {
    // Smoothed, so that the slope is monotone and its variation the difference of its ends.
    std::vector<double> values(2000);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = std::pow(std::log(2100.0 / static_cast<double>(i + 1)), power);
    const auto d = static_cast<double>(values.size());
    const double variation = (values[0] - values[1]) - (values[values.size() - 2] - values.back());
    for (const size_t p : {2, 8, 32}) {
      // p / 2 bands of equal variation of the slope, as [DeepReduce21, lemma 9] has them; a line each.
      const size_t bands = p / 2 + 1;
      const double band = variation / static_cast<double>(bands);
      double worst = 0;
      for (size_t first = 0; first + 1 < values.size();) {
        size_t last = first + 1;
        const double slope = values[first] - values[first + 1];
        while (last + 1 < values.size() && slope - (values[last] - values[last + 1]) <= band) ++last;
        worst = std::max(worst, line_error(values, first, last));
        first = last;
      }
      EXPECT_LE(worst, 2 * variation * (d - 1) / static_cast<double>(p * p)) << power << ' ' << p;
    }
  }
}

std::vector<float> both_signs(size_t n, double power, uint64_t seed) {
  const auto magnitudes = fit_poly_descending(n, power, seed);
  RandomSequence random(random_key(seed, 2));
  std::vector<float> values;
  for (const double magnitude : magnitudes) {
    values.push_back(static_cast<float>(random.next_below(2) == 0 ? magnitude : -magnitude) * 1e-3F);
  }
  for (size_t i = n; i > 1; --i) std::swap(values[i - 1], values[random.next_below(i)]);
  return values;
}

struct FitPolyCoded {
  ByteBuffer bytes;
  std::vector<float> said;
};

const ValueCodec& fit_poly() { return *find_value_codec(codec_from_text("gap+fit_poly").value().value); }

FitPolyCoded fit_poly_code_of(const std::vector<float>& values) {
  FitPolyCoded coded{{}, std::vector<float>(values.size())};
  EXPECT_TRUE(fit_poly().encode({}, std::span<const float>(values), {}, coded.bytes, std::span<float>(coded.said)));
  return coded;
}

/// The code read as protocol/wire/fitted_codecs.md says it, bit by bit.
std::vector<float> read_slowly_fit_poly(const ByteBuffer& bytes, size_t count) {
  const auto number = [&](size_t at, size_t size) {
    uint64_t value = 0;
    for (size_t b = 0; b < size; ++b) value += uint64_t{bytes.at(at + b)} << 8 * b;
    return value;
  };
  std::vector<float> curve;
  size_t at = 4;
  for (uint64_t piece = 0; piece < number(2, 2); ++piece) {
    const auto m = static_cast<double>(number(at, 4));
    double a[6];
    for (size_t j = 0; j < 6; ++j)
      a[j] = static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(number(at + 4 + 4 * j, 4))));
    for (double i = 0; i < m; ++i) {
      const double t = (2 * i - (m - 1)) * (1 / m);
      const double u = t * t;
      const double e = (a[4] * u + a[2]) * u + a[0];
      const double o = (a[5] * u + a[3]) * u + a[1];
      curve.push_back(static_cast<float>(e + t * o));
    }
    at += 28;
  }
  size_t width = 0;
  while (uint64_t{1} << width < count) ++width;
  std::vector<float> values;
  for (size_t i = 0; i < count; ++i) {
    size_t point = 0;
    for (size_t b = 0; b < width; ++b) {
      const size_t bit = 8 * at + i * width + b;
      point += size_t{(bytes.at(bit / 8) >> bit % 8) & 1u} << b;
    }
    values.push_back(curve.at(point));
  }
  return values;
}

TEST(FitPoly, IsReadAsTheWireFormatSaysIt) {
  for (const size_t n : {64, 257, 5000}) {
    const auto values = both_signs(n, 3, n);
    const FitPolyCoded coded = fit_poly_code_of(values);
    ASSERT_EQ(coded.bytes[0], 1);
    EXPECT_EQ(read_slowly_fit_poly(coded.bytes, n), coded.said);
  }
}

TEST(FitPoly, GoldenBytesOfALine) {
  std::vector<float> values(40);
  for (size_t i = 0; i < 40; ++i) values[i] = static_cast<float>(i) + 0.5F;
  const FitPolyCoded coded = fit_poly_code_of(values);
  EXPECT_EQ(coded.said, values);
  const std::vector<uint8_t> wanted = {1, 0, 1, 0, 40, 0, 0, 0, 0, 0, 0xa0, 0x41, 0, 0, 0xa0, 0xc1};
  ASSERT_EQ(coded.bytes.size(), 4 + 28 + 30u);
  EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), coded.bytes.begin()));
  // Entries 0 and 1 are points 39 and 38 of the descending curve: 100111, 100110 from the lowest bit.
  EXPECT_EQ(coded.bytes[32], 0b10'100111);
  EXPECT_EQ(coded.bytes[33] & 0x0f, 0b1001);
}

// Biased, but close: the fit of a selection's values is within 2 % of them (a Gaussian's are within 1 %). Where the
// tail is heavy, the error is a tenth of that of one piece.
TEST(FitPoly, SelectedValuesAreFittedWithinTwoPercent) {
  const auto error_of = [](const std::vector<float>& values) {
    const FitPolyCoded coded = fit_poly_code_of(values);
    EXPECT_EQ(coded.bytes[0], 1);
    double error = 0;
    double norm = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      error += std::pow(double{coded.said[i]} - double{values[i]}, 2);
      norm += std::pow(double{values[i]}, 2);
    }
    return std::sqrt(error / norm);
  };
  for (const size_t n : {400, 4000, 40'000}) {
    EXPECT_LT(error_of(both_signs(n, 1, n)), 0.01) << n;
    EXPECT_LT(error_of(both_signs(n, 3, n)), 0.02) << n;
  }
}

TEST(FitPoly, TheSignsAndTheZerosAreApart) {
  auto values = both_signs(900, 1, 4);
  for (size_t i = 0; i < values.size(); i += 3) values[i] = i % 2 == 0 ? 0.0F : -0.0F;
  const FitPolyCoded coded = fit_poly_code_of(values);
  ASSERT_EQ(coded.bytes[0], 1);
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == 0) {
      ASSERT_EQ(coded.said[i], 0);
    } else {
      ASSERT_EQ(std::signbit(coded.said[i]), std::signbit(values[i]));
    }
  }
}

TEST(FitPoly, PiecesAndCoefficientsThatCannotBeAreMalformed) {
  const auto values = both_signs(300, 1, 4);
  const FitPolyCoded coded = fit_poly_code_of(values);
  ASSERT_EQ(coded.bytes[0], 1);
  std::vector<float> out(values.size());
  const auto decodes_with = [&](size_t at, uint32_t number) {
    ByteBuffer bytes = coded.bytes;
    std::memcpy(bytes.data() + at, &number, sizeof(number));
    return fit_poly().decode(bytes, {}, std::span<float>(out)).has_value();
  };
  for (const uint32_t length : {0u, 301u, ~0u}) EXPECT_FALSE(decodes_with(4, length)) << length;
  for (const float bad : {0x1p-101F, 0x1.8p125F, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    EXPECT_FALSE(decodes_with(8, std::bit_cast<uint32_t>(bad))) << bad;
    EXPECT_FALSE(decodes_with(28, std::bit_cast<uint32_t>(-bad))) << bad;
  }
  // Six of the largest are finite still.
  ByteBuffer bytes = coded.bytes;
  const float largest = 0x1p125F;
  for (size_t j = 0; j < 6; ++j) std::memcpy(bytes.data() + 8 + 4 * j, &largest, 4);
  ASSERT_TRUE(fit_poly().decode(bytes, {}, std::span<float>(out)));
  for (const float value : out) ASSERT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace millrace
