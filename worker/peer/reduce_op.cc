#include "worker/peer/reduce_op.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reduce/reduce.h"

namespace millrace::peer {
namespace {

template <typename T>
void combine_into(const ReduceOp<T>& op, std::span<T> target, const StreamView<T>& stream) {
  for (size_t i = 0; i < stream.values.size(); ++i) {
    T& at = target[stream.dense ? i : stream.indices[i]];
    at = op.combine(at, stream.values[i]);
  }
}

template <typename T>
Stream<T> merged(const ReduceOp<T>& op, const StreamView<T>& a, const StreamView<T>& b) {
  Stream<T> out = Stream<T>::empty(a.dimension);
  out.indices.reserve(a.count() + b.count());
  out.values.reserve(a.count() + b.count());
  size_t i = 0, j = 0;
  while (i < a.count() || j < b.count()) {
    const bool from_a = j == b.count() || (i < a.count() && a.indices[i] <= b.indices[j]);
    const bool from_b = i == a.count() || (j < b.count() && b.indices[j] <= a.indices[i]);
    out.indices.push_back(from_a ? a.indices[i] : b.indices[j]);
    out.values.push_back(from_a && from_b ? op.combine(a.values[i], b.values[j]) : from_a ? a.values[i] : b.values[j]);
    i += from_a ? 1 : 0;
    j += from_b ? 1 : 0;
  }
  return out;
}

template <typename T>
Stream<T> combine_two(const ReduceOp<T>& op, const StreamView<T>& a, const StreamView<T>& b) {
  if (!a.dense && !b.dense && a.count() + b.count() < dense_from_count<T>(a.dimension)) return merged(op, a, b);
  Stream<T> dense = to_dense(op, a);
  combine_into<T>(op, dense.values, b);
  return dense;
}

template <typename T>
Result<Stream<T>> combine_in_turn(const ReduceOp<T>& op, std::span<const StreamView<T>> streams) {
  if (streams.empty()) return fail(ErrorCode::kInvalidArgument, "no streams to combine");
  for (const StreamView<T>& stream : streams) {
    if (stream.dimension != streams[0].dimension) {
      return fail(ErrorCode::kInvalidArgument, "streams of dimensions " + std::to_string(streams[0].dimension) +
                                                   " and " + std::to_string(stream.dimension));
    }
  }
  Stream<T> all = cut(streams[0], 0, streams[0].dimension);
  for (const StreamView<T>& stream : streams.subspan(1)) all = combine_two(op, all.view(), stream);
  return all;
}

}  // namespace

template <typename T>
ReduceOp<T> sum_op() {
  return {};
}

template <typename T>
ReduceOp<T> max_op() {
  return {"max", -std::numeric_limits<T>::infinity(), [](T a, T b) { return std::max(a, b); }};
}

template <typename T>
ReduceOp<T> min_op() {
  return {"min", std::numeric_limits<T>::infinity(), [](T a, T b) { return std::min(a, b); }};
}

template <typename T>
bool is_admissible(const ReduceOp<T>& op, std::span<const T> values) {
  if (all_finite<T>(values)) return true;
  if (std::isfinite(op.neutral)) return false;
  return std::ranges::all_of(values, [&op](T value) { return std::isfinite(value) || value == op.neutral; });
}

template <typename T>
Stream<T> to_dense(const ReduceOp<T>& op, const StreamView<T>& stream) {
  if (stream.dense || op.neutral == 0) return millrace::to_dense(stream);
  Stream<T> dense{stream.dimension, true, {}, {}};
  dense.values.assign(stream.dimension, op.neutral);
  for (size_t i = 0; i < stream.values.size(); ++i) dense.values[stream.indices[i]] = stream.values[i];
  return dense;
}

template <typename T>
Result<Stream<T>> combine(const ReduceOp<T>& op, std::span<const StreamView<T>> streams) {
  Result<Stream<T>> all = op.is_sum() ? sum_many<T>(streams) : combine_in_turn<T>(op, streams);
  if (all && !is_admissible<T>(op, all->values)) {
    return fail(ErrorCode::kNonFinite, "the " + op.name + " is NaN or infinite: the gradients have diverged");
  }
  return all;
}

template ReduceOp<float> sum_op();
template ReduceOp<double> sum_op();
template ReduceOp<float> max_op();
template ReduceOp<double> max_op();
template ReduceOp<float> min_op();
template ReduceOp<double> min_op();
template Result<Stream<float>> combine(const ReduceOp<float>&, std::span<const StreamView<float>>);
template Result<Stream<double>> combine(const ReduceOp<double>&, std::span<const StreamView<double>>);
template bool is_admissible(const ReduceOp<float>&, std::span<const float>);
template bool is_admissible(const ReduceOp<double>&, std::span<const double>);
template Stream<float> to_dense(const ReduceOp<float>&, const StreamView<float>&);
template Stream<double> to_dense(const ReduceOp<double>&, const StreamView<double>&);

}  // namespace millrace::peer
