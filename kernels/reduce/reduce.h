#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/stream/stream.h"

namespace millrace {

/// Returns the sum of two streams of equal dimension. Sparse while that is smaller, dense from dense_from_count() on
/// (the upper bound |a| + |b| decides whether it is worth asking: [SparCML19, 5.1]). Entries that cancel to zero stay
/// stored.
///
/// Errors   invalid_argument: dimensions differ.
/// Source   [SparCML19, 5.1, 5.2].
Result<Stream> sum_two(const StreamView& a, const StreamView& b);

/// Returns the sum of many streams of equal dimension, added in the order given: the internal slicing does not change
/// the bits. Each slice of the index range stays sparse while that is cheaper (a dense region does not make the others
/// dense work). The result is dense as a whole from dense_from_count() on.
///
/// Cost     O(total entries + touched slices); scratch a thread independent of the dimension.
/// Errors   invalid_argument: no streams, dimensions differ.
/// Threads  reentrant; runs on the calling thread.
Result<Stream> sum_many(std::span<const StreamView> streams);

/// Returns the entries of sum_many() whose magnitude is `edge` or more, with the same bits, always sparse; a sum that
/// is NaN is left out. Where a small share of a sum is wanted, the other entries are not written to memory.
///
/// edge     > 0, finite.
/// Cost     of four streams, a quarter of the sum wanted, against sum_many() (`millrace-bench reduce`): three quarters
///          at 1 % each, less than half from 5 % on. Below an entry in 256 indices it filters the result of sum_many(),
///          and takes a tenth more.
/// Errors   as sum_many().
/// Threads  reentrant; runs on the calling thread.
Result<Stream> sum_at_least(std::span<const StreamView> streams, float edge);

/// Returns the entries of `stream` whose magnitude is `edge` (> 0) or more, sparse.
Stream entries_at_least(const StreamView& stream, float edge);

/// Joins streams of consecutive index ranges (disjoint concatenation): piece i covers the next pieces[i].dimension
/// indices. Dense when all pieces are; otherwise sparse, with every entry of a dense piece. So the whole carries
/// exactly the pieces' entries, and not_carried() of the whole is not_carried() of each piece.
///
/// Errors   invalid_argument: the dimensions add up to more than kDimensionMax.
Result<Stream> concatenate(std::span<const StreamView> pieces);

/// Returns the entries of `sent` that an update did not carry: their index is not in `carried` (a dense update carries
/// all). Always sparse; of a dense `sent` the zeros are left out. REQUIRES: equal dimensions.
Stream not_carried(const StreamView& sent, const StreamView& carried);

/// Adds scale * value to target[i] for every entry, the product rounded before it is added. target [dimension].
void add_scaled(std::span<float> target, const StreamView& stream, float scale);

}  // namespace millrace
