#include "kernels/codec/sorted_curve.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

#include "kernels/base/check.h"
#include "kernels/codec/bit_stream.h"
#include "kernels/stream/index_sort.h"
#include "kernels/stream/stream.h"

namespace millrace {
namespace {

template <typename T>
using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

/// Increases where the value decreases.
template <typename T>
Bits<T> descending_key(T value) {
  constexpr auto kSign = Bits<T>{1} << (8 * sizeof(T) - 1);
  const auto bits = std::bit_cast<Bits<T>>(value);
  return (bits & kSign) != 0 ? bits : ~(bits | kSign);
}

/// Entries whose keys agree in the upper half, by all of the key.
void sort_runs(std::span<const double> values, Buffer<uint64_t>& keys) {
  for (size_t begin = 0; begin < keys.size();) {
    size_t end = begin + 1;
    while (end < keys.size() && index_of_key(keys[end]) == index_of_key(keys[begin])) ++end;
    const auto before = [&](uint64_t a, uint64_t b) {
      const uint64_t key_a = descending_key(values[order_of_key(a)]);
      const uint64_t key_b = descending_key(values[order_of_key(b)]);
      return key_a != key_b ? key_a < key_b : order_of_key(a) < order_of_key(b);
    };
    const auto run = keys.begin() + static_cast<std::ptrdiff_t>(begin);
    if (end - begin > 1) std::sort(run, keys.begin() + static_cast<std::ptrdiff_t>(end), before);
    begin = end;
  }
}

}  // namespace

template <typename T>
Result<SortedCurve<T>> sort_curve(std::span<const T> values) {
  MILLRACE_CHECK(values.size() >> 32 == 0, values.size());
  if (!all_finite(values)) return fail(ErrorCode::kNonFinite, "NaN or infinity among the values");
  Buffer<uint64_t> keys(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    constexpr int kUpper = 8 * (sizeof(T) - 4);
    keys[i] = index_key(static_cast<uint32_t>(descending_key(values[i]) >> kUpper), static_cast<uint32_t>(i));
  }
  Buffer<uint64_t> scratch;
  sort_by_index(keys, 32, scratch);
  if constexpr (sizeof(T) == 8) sort_runs(values, keys);

  SortedCurve<T> curve;
  curve.points.resize(values.size());
  curve.point_of.resize(values.size());
  size_t negative = 0;
  for (size_t k = 0; k < values.size(); ++k) {
    const uint32_t entry = order_of_key(keys[k]);
    const T value = values[entry];
    curve.points[k] = value;
    curve.point_of[entry] = static_cast<uint32_t>(k);
    curve.positive += value > 0 ? 1 : 0;
    negative += value < 0 ? 1 : 0;
  }
  curve.zero = values.size() - curve.positive - negative;
  return curve;
}

template <typename T>
CurveError curve_error(std::span<const T> points, std::span<const T> fitted) {
  MILLRACE_CHECK(points.size() == fitted.size(), points.size(), fitted.size());
  CurveError sums;
  if (points.empty()) return sums;
  const double largest =
      std::max(std::abs(static_cast<double>(points.front())), std::abs(static_cast<double>(points.back())));
  const double scale = largest == 0 ? 1 : std::ldexp(1.0, -std::max(std::ilogb(largest), -1000));
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

template <typename T>
bool take_points(ByteSpan map, std::span<const T> curve, std::span<T> out) {
  MILLRACE_CHECK(curve.size() == out.size() && map.size() == map_bytes(out.size()), map.size(), curve.size(),
                 out.size());
  const uint32_t bits = number_bits(out.size());
  BitReader reader(map);
  for (T& value : out) {
    const uint64_t point = reader.take(bits);
    if (point >= curve.size()) return false;
    value = curve[point];
  }
  return reader.at_end();
}

template Result<SortedCurve<float>> sort_curve(std::span<const float>);
template Result<SortedCurve<double>> sort_curve(std::span<const double>);
template CurveError curve_error(std::span<const float>, std::span<const float>);
template CurveError curve_error(std::span<const double>, std::span<const double>);
template bool take_points(ByteSpan, std::span<const float>, std::span<float>);
template bool take_points(ByteSpan, std::span<const double>, std::span<double>);

}  // namespace millrace
