#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/stream/stream.h"

/// What the benchmarks of sparse streams have in common.
namespace millrace::cli {

/// The middle one; of an even number the upper. REQUIRES: not empty.
double median(std::vector<double> of);

/// Every index and value of the streams once: the least that a sum of them has to read. Returns what it has seen, so
/// that it cannot be left out.
double memory_pass(std::span<const Stream> streams);

}  // namespace millrace::cli
