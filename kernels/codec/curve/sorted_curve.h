#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"

namespace millrace {

/// Holds the values in descending order ([DeepReduce21, 5], C_S(g)), and the place of each entry: its point of the
/// curve.
struct SortedCurve {
  Buffer<float> points;  ///< [n]
  IndexBuffer point_of;  ///< [n], by entry
  size_t positive = 0;   ///< points above 0: the first ones
  size_t zero = 0;       ///< points that are 0, of either sign: behind them
};

/// Sorts fewer than 2^32 values; equal ones in the order of the entries. The sign is part of the order, so a curve has
/// its positive points apart from its negative ones.
///
/// Cost     a radix sort by 32 bits.
/// Errors   non_finite.
Result<SortedCurve> sort_curve(std::span<const float> values);

/// Holds the squared errors of `fitted`, and the squares of the points, both divided by the square of a number near the
/// largest.
struct CurveError {
  double error = 0;
  double norm = 0;
};
CurveError curve_error(std::span<const float> points, std::span<const float> fitted);

/// Returns whether a fit may be sent: its error is at most half of the values in L2 norm. So it is a contraction for
/// any values.
inline bool is_contraction(const CurveError& error) { return error.error <= error.norm / 4; }

/// Returns the bytes of the reorder map: ceil(log2(count)) bits an entry [DeepReduce21, 5.1].
uint64_t map_bytes(uint64_t count);

/// Appends the map.
void append_map(IndexSpan point_of, ByteBuffer& out);

/// Gives every entry its point of the curve. map: map_bytes() of hostile bytes.
/// False: a point that is none, or something behind the last.
bool take_points(ByteSpan map, std::span<const float> curve, std::span<float> out);

}  // namespace millrace
