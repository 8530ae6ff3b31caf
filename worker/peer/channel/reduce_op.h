#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kernels/base/result.h"
#include "kernels/stream/stream.h"

namespace millrace::peer {

/// Combines the values of one index: associative and commutative, with a neutral element that absent entries have.
struct ReduceOp {
  std::string name = "sum";  ///< ranks must agree on it
  float neutral = 0;
  float (*combine)(float, float) = nullptr;  ///< null: addition, by the kernels

  bool is_sum() const { return combine == nullptr; }
};

ReduceOp sum_op();
ReduceOp max_op();  ///< neutral: -infinity
ReduceOp min_op();  ///< neutral: +infinity

/// Combines the streams index by index, in the order given. Sparse while that is smaller, dense from dense_from_count()
/// on; a dense one holds the neutral element where no stream had an entry.
///
/// Errors   invalid_argument: no streams, dimensions differ. non_finite: values that are not is_admissible() any more.
/// Threads  reentrant.
/// Source   [SparCML19, 5.1, 5.2].
Result<Stream> combine(const ReduceOp& op, std::span<const StreamView> streams);

/// Returns whether all values are finite, or the neutral element, which a dense stream has where no rank had an entry.
bool is_admissible(const ReduceOp& op, std::span<const float> values);

/// Returns the stream as a dense one, with the neutral element where it has no entry.
Stream to_dense(const ReduceOp& op, const StreamView& stream);

}  // namespace millrace::peer
