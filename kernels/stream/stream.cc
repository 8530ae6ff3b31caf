#include "kernels/stream/stream.h"

#include <algorithm>
#include <string>

#include "kernels/base/check.h"
#include "kernels/stream/stream_scan.h"

namespace millrace {
template <typename T>
Status validate(const StreamView<T>& stream) {
  if (stream.dimension == 0 || stream.dimension > kDimensionMax) {
    return fail(ErrorCode::kMalformed, "stream dimension " + std::to_string(stream.dimension) + " is not in 1..2^32");
  }
  if (stream.dense) {
    if (!stream.indices.empty() || stream.values.size() != stream.dimension) {
      return fail(ErrorCode::kMalformed, "a dense stream of dimension " + std::to_string(stream.dimension) + " has " +
                                             std::to_string(stream.values.size()) + " values and " +
                                             std::to_string(stream.indices.size()) + " indices");
    }
    return {};
  }
  if (stream.indices.size() != stream.values.size()) {
    return fail(ErrorCode::kMalformed, "a sparse stream has " + std::to_string(stream.indices.size()) +
                                           " indices and " + std::to_string(stream.values.size()) + " values");
  }
  if (stream.indices.empty()) return {};
  if (!strictly_increasing(stream.indices.data(), stream.indices.size())) {
    return fail(ErrorCode::kMalformed, "the indices of a sparse stream are not strictly increasing");
  }
  // Increasing, so the last one is the largest; and so there are at most `dimension` of them.
  if (stream.indices.back() >= stream.dimension) {
    return fail(ErrorCode::kMalformed, "index " + std::to_string(stream.indices.back()) +
                                           " is out of range of dimension " + std::to_string(stream.dimension));
  }
  return {};
}

template <>
bool all_finite(std::span<const float> values) {
  return all_finite_f32(values.data(), values.size());
}

template <>
bool all_finite(std::span<const double> values) {
  return all_finite_f64(values.data(), values.size());
}

template <typename T>
Stream<T> to_dense(const StreamView<T>& stream) {
  Stream<T> out;
  out.dimension = stream.dimension;
  out.dense = true;
  if (stream.dense) {
    out.values.assign(stream.values.begin(), stream.values.end());
    return out;
  }
  out.values.assign(stream.dimension, T{0});
  for (size_t i = 0; i < stream.indices.size(); ++i) out.values[stream.indices[i]] = stream.values[i];
  return out;
}

template <typename T>
Stream<T> to_sparse(const StreamView<T>& stream) {
  Stream<T> out;
  out.dimension = stream.dimension;
  if (!stream.dense) {
    out.indices.assign(stream.indices.begin(), stream.indices.end());
    out.values.assign(stream.values.begin(), stream.values.end());
    return out;
  }
  const size_t count = static_cast<size_t>(
      std::count_if(stream.values.begin(), stream.values.end(), [](T value) { return value != T{0}; }));
  // One slot more: the entry after the last is written too, and not kept.
  out.indices.resize(count + 1);
  out.values.resize(count + 1);
  size_t at = 0;
  for (size_t i = 0; i < stream.values.size(); ++i) {
    out.indices[at] = static_cast<uint32_t>(i);
    out.values[at] = stream.values[i];
    at += stream.values[i] != T{0};
  }
  out.indices.resize(count);
  out.values.resize(count);
  return out;
}

std::pair<size_t, size_t> range_of(IndexSpan indices, uint64_t begin, uint64_t end) {
  MILLRACE_CHECK(begin <= end, begin, end);
  const auto first = std::lower_bound(indices.begin(), indices.end(), begin);
  const auto last = std::lower_bound(first, indices.end(), end);
  return {static_cast<size_t>(first - indices.begin()), static_cast<size_t>(last - indices.begin())};
}

template <typename T>
Stream<T> cut(const StreamView<T>& stream, uint64_t begin, uint64_t end) {
  MILLRACE_CHECK(begin <= end && end <= stream.dimension, begin, end, stream.dimension);
  Stream<T> out;
  out.dimension = end - begin;
  out.dense = stream.dense;
  if (stream.dense) {
    const auto piece = stream.values.subspan(begin, end - begin);
    out.values.assign(piece.begin(), piece.end());
    return out;
  }
  const auto [first, last] = range_of(stream.indices, begin, end);
  const auto values = stream.values.subspan(first, last - first);
  out.values.assign(values.begin(), values.end());
  out.indices.resize(last - first);
  const uint32_t base = static_cast<uint32_t>(begin);
  for (size_t i = first; i < last; ++i) out.indices[i - first] = stream.indices[i] - base;
  return out;
}

template Status validate(const StreamView<float>&);
template Status validate(const StreamView<double>&);
template Stream<float> to_dense(const StreamView<float>&);
template Stream<double> to_dense(const StreamView<double>&);
template Stream<float> to_sparse(const StreamView<float>&);
template Stream<double> to_sparse(const StreamView<double>&);
template Stream<float> cut(const StreamView<float>&, uint64_t, uint64_t);
template Stream<double> cut(const StreamView<double>&, uint64_t, uint64_t);

}  // namespace millrace
