#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"

namespace millrace::bench {

inline constexpr uint64_t kTraceColumnsMax = uint64_t{1} << 28;

/// Reads the accumulator of a worker of a gradient trace, before its selection. It is row `worker` of the array
/// `accumulator`, f32 [workers, n], of a file that numpy.savez wrote.
///
/// Errors  io: it cannot be opened. malformed: no such archive, compressed, truncated, or no such array in it.
///         invalid_argument: the trace has fewer workers. limit_exceeded: n is over kTraceColumnsMax, the most that the
///         benchmarks take.
Result<Buffer<float>> read_trace(const std::string& path, uint32_t worker);

}  // namespace millrace::bench
