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
/// Errors   invalid_argument: no streams, dimensions differ. non_finite: values that are not is_admissible() any more.
/// Threads  reentrant.
/// Source   sparcml.txt, sections 5.1 and 5.2.
template <typename T>
Result<Stream<T>> combine(const ReduceOp<T>& op, std::span<const StreamView<T>> streams);

/// Finite, or the neutral element, which a dense stream has where nobody had an entry.
template <typename T>
bool is_admissible(const ReduceOp<T>& op, std::span<const T> values);

/// The stream as a dense one, with the neutral element where it has no entry.
template <typename T>
Stream<T> to_dense(const ReduceOp<T>& op, const StreamView<T>& stream);

}  // namespace millrace::peer
