#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/stream/stream.h"

/// Shared parts of the benchmarks of sparse streams.
namespace millrace::bench {

/// Returns the middle one; of an even number the upper. REQUIRES: not empty.
double median(std::vector<double> of);

/// Reads every index and value of the streams once: the minimum work of their sum. Returns a value of all reads, so
/// that the compiler cannot omit them.
double memory_pass(std::span<const Stream> streams);

}  // namespace millrace::bench
