#pragma once

#include <string>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"

namespace millrace::worker {

/// Reads a whole file.
///
/// Errors  io.
Result<ByteBuffer> read_file(const std::string& path);

}  // namespace millrace::worker
