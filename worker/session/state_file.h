#pragma once

#include <string>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"

namespace millrace::worker {

/// Puts `bytes` at `path` as a whole or not at all: a temporary file beside it, fsync, rename, fsync of the folder. On any
/// failure what was at `path` stays, and the temporary file is removed.
///
/// Errors  io: the path, the step that failed and the system's reason (disk full, no such folder, permission).
Status write_file_atomically(const std::string& path, ByteSpan bytes);

/// Errors  io.
Result<ByteBuffer> read_file(const std::string& path);

}  // namespace millrace::worker
