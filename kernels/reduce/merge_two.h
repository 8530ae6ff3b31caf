#pragma once

#include "kernels/stream/stream.h"

namespace millrace {

/// Returns whether two streams of one dimension are summed faster by merging them than in slices.
bool is_merged(const StreamView& a, const StreamView& b);

/// Returns the sum of two sparse streams of one dimension, without a branch that depends on the data. Sparse.
Stream merge_two(const StreamView& a, const StreamView& b);

}  // namespace millrace
