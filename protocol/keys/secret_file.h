#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "kernels/base/result.h"

/// Files with secrets: keys and tokens. Their owner and group may read them (orchestrators mount secrets as 0440 and
/// 0640).
namespace millrace::protocol {

/// Refuses a file that all users may read or write, or that its group may write.
///
/// what    names the secret in the sentence: "key", "token".
/// Errors  invalid_argument; the sentence names chmod.
Status check_secret_mode(const struct stat& status, const std::string& what, const std::string& path);

/// Reads a whole file with a secret.
///
/// Errors  io. invalid_argument: not a file, more than bytes_max bytes, or as check_secret_mode(). No sentence has a
///         part of the file.
Result<std::string> read_secret_file(const std::string& path, const std::string& what, size_t bytes_max);

/// Reads a whole file that gives trust, as certificates do. Errors  as read_secret_file(); its mode: all users may
/// write it.
Result<std::string> read_trusted_file(const std::string& path, const std::string& what, size_t bytes_max);

/// Makes a folder with mode 0700 where it is missing; its parent must exist. Errors  io.
Status make_secret_folder(const std::string& folder);

/// Writes a file that must not exist; where that fails no part of it stays. Its mode does not depend on the umask.
///
/// what    names the content in the sentence: "key", "job key".
/// Errors  io; also where the file exists: then it is not changed.
Status make_new_file(const std::string& path, const std::string& what, mode_t mode, std::string_view text);

}  // namespace millrace::protocol
