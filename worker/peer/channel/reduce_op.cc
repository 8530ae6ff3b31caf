#include "worker/peer/channel/reduce_op.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reduce/reduce.h"

namespace millrace::peer {
namespace {

void combine_into(const ReduceOp& op, std::span<float> target, const StreamView& stream) {
  for (size_t i = 0; i < stream.values.size(); ++i) {
    float& at = target[stream.dense ? i : stream.indices[i]];
    at = op.combine(at, stream.values[i]);
  }
}

Stream merged(const ReduceOp& op, const StreamView& a, const StreamView& b) {
  Stream out = Stream::empty(a.dimension);
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

Stream combine_two(const ReduceOp& op, const StreamView& a, const StreamView& b) {
  if (!a.dense && !b.dense && a.count() + b.count() < dense_from_count(a.dimension)) return merged(op, a, b);
  Stream dense = to_dense(op, a);
  combine_into(op, dense.values, b);
  return dense;
}

Result<Stream> combine_in_order(const ReduceOp& op, std::span<const StreamView> streams) {
  if (streams.empty()) return fail(ErrorCode::kInvalidArgument, "no streams to combine");
  for (const StreamView& stream : streams) {
    if (stream.dimension != streams[0].dimension) {
      return fail(ErrorCode::kInvalidArgument, "streams of dimensions " + std::to_string(streams[0].dimension) +
                                                   " and " + std::to_string(stream.dimension));
    }
  }
  Stream all = slice_of(streams[0], 0, streams[0].dimension);
  for (const StreamView& stream : streams.subspan(1)) all = combine_two(op, all.view(), stream);
  return all;
}

}  // namespace

ReduceOp sum_op() { return {}; }

ReduceOp max_op() {
  return {"max", -std::numeric_limits<float>::infinity(), [](float a, float b) { return std::max(a, b); }};
}

ReduceOp min_op() {
  return {"min", std::numeric_limits<float>::infinity(), [](float a, float b) { return std::min(a, b); }};
}

bool is_admissible(const ReduceOp& op, std::span<const float> values) {
  if (all_finite(values)) return true;
  if (std::isfinite(op.neutral)) return false;
  return std::ranges::all_of(values, [&op](float value) { return std::isfinite(value) || value == op.neutral; });
}

Stream to_dense(const ReduceOp& op, const StreamView& stream) {
  if (stream.dense || op.neutral == 0) return millrace::to_dense(stream);
  Stream dense{stream.dimension, true, {}, {}};
  dense.values.assign(stream.dimension, op.neutral);
  for (size_t i = 0; i < stream.values.size(); ++i) dense.values[stream.indices[i]] = stream.values[i];
  return dense;
}

Result<Stream> combine(const ReduceOp& op, std::span<const StreamView> streams) {
  Result<Stream> all = op.is_sum() ? sum_many(streams) : combine_in_order(op, streams);
  if (all && !is_admissible(op, all->values)) {
    return fail(ErrorCode::kNonFinite, "the " + op.name + " is NaN or infinite: the gradients have diverged");
  }
  return all;
}

}  // namespace millrace::peer
