#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/codec/codec.h"
#include "kernels/codec/curve/double_exponential.h"
#include "tests/support/oracles/select_oracle.h"

namespace millrace {
namespace {

/// |fit - points| / |points| in L2, of the magnitudes as they are decoded.
double fit_dexp_error_of(const std::vector<float>& points, const DoubleExponential& fit) {
  std::vector<float> fitted(points.size());
  evaluate_double_exponential(fit, fitted);
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    error += std::pow(static_cast<double>(fitted[i]) - std::abs(static_cast<double>(points[i])), 2);
    norm += std::pow(static_cast<double>(points[i]), 2);
  }
  return std::sqrt(error / norm);
}

/// The least error over a grid of rates, one of which may be 0, with the best amplitudes for them.
double grid_error(const std::vector<float>& curve) {
  const std::vector<double> points(curve.begin(), curve.end());
  const auto powers_of = [&](double rate) {
    std::vector<double> powers(points.size(), 1.0);
    const double q = std::exp(rate / static_cast<double>(points.size()));
    for (size_t i = 1; i < powers.size(); ++i) powers[i] = powers[i - 1] * q;
    return powers;
  };
  const auto dot = [](const std::vector<double>& x, const std::vector<double>& y) {
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
    return sum;
  };
  std::vector<std::vector<double>> rates = {powers_of(0)};
  for (double rate = 0.05; rate < 3000; rate *= 1.4) rates.push_back(powers_of(-rate));
  const double yy = dot(points, points);
  double best = yy;
  for (size_t i = 0; i < rates.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const double ee = dot(rates[i], rates[i]), ef = dot(rates[i], rates[j]), ff = dot(rates[j], rates[j]);
      const double ey = dot(rates[i], points), fy = dot(rates[j], points);
      const double determinant = ee * ff - ef * ef;
      const double a = (ey * ff - fy * ef) / determinant, c = (fy * ee - ey * ef) / determinant;
      best = std::min(best, yy - a * ey - c * fy);
    }
  }
  return std::sqrt(best / yy);
}

std::vector<float> fit_dexp_descending(size_t n, double power, uint64_t seed) {
  RandomSequence random(RandomKey::from(seed));
  std::vector<float> values;
  while (values.size() < n) {
    const double value = random.next_normal();
    if (value > 2) values.push_back(static_cast<float>(std::pow(value, power)));
  }
  std::ranges::sort(values, std::greater());
  return values;
}

TEST(DoubleExponential, IsFoundWhereTheCurveIsOne) {
  struct Model {
    double a, b, c, d;
  };
  for (const Model& model :
       {Model{1, -1, 3, -20}, {2, -0.5, 0.5, -300}, {1, 0, 4, -8}, {5, -2, 5, -4}, {3, -1, -0.4, 0.8}}) {
    for (const size_t n : {50, 1000, 30'000}) {
      std::vector<float> points(n);
      for (size_t i = 0; i < n; ++i) {
        const double x = static_cast<double>(i) / static_cast<double>(n);
        points[i] = static_cast<float>(model.a * std::exp(model.b * x) + model.c * std::exp(model.d * x));
      }
      EXPECT_LT(fit_dexp_error_of(points, fit_double_exponential(points, CurveStart::kFirst)), 2e-3)
          << model.b << ' ' << model.d << ' ' << n;
      std::ranges::reverse(points);
      for (float& point : points) point = -point;
      const DoubleExponential other = fit_double_exponential(points, CurveStart::kLast);
      std::ranges::reverse(points);
      EXPECT_LT(fit_dexp_error_of(points, other), 2e-3);
    }
  }
}

TEST(DoubleExponential, FittedRates_AsGoodAsAGridAndCloseToASelectionsValues) {
  for (const size_t n : {100, 1000}) {
    for (const double power : {0.5, 1.0, 3.0, 6.0}) {
      const auto points = fit_dexp_descending(n, power, n);
      const double error = fit_dexp_error_of(points, fit_double_exponential(points, CurveStart::kFirst));
      EXPECT_LE(error, grid_error(points) * 1.02) << n << ' ' << power;
      EXPECT_LT(error, power <= 1 ? 0.02 : 0.2) << n << ' ' << power;
    }
  }
}

TEST(DoubleExponential, FewPointsAndEqualOnesAndOneSpikeAreFitted) {
  for (const auto& points : {std::vector<float>{3}, {3, 3}, {4, 1}, {5, 2, 1}, std::vector<float>(1000, 0.125F)}) {
    EXPECT_LT(fit_dexp_error_of(points, fit_double_exponential(points, CurveStart::kFirst)), 1e-6) << points.size();
  }
  std::vector<float> spike(1000, 1);
  spike[0] = 1000;
  EXPECT_LT(fit_dexp_error_of(spike, fit_double_exponential(spike, CurveStart::kFirst)), 0.05);
  const DoubleExponential none = fit_double_exponential(std::vector<float>(5, 0), CurveStart::kFirst);
  EXPECT_EQ(none.a, 0);
  EXPECT_EQ(none.c, 0);
}

TEST(DoubleExponential, AnInvalidFitIsDecodedAsValidMagnitudes) {
  std::vector<float> points(1000);
  // Below 0, over the largest, infinite minus infinite, below the smallest normal number.
  for (const DoubleExponential& fit : {DoubleExponential{-1, 0.5, 1, 0.9},
                                       {0x1p125, 0x1p125, 2, 2},
                                       {0x1p125, -0x1p125, 3, 3},
                                       {0x1p-100, 0, 0.9, 1}}) {
    evaluate_double_exponential(fit, points);
    for (const float point : points) {
      ASSERT_TRUE(std::isfinite(point));
      ASSERT_TRUE(point == 0 || point >= std::numeric_limits<float>::min());
    }
  }
}

const ValueCodec& fit_dexp() { return *find_value_codec(codec_from_text("gap+fit_dexp").value().value); }

struct FitDexpCoded {
  ByteBuffer bytes;
  std::vector<float> said;
};

FitDexpCoded fit_dexp_code_of(const std::vector<float>& values) {
  FitDexpCoded coded{{}, std::vector<float>(values.size())};
  EXPECT_TRUE(fit_dexp().encode({}, std::span<const float>(values), {}, coded.bytes, std::span<float>(coded.said)));
  return coded;
}

std::vector<float> values_with_zeros(size_t n) {
  std::vector<float> values;
  for (const double magnitude : fit_dexp_descending(n, 1, n)) values.push_back(static_cast<float>(magnitude));
  RandomSequence random(RandomKey::from(n));
  for (size_t i = n; i > 1; --i) std::swap(values[i - 1], values[random.next_below(i)]);
  for (size_t i = 0; i < n; ++i) values[i] *= i % 7 == 0 ? 0.0F : i % 3 == 0 ? -1.0F : 1.0F;
  return values;
}

/// The code read as protocol/wire/fitted_codecs.md says it, bit by bit.
std::vector<float> read_slowly_fit_dexp(const ByteBuffer& bytes, size_t count) {
  const auto number = [&](size_t at, size_t size) {
    uint64_t value = 0;
    for (size_t b = 0; b < size; ++b) value += uint64_t{bytes.at(at + b)} << 8 * b;
    return value;
  };
  const auto magnitudes = [&](size_t at, size_t n) {
    const double a = static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(number(at, 4))));
    const double c = static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(number(at + 4, 4))));
    const auto q = std::bit_cast<double>(number(at + 8, 8));
    const auto s = std::bit_cast<double>(number(at + 16, 8));
    std::vector<float> points;
    double power_q = 1, power_s = 1;
    for (size_t i = 0; i < n; ++i) {
      const double y = a * power_q + c * power_s;
      points.push_back(y < 0x1p-126 ? 0.0F : static_cast<float>(y));
      power_q = power_q * q < 0x1p-100 ? 0 : power_q * q;
      power_s = power_s * s < 0x1p-100 ? 0 : power_s * s;
    }
    return points;
  };
  const size_t positive = number(4, 4);
  const size_t zero = number(8, 4);
  std::vector<float> curve = magnitudes(12, positive);
  curve.resize(positive + zero, 0.0F);
  const std::vector<float> negative = magnitudes(36, count - positive - zero);
  for (size_t i = negative.size(); i-- > 0;) curve.push_back(-negative[i]);
  size_t width = 0;
  while (uint64_t{1} << width < count) ++width;
  std::vector<float> values;
  for (size_t i = 0; i < count; ++i) {
    size_t point = 0;
    for (size_t b = 0; b < width; ++b) {
      const size_t bit = 8 * 60 + i * width + b;
      point += size_t{(bytes.at(bit / 8) >> bit % 8) & 1u} << b;
    }
    values.push_back(curve.at(point));
  }
  return values;
}

TEST(FitDexp, IsReadAsTheWireFormatSaysIt) {
  for (const size_t n : {64, 500, 5000}) {
    const auto values = values_with_zeros(n);
    const FitDexpCoded coded = fit_dexp_code_of(values);
    ASSERT_EQ(coded.bytes[0], 1);
    EXPECT_EQ(read_slowly_fit_dexp(coded.bytes, n), coded.said);
    for (size_t i = 0; i < n; ++i) ASSERT_GE(coded.said[i] * values[i], 0) << i;  // no sign is lost
  }
}

TEST(FitDexp, ZerosAloneAndOneSignAloneAreFitted) {
  const FitDexpCoded zeros = fit_dexp_code_of(std::vector<float>(1000, 0.0F));
  EXPECT_EQ(zeros.bytes[0], 1);
  EXPECT_EQ(zeros.said, std::vector<float>(1000, 0.0F));
  const FitDexpCoded negative = fit_dexp_code_of(std::vector<float>(1000, -0.5F));
  EXPECT_EQ(negative.bytes[0], 1);
  for (const float value : negative.said) EXPECT_NEAR(value, -0.5F, 1e-6F);
}

TEST(FitDexp, CountsCoefficientsAndRatesThatCannotBeAreMalformed) {
  const auto values = values_with_zeros(300);
  const FitDexpCoded coded = fit_dexp_code_of(values);
  ASSERT_EQ(coded.bytes[0], 1);
  std::vector<float> out(values.size());
  const auto decodes_with = [&](size_t at, auto number) {
    ByteBuffer bytes = coded.bytes;
    std::memcpy(bytes.data() + at, &number, sizeof(number));
    return fit_dexp().decode(bytes, {}, std::span<float>(out)).has_value();
  };
  for (const uint32_t count : {301u, ~0u}) {
    EXPECT_FALSE(decodes_with(4, count));
    EXPECT_FALSE(decodes_with(8, count));
  }
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {0x1p-101F, -0x1.8p125F, infinity, std::nanf("")}) {
    for (const size_t at : {12, 16, 36, 40}) EXPECT_FALSE(decodes_with(at, bad)) << bad;
  }
  for (const double bad : {0.0, -0.5, double{infinity}, std::nan("")}) {
    for (const size_t at : {20, 28, 44, 52}) EXPECT_FALSE(decodes_with(at, bad)) << bad;
  }
  for (const double good : {1e-300, 1.0, 1e300}) EXPECT_TRUE(decodes_with(20, good)) << good;
}

}  // namespace
}  // namespace millrace
