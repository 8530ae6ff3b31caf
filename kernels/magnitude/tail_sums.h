#pragma once

#include <cstdint>
#include <span>

#include "kernels/magnitude/magnitude_scan.h"

namespace millrace {

/// Holds sums over the values of magnitude below a threshold, in f64, and how many are not below it.
struct TailSums {
  uint64_t above = 0;
  double sum = 0;
  double magnitude = 0;  ///< sum of |value|
  double squares = 0;
};

/// Adds a chunk's sums, which have the same members. The caller adds chunks in the order of their values.
template <typename ChunkSums>
void add_chunk(TailSums& sums, const ChunkSums& chunk) {
  sums.above += chunk.above;
  sums.sum += chunk.sum;
  sums.magnitude += chunk.magnitude;
  sums.squares += chunk.squares;
}

/// Sums the values of magnitude below a threshold.
///
/// cut      as a magnitude key, at most kInfinityKey: then `above` counts NaN and infinity, which are in no sum.
///          Sums and squares of f32 neither overflow in f64 nor vanish.
/// Order    sixteen lanes by position in chunks of 2^18 values, then chunk by chunk: the same bits with every
///          instruction set and number of threads.
/// Cost     one read pass.
/// Threads  reentrant; uses TBB above a size.
TailSums tail_sums(std::span<const float> values, MagnitudeKey cut);

/// Computes one thread's part of tail_sums(): at most a chunk.
TailSums tail_sums_f32(const float* values, size_t count, uint32_t cut);

}  // namespace millrace
