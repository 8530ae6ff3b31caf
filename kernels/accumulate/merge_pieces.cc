#include "kernels/accumulate/merge_pieces.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/base/check.h"

namespace millrace {
namespace {

/// Where the output stands.
struct Writer {
  uint32_t* indices;
  float* values;
};

void copy(const StreamView& from, size_t first, size_t last, Writer& out) {
  const size_t count = last - first;
  if (count == 0) return;
  std::memcpy(out.indices, from.indices.data() + first, count * sizeof(uint32_t));
  std::memcpy(out.values, from.values.data() + first, count * sizeof(float));
  out.indices += count;
  out.values += count;
}

/// 1 where a <= b, 0 else; by the borrow of a subtraction, since compilers make jumps of comparisons, and these jumps
/// cannot be predicted.
uint64_t not_above(uint64_t a, uint64_t b) { return 1 - ((b - a) >> 63); }

/// The value where `taken` is 1, zero where it is 0.
float masked(float value, uint64_t taken) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) & (0u - static_cast<uint32_t>(taken)));
}

/// Merges base[first, last) with a piece of the same index range.
void merge_one(const StreamView& base, size_t first, size_t last, const PlacedStream& piece, Writer& out) {
  const uint64_t begin = piece.begin;
  const uint32_t* const left_indices = base.indices.data();
  const uint32_t* const right_indices = piece.stream.indices.data();
  const float* const left_values = base.values.data();
  const float* const right_values = piece.stream.values.data();
  const size_t count = piece.stream.indices.size();
  uint32_t* indices = out.indices;
  float* values = out.values;
  size_t j = 0;
  while (first < last && j < count) {
    const uint64_t left = left_indices[first];
    const uint64_t right = right_indices[j] + begin;
    const uint64_t take_left = not_above(left, right);
    const uint64_t take_right = not_above(right, left);
    *indices++ = static_cast<uint32_t>(right ^ ((left ^ right) & (0 - take_left)));
    *values++ = masked(left_values[first], take_left) + masked(right_values[j], take_right);
    first += take_left;
    j += take_right;
  }
  out = {indices, values};
  copy(base, first, last, out);
  for (; j < count; ++j) {
    *out.indices++ = static_cast<uint32_t>(right_indices[j] + begin);
    *out.values++ = right_values[j];
  }
}

}  // namespace

void merge_pieces(const StreamView& base, const std::vector<PlacedStream>& pieces, Stream& out) {
  size_t count = base.count();
  for (const PlacedStream& piece : pieces) {
    MILLRACE_CHECK(!base.dense && !piece.stream.dense);
    count += piece.stream.count();
  }
  out.dimension = base.dimension;
  out.dense = false;
  out.indices.resize(count);
  out.values.resize(count);
  Writer writer{out.indices.data(), out.values.data()};
  size_t done = 0;  // entries of base
  for (const PlacedStream& piece : pieces) {
    const auto [first, last] = range_of(base.indices, piece.begin, piece.begin + piece.stream.dimension);
    copy(base, done, first, writer);
    merge_one(base, first, last, piece, writer);
    done = last;
  }
  copy(base, done, base.count(), writer);
  const auto written = static_cast<size_t>(writer.indices - out.indices.data());
  out.indices.resize(written);
  out.values.resize(written);
}

}  // namespace millrace
