#include "kernels/reduce/reduce.h"

#include <array>
#include <string>

#include "kernels/base/check.h"

namespace millrace {
namespace {

/// The sum where one of the streams is dense, and so is the sum.
template <typename T>
Stream<T> sum_dense(std::span<const StreamView<T>> streams) {
  Stream<T> out;
  out.dimension = streams.front().dimension;
  out.dense = true;
  // -0 is the identity of addition for every bit pattern: 0 would turn a lone -0 into 0.
  out.values.assign(out.dimension, -T{0});
  for (const StreamView<T>& stream : streams) add_scaled<T>(out.values, stream, T{1});
  return out;
}

template <typename T>
Stream<T> merge(const StreamView<T>& a, const StreamView<T>& b) {
  Stream<T> out = Stream<T>::empty(a.dimension);
  out.indices.resize(a.count() + b.count());
  out.values.resize(a.count() + b.count());
  size_t i = 0, j = 0, at = 0;
  while (i < a.count() && j < b.count()) {
    const uint32_t left = a.indices[i], right = b.indices[j];
    const T sum = left == right ? a.values[i] + b.values[j] : left < right ? a.values[i] : b.values[j];
    out.indices[at] = left < right ? left : right;
    out.values[at] = sum;
    i += left <= right;
    j += right <= left;
    ++at;
  }
  for (; i < a.count(); ++i, ++at) out.indices[at] = a.indices[i], out.values[at] = a.values[i];
  for (; j < b.count(); ++j, ++at) out.indices[at] = b.indices[j], out.values[at] = b.values[j];
  out.indices.resize(at);
  out.values.resize(at);
  return out;
}

}  // namespace

template <typename T>
Result<Stream<T>> sum_two(const StreamView<T>& a, const StreamView<T>& b) {
  return sum_many<T>(std::array{a, b});
}

template <typename T>
Result<Stream<T>> sum_many(std::span<const StreamView<T>> streams) {
  if (streams.empty()) return fail(ErrorCode::kInvalidArgument, "no streams to sum");
  const uint64_t dimension = streams.front().dimension;
  bool dense = false;
  for (const StreamView<T>& stream : streams) {
    if (stream.dimension != dimension) {
      return fail(ErrorCode::kInvalidArgument, "streams of dimension " + std::to_string(dimension) + " and " +
                                                   std::to_string(stream.dimension) + " cannot be summed");
    }
    dense |= stream.dense;
  }
  if (dense) return sum_dense(streams);
  Stream<T> sum = to_sparse(streams.front());
  for (const StreamView<T>& stream : streams.subspan(1)) sum = merge(sum.view(), stream);
  if (sum.count() >= dense_from_count<T>(dimension)) return to_dense(sum.view());
  return sum;
}

template <typename T>
Result<Stream<T>> concatenate(std::span<const StreamView<T>> pieces) {
  uint64_t dimension = 0, count = 0;
  bool dense = !pieces.empty();
  for (const StreamView<T>& piece : pieces) {
    if (piece.dimension > kDimensionMax - dimension) {
      return fail(ErrorCode::kInvalidArgument, "the pieces' dimensions add up to more than 2^32");
    }
    dimension += piece.dimension;
    count += piece.count();
    dense &= piece.dense;
  }
  Stream<T> out;
  out.dimension = dimension;
  out.dense = dense;
  out.values.reserve(count);
  if (!dense) out.indices.reserve(count);
  uint64_t base = 0;
  for (const StreamView<T>& piece : pieces) {
    out.values.insert(out.values.end(), piece.values.begin(), piece.values.end());
    const size_t at = out.indices.size();
    if (!dense) out.indices.resize(at + piece.count());
    for (size_t i = 0; i < piece.count() && !dense; ++i) {
      out.indices[at + i] = static_cast<uint32_t>(base + (piece.dense ? i : piece.indices[i]));
    }
    base += piece.dimension;
  }
  return out;
}

template <typename T>
Stream<T> not_carried(const StreamView<T>& sent, const StreamView<T>& carried) {
  MILLRACE_CHECK(sent.dimension == carried.dimension, sent.dimension, carried.dimension);
  Stream<T> out = Stream<T>::empty(sent.dimension);
  if (carried.dense) return out;
  if (sent.dense) return not_carried<T>(to_sparse(sent).view(), carried);
  size_t j = 0;
  for (size_t i = 0; i < sent.count(); ++i) {
    while (j < carried.count() && carried.indices[j] < sent.indices[i]) ++j;
    if (j < carried.count() && carried.indices[j] == sent.indices[i]) continue;
    out.indices.push_back(sent.indices[i]);
    out.values.push_back(sent.values[i]);
  }
  return out;
}

template <typename T>
void add_scaled(std::span<T> target, const StreamView<T>& stream, T scale) {
  MILLRACE_CHECK(target.size() == stream.dimension, target.size(), stream.dimension);
  if (stream.dense) {
    for (size_t i = 0; i < target.size(); ++i) target[i] += scale * stream.values[i];
  } else {
    for (size_t i = 0; i < stream.indices.size(); ++i) target[stream.indices[i]] += scale * stream.values[i];
  }
}

#define MILLRACE_INSTANTIATE_REDUCE(T)                                            \
  template Result<Stream<T>> sum_two(const StreamView<T>&, const StreamView<T>&); \
  template Result<Stream<T>> sum_many(std::span<const StreamView<T>>);            \
  template Result<Stream<T>> concatenate(std::span<const StreamView<T>>);         \
  template Stream<T> not_carried(const StreamView<T>&, const StreamView<T>&);     \
  template void add_scaled(std::span<T>, const StreamView<T>&, T)

MILLRACE_INSTANTIATE_REDUCE(float);
MILLRACE_INSTANTIATE_REDUCE(double);

}  // namespace millrace
