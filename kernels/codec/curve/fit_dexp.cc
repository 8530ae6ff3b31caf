// [DeepReduce21, 5], Fit-DExp: the sorted values as double exponentials, and the map back. The paper fits one to the
// curve, of four coefficients. A top-r selection has a step between its signs, which no double exponential has. So
// there is one for the positive values and one for the negative ones.
#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/curve/curve_codec.h"
#include "kernels/codec/curve/double_exponential.h"
#include "kernels/codec/curve/piecewise_polynomial.h"

namespace millrace {
namespace {

struct ExponentialCode {
  static constexpr ValueCodecId kId{11};
  static constexpr std::string_view kName = "fit_dexp";
  static constexpr uint64_t kCurves = 2;

  static bool sized(ByteSpan bytes, uint64_t count) {
    const bool zeros = bytes[1] == 0 && bytes[2] == 0 && bytes[3] == 0;
    const uint64_t curves = kCurves * (2 * sizeof(float) + 2 * sizeof(double));
    return zeros && bytes.size() == kFitHeaderBytes + 2 * sizeof(uint32_t) + curves + map_bytes(count);
  }

  static bool fit(const SortedCurve& curve, ByteBuffer& out, std::span<float> fitted) {
    const std::span<const float> points(curve.points);
    const size_t negative_at = curve.positive + curve.zero;
    ByteWriter writer(out);
    writer.put(FitMode::kFitted);
    writer.put(std::array<uint8_t, 3>{});
    writer.put(static_cast<uint32_t>(curve.positive));
    writer.put(static_cast<uint32_t>(curve.zero));
    std::array<DoubleExponential, kCurves> fits;
    if (curve.positive > 0) fits[0] = fit_double_exponential(points.first(curve.positive), CurveStart::kFirst);
    if (negative_at < points.size()) fits[1] = fit_double_exponential(points.subspan(negative_at), CurveStart::kLast);
    for (DoubleExponential& one : fits) {
      float a{};
      float c{};
      if (!round_coefficient(one.a, a) || !round_coefficient(one.c, c)) return false;
      if (a == 0) one.q = 1;
      if (c == 0) one.s = 1;
      writer.put(a);
      writer.put(c);
      writer.put(one.q);
      writer.put(one.s);
      one.a = static_cast<double>(a);
      one.c = static_cast<double>(c);
    }
    evaluate(fits, curve.positive, curve.zero, fitted);
    return true;
  }

  static void evaluate(const std::array<DoubleExponential, kCurves>& fits, size_t positive, size_t zero,
                       std::span<float> points) {
    evaluate_double_exponential(fits[0], points.first(positive));
    std::ranges::fill(points.subspan(positive, zero), 0.0F);
    const std::span<float> negative = points.subspan(positive + zero);
    evaluate_double_exponential(fits[1], negative);
    std::ranges::reverse(negative);
    for (float& point : negative) point = -point;
  }

  static const char* read(ByteSpan bytes, std::span<float> points) {
    ByteReader reader(bytes.subspan(kFitHeaderBytes));
    const uint64_t positive = *reader.get<uint32_t>();
    const uint64_t zero = *reader.get<uint32_t>();
    if (positive + zero > points.size()) return "more points than values";
    std::array<DoubleExponential, kCurves> fits;
    for (DoubleExponential& one : fits) {
      const float a = *reader.get<float>();
      const float c = *reader.get<float>();
      one = {static_cast<double>(a), static_cast<double>(c), *reader.get<double>(), *reader.get<double>()};
      if (!coefficient_valid(a) || !coefficient_valid(c)) return "a coefficient that cannot be";
      if (!(one.q > 0 && std::isfinite(one.q) && one.s > 0 && std::isfinite(one.s))) return "a rate that cannot be";
    }
    evaluate(fits, positive, zero, points);
    return nullptr;
  }
};

}  // namespace

const ValueCodec& fit_dexp_value_codec() {
  static const FittedValueCodec<ExponentialCode> codec;
  return codec;
}

}  // namespace millrace
