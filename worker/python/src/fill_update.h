#pragma once

#include <cstdint>
#include <span>

#include "millrace/millrace.h"

namespace millrace::python {

/// Counts what fill_update() wrote.
struct FilledUpdate {
  uint64_t entries = 0;       ///< of all pieces; a dense piece has one for each index
  uint32_t contributors = 0;  ///< the least over the pieces
};

/// Writes an update densely: out[i] = sum[i] * scale / denominator, and 0 where the update has no entry. Pieces of one
/// range, which steps without this worker leave, are added up.
///
/// pieces   of a tensor of dimension out.size(), by begin. The indices of each ascend.
/// Cost     one pass that writes `out`; the factor scale / denominator is rounded to f32 first.
FilledUpdate fill_update(std::span<const UpdatePiece> pieces, double scale, std::span<float> out);

}  // namespace millrace::python
