#pragma once

#include <string>

#include "kernels/base/result.h"

namespace millrace::cli {

/// Makes a new folder among the temporary files ($TMPDIR, else /tmp), "STEM-" and six characters; its path.
///
/// Errors  io.
Result<std::string> make_scratch_folder(const std::string& stem);

/// Where what takes long to make is kept between runs: a folder of this name in the user's cache, else among the temporary files.
/// It need not exist.
std::string kept_folder(const std::string& name);

}  // namespace millrace::cli
