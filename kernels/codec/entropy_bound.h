#pragma once

#include "kernels/base/buffer.h"

/// What index codes are compared with.
namespace millrace {

/// Returns log2 C(dimension, count) / count: no lossless code of uniformly drawn indices takes fewer bits an index on
/// average.
///
/// REQUIRES 1 <= count <= dimension.
double entropy_bits_per_index(uint64_t dimension, uint64_t count);

/// Bits an index of Rice coding with the best parameter for every block of 128 gaps, and 5 bits to say it.
///
/// indices  strictly increasing, not empty.
/// Cost     32 passes.
double rice_blocks_bits_per_index(IndexSpan indices);

}  // namespace millrace
