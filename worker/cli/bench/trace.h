#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"

namespace millrace::cli {

/// What a worker of a gradient trace holds before it selects: row `worker` of the array `accumulator`, f32 [workers, n], of a
/// file that numpy.savez wrote.
///
/// Errors  io: it cannot be opened or read. malformed: no such archive, compressed, or no such array in it. invalid_argument:
/// the
///         trace has fewer workers.
Result<Buffer<float>> read_trace(const std::string& path, uint32_t worker);

}  // namespace millrace::cli
