#include "kernels/codec/curve/sorted_curve.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/codec/bits/bit_stream.h"
#include "kernels/stream/index_sort.h"
#include "kernels/stream/stream.h"

namespace millrace {
namespace {

/// Increases where the value decreases.
uint32_t descending_key(float value) {
  constexpr uint32_t kSign = uint32_t{1} << 31;
  const auto bits = std::bit_cast<uint32_t>(value);
  return (bits & kSign) != 0 ? bits : ~(bits | kSign);
}

}  // namespace

Result<SortedCurve> sort_curve(std::span<const float> values) {
  MILLRACE_CHECK(values.size() >> 32 == 0, values.size());
  if (!all_finite(values)) return fail(ErrorCode::kNonFinite, "NaN or infinity among the values");
  Buffer<uint64_t> keys(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    keys[i] = index_key(descending_key(values[i]), static_cast<uint32_t>(i));
  }
  Buffer<uint64_t> scratch;
  sort_by_index(keys, 32, scratch);

  SortedCurve curve;
  curve.points.resize(values.size());
  curve.point_of.resize(values.size());
  size_t negative = 0;
  for (size_t k = 0; k < values.size(); ++k) {
    const uint32_t entry = order_of_key(keys[k]);
    const float value = values[entry];
    curve.points[k] = value;
    curve.point_of[entry] = static_cast<uint32_t>(k);
    curve.positive += value > 0 ? 1 : 0;
    negative += value < 0 ? 1 : 0;
  }
  curve.zero = values.size() - curve.positive - negative;
  return curve;
}

CurveError curve_error(std::span<const float> points, std::span<const float> fitted) {
  MILLRACE_CHECK(points.size() == fitted.size(), points.size(), fitted.size());
  CurveError sums;
  if (points.empty()) return sums;
  const double largest =
      std::max(std::abs(static_cast<double>(points.front())), std::abs(static_cast<double>(points.back())));
  const double scale = largest == 0 ? 1 : std::ldexp(1.0, -std::ilogb(largest));
  for (size_t k = 0; k < points.size(); ++k) {
    const double point = static_cast<double>(points[k]) * scale;
    const double error = static_cast<double>(fitted[k]) * scale - point;
    sums.error += error * error;
    sums.norm += point * point;
  }
  return sums;
}

uint64_t map_bytes(uint64_t count) { return (count * number_bits(count) + 7) / 8; }

void append_map(IndexSpan point_of, ByteBuffer& out) {
  const uint32_t bits = number_bits(point_of.size());
  BitWriter writer(out);
  for (const uint32_t point : point_of) writer.put(point, bits);
  writer.finish();
}

bool take_points(ByteSpan map, std::span<const float> curve, std::span<float> out) {
  MILLRACE_CHECK(curve.size() == out.size() && map.size() == map_bytes(out.size()), map.size(), curve.size(),
                 out.size());
  const uint32_t bits = number_bits(out.size());
  BitReader reader(map);
  for (float& value : out) {
    const uint64_t point = reader.take(bits);
    if (point >= curve.size()) return false;
    value = curve[point];
  }
  return reader.at_end();
}

}  // namespace millrace
