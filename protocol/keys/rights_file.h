#pragma once

#include <cstddef>
#include <string>

#include "kernels/base/result.h"

namespace millrace::protocol {

/// Closes a descriptor at the end of its scope.
struct RightsDescriptor {
  int fd = -1;
  explicit RightsDescriptor(int opened) : fd(opened) {}
  RightsDescriptor(const RightsDescriptor&) = delete;
  RightsDescriptor& operator=(const RightsDescriptor&) = delete;
  ~RightsDescriptor();
};

/// Checks an open file or folder that gives rights: its owner, and each user with write access, gives them.
///
/// what    names it in sentences.
/// Errors  invalid_argument: all users may write it, or it belongs to neither root nor this process's user.
Status judge_rights_owner(int fd, const std::string& what, const std::string& path);

/// Reads a file that gives rights, at most bytes_max of it, without waiting: a pipe in its place is refused.
///
/// Errors  io; invalid_argument: not a file; as judge_rights_owner().
Result<std::string> read_rights_file(const std::string& what, const std::string& path, size_t bytes_max);

}  // namespace millrace::protocol
