// f16 and bf16 rounded to the nearest, against the definitions of the formats.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/base/random.h"
#include "kernels/quantize/half_kernels.h"
#include "tests/support/isa.h"

namespace millrace {
namespace {

using testing::for_each_isa;

constexpr uint32_t kCodes = 1 << 16;

std::vector<uint16_t> all_codes() {
  std::vector<uint16_t> codes(kCodes);
  for (uint32_t code = 0; code < kCodes; ++code) codes[code] = static_cast<uint16_t>(code);
  return codes;
}

/// The value of an f16 code, by the definition.
double f16_defined(uint32_t code) {
  const int exponent = static_cast<int>(code >> 10 & 31);
  const double mantissa = code & 1023;
  double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  if (exponent == 31) magnitude = mantissa == 0 ? HUGE_VAL : std::nan("");
  return (code & 0x8000) != 0 ? -magnitude : magnitude;
}

/// The nearest code of a format with `mantissa` bits: the number of its units, rounded to even, is the code.
uint16_t nearest_code(float value, int mantissa, int power_min, int power_max) {
  const double magnitude = std::abs(static_cast<double>(value));
  const int power = magnitude < std::ldexp(1.0, power_min) ? power_min : std::ilogb(magnitude);
  const double units = std::nearbyint(std::ldexp(magnitude, mantissa - power));
  const uint32_t infinity = static_cast<uint32_t>(power_max - power_min + 2) << mantissa;
  uint32_t code = infinity;
  if (std::isfinite(units) && power <= power_max) {
    // The unit of the lowest binade counts from 0; each further binade adds one to the exponent.
    code = (static_cast<uint32_t>(power - power_min) << mantissa) + static_cast<uint32_t>(units);
  }
  return static_cast<uint16_t>(code | (std::signbit(value) ? 0x8000u : 0));
}

/// Values of every exponent, with ties, neighbours of ties and odd lengths.
std::vector<float> awkward_values() {
  std::vector<float> values = {0.0F,
                               -0.0F,
                               65504.0F,
                               65519.996F,
                               65520.0F,
                               65536.0F,
                               1e30F,
                               -1e30F,
                               HUGE_VALF,
                               -HUGE_VALF,
                               std::numeric_limits<float>::max(),
                               std::numeric_limits<float>::denorm_min()};
  for (uint32_t code = 1; code < 0x7C00; code += 7) {
    const auto low = static_cast<float>(f16_defined(code));
    const auto middle = static_cast<float>((f16_defined(code) + f16_defined(code + 1)) / 2);
    values.insert(values.end(), {low, -middle, std::nextafter(middle, 0.0F), std::nextafter(middle, 1e9F)});
  }
  for (uint32_t at = 0; at < 4'001; ++at) {
    const auto value = std::bit_cast<float>(random_words({3, 4}, at)[0]);
    if (!std::isnan(value)) values.push_back(value);
  }
  return values;
}

TEST(HalfNearest, EveryF16CodeHasItsValueAndReturns) {
  for_each_isa([](const std::string&) {
    std::vector<float> values(kCodes);
    std::vector<uint16_t> codes(kCodes);
    f16_any_values(all_codes().data(), kCodes, values.data());
    f16_nearest(values.data(), kCodes, codes.data());
    for (uint32_t code = 0; code < kCodes; ++code) {
      const double defined = f16_defined(code);
      if (std::isnan(defined)) {
        ASSERT_TRUE(std::isnan(values[code])) << code;
        ASSERT_TRUE(std::isnan(f16_defined(codes[code]))) << code;
        continue;
      }
      ASSERT_EQ(std::bit_cast<uint32_t>(values[code]), std::bit_cast<uint32_t>(static_cast<float>(defined))) << code;
      ASSERT_EQ(codes[code], code);
    }
  });
}

TEST(HalfNearest, ValuesRoundToTheNearestAndTiesToEven) {
  const std::vector<float> values = awkward_values();
  for_each_isa([&](const std::string&) {
    std::vector<uint16_t> half(values.size());
    std::vector<uint16_t> brain(values.size());
    f16_nearest(values.data(), values.size(), half.data());
    bf16_nearest(values.data(), values.size(), brain.data());
    for (size_t at = 0; at < values.size(); ++at) {
      ASSERT_EQ(half[at], nearest_code(values[at], 10, -14, 15)) << values[at];
      ASSERT_EQ(brain[at], nearest_code(values[at], 7, -126, 127)) << values[at];
    }
  });
}

TEST(HalfNearest, NanStaysNan) {
  for_each_isa([](const std::string&) {
    for (const uint32_t bits : {0x7F800001u, 0x7FFFFFFFu, 0xFF800001u, 0xFFFFFFFFu, 0x7FC00000u}) {
      const auto value = std::bit_cast<float>(bits);
      uint16_t half = 0;
      uint16_t brain = 0;
      f16_nearest(&value, 1, &half);
      bf16_nearest(&value, 1, &brain);
      EXPECT_TRUE(std::isnan(f16_defined(half))) << bits;
      float back = 0;
      bf16_values(&brain, 1, &back);
      EXPECT_TRUE(std::isnan(back)) << bits;
      EXPECT_FALSE(bf16_all_finite(&brain, 1));
    }
  });
}

}  // namespace
}  // namespace millrace
