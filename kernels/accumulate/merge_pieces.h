#pragma once

#include <cstdint>
#include <vector>

#include "kernels/stream/stream.h"

namespace millrace {

/// Holds a sparse stream of an index range of a larger one: local index 0 stands for `begin`.
struct PlacedStream {
  uint64_t begin = 0;
  StreamView stream;
};

/// Computes out := base + pieces, index by index. All sparse.
///
/// pieces   disjoint ranges, ascending.
/// out      written over; its arrays are reused. May not be base.
/// Cost     one pass without branches that depend on the data; no allocation once `out` has grown.
void merge_pieces(const StreamView& base, const std::vector<PlacedStream>& pieces, Stream& out);

}  // namespace millrace
