#pragma once

#include "kernels/stream/stream.h"

namespace millrace {

/// Whether two streams of one dimension are summed faster by merging them than in slices.
template <typename T>
bool is_merged(const StreamView<T>& a, const StreamView<T>& b);

/// The sum of two sparse streams of one dimension, without a branch that depends on the data. Sparse.
template <typename T>
Stream<T> merge_two(const StreamView<T>& a, const StreamView<T>& b);

}  // namespace millrace
