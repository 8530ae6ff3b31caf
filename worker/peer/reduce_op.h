#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kernels/base/result.h"
#include "kernels/stream/stream.h"

namespace millrace::peer {

/// How the values of one index are put together: associative and commutative, with a neutral element that absent entries have.
template <typename T>
struct ReduceOp {
  std::string name = "sum";  ///< ranks must agree on it
  T neutral = 0;
  T (*combine)(T, T) = nullptr;  ///< null: addition, by the kernels

  bool is_sum() const { return combine == nullptr; }
};

template <typename T>
ReduceOp<T> sum_op();
template <typename T>
ReduceOp<T> max_op();  ///< neutral: -infinity
template <typename T>
ReduceOp<T> min_op();  ///< neutral: +infinity

/// The streams put together index by index, in the order given. Sparse while that is smaller, dense from dense_from_count() on;
/// a dense one holds the neutral element where no stream had an entry.
///
/// Errors   invalid_argument: no streams, dimensions differ.
/// Threads  reentrant.
/// Source   sparcml.txt, sections 5.1 and 5.2.
template <typename T>
Result<Stream<T>> combine(const ReduceOp<T>& op, std::span<const StreamView<T>> streams);

}  // namespace millrace::peer
