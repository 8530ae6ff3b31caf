#include "kernels/stream/stream.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/stream/stream_scan.h"

namespace millrace {
namespace {

/// Entries that are looked at while they are still in the first-level cache.
constexpr size_t kCached = 2048;

template <typename T>
Buffer<T> copy_of(std::span<const T> values) {
  Buffer<T> out(values.size());
  if (!values.empty()) std::memcpy(out.data(), values.data(), values.size_bytes());
  return out;
}

}  // namespace

Status validate(const StreamView& stream) {
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

uint64_t count_nonzero(std::span<const float> values) {
  uint64_t count = 0;
  for (const float value : values) count += value != 0.0F;
  return count;
}

bool all_finite(std::span<const float> values) { return all_finite_f32(values.data(), values.size()); }

bool copy_increasing(const void* indices, std::span<uint32_t> out) {
  const auto* from = static_cast<const uint8_t*>(indices);
  for (size_t begin = 0; begin < out.size(); begin += kCached) {
    const size_t count = std::min(kCached, out.size() - begin);
    std::memcpy(out.data() + begin, from + begin * sizeof(uint32_t), count * sizeof(uint32_t));
    const size_t overlap = begin == 0 ? 0 : 1;
    if (!strictly_increasing(out.data() + begin - overlap, count + overlap)) return false;
  }
  return true;
}

bool copy_finite(const void* values, std::span<float> out) {
  const auto* from = static_cast<const uint8_t*>(values);
  for (size_t begin = 0; begin < out.size(); begin += kCached) {
    const std::span<float> block = out.subspan(begin, std::min(kCached, out.size() - begin));
    std::memcpy(block.data(), from + begin * sizeof(float), block.size_bytes());
    if (!all_finite(block)) return false;
  }
  return true;
}

Stream to_dense(const StreamView& stream) {
  Stream out;
  out.dimension = stream.dimension;
  out.dense = true;
  if (stream.dense) {
    out.values = copy_of(stream.values);
    return out;
  }
  out.values.assign(stream.dimension, 0.0F);
  for (size_t i = 0; i < stream.indices.size(); ++i) out.values[stream.indices[i]] = stream.values[i];
  return out;
}

Stream in_smaller_form(Stream&& stream) {
  if (stream.dense && count_nonzero(stream.values) < dense_from_count(stream.dimension)) {
    return to_sparse(stream.view());
  }
  return std::move(stream);
}

Stream to_sparse(const StreamView& stream) {
  Stream out;
  out.dimension = stream.dimension;
  if (!stream.dense) {
    out.indices = copy_of(stream.indices);
    out.values = copy_of(stream.values);
    return out;
  }
  const size_t count = count_nonzero(stream.values);
  // One slot more: the entry after the last is written too, and not kept.
  out.indices.resize(count + 1);
  out.values.resize(count + 1);
  size_t at = 0;
  for (size_t i = 0; i < stream.values.size(); ++i) {
    out.indices[at] = static_cast<uint32_t>(i);
    out.values[at] = stream.values[i];
    at += stream.values[i] != 0.0F;
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

Stream slice_of(const StreamView& stream, uint64_t begin, uint64_t end) {
  MILLRACE_CHECK(begin <= end && end <= stream.dimension, begin, end, stream.dimension);
  Stream out;
  out.dimension = end - begin;
  out.dense = stream.dense;
  if (stream.dense) {
    out.values = copy_of(stream.values.subspan(begin, end - begin));
    return out;
  }
  const auto [first, last] = range_of(stream.indices, begin, end);
  out.values = copy_of(stream.values.subspan(first, last - first));
  out.indices.resize(last - first);
  moved_down(stream.indices.data() + first, last - first, static_cast<uint32_t>(begin), out.indices.data());
  return out;
}

}  // namespace millrace
