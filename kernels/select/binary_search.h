#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "kernels/magnitude/magnitude_scan.h"

namespace millrace {

/// Selects every entry at or above a threshold that between k and 2k entries reach. Zeros are never selected: where at
/// most k entries are not zero, all of these. Where equal magnitudes leave no such threshold, exactly the k largest.
///
/// values     [n], any alignment; k in [1, n].
/// positions  out: strictly increasing; empty on error.
/// Returns    the key of the threshold; 0 where the selected entries are not those over a threshold.
/// Cost       one memory pass and a sample on ordinary data; never more than select_top_k_nonzero and one pass.
/// Errors     NaN or infinity: non_finite.
/// Source     [RedSync19, 2.1, algorithm 3].
Result<MagnitudeKey> select_k_to_2k(std::span<const float> values, uint64_t k, IndexBuffer& positions);

}  // namespace millrace
