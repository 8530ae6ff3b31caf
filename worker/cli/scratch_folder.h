#pragma once

#include <string>

#include "kernels/base/result.h"

namespace millrace::cli {

/// Makes a new folder among the temporary files ($TMPDIR, else /tmp), "STEM-" and six characters; its path.
///
/// Errors  io.
Result<std::string> make_scratch_folder(const std::string& stem);

}  // namespace millrace::cli
