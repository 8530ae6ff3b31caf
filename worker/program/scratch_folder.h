#pragma once

#include <string>

#include "kernels/base/result.h"

namespace millrace::program {

/// Owns a folder among the temporary files ($TMPDIR, else /tmp), "STEM-" and six characters, that goes with this
/// object.
///
/// A process that is killed (SIGKILL) leaves its folder behind: the next make() of the same stem, by the same user,
/// removes it. A lock marks a folder in use. Child processes share the lock, so the folder stays until the last of them
/// ends. The lock is on a file `lock` in the folder: a folder without that file is never removed. On a file system
/// without locks a folder has none, and stays where its process is killed.
class ScratchFolder {
 public:
  /// Errors  io.
  static Result<ScratchFolder> make(const std::string& stem);
  ScratchFolder(ScratchFolder&& other) noexcept;
  ScratchFolder& operator=(ScratchFolder&&) = delete;
  /// Removes the folder and all that is in it, unless keep() was called.
  ~ScratchFolder();

  const std::string& path() const { return path_; }
  /// Keeps the folder's files for the user: no later make() removes them. A folder with the lock file alone is removed
  /// all the same.
  void keep();

 private:
  ScratchFolder(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}
  std::string path_;  ///< empty: moved from, or kept
  int lock_ = -1;     ///< -1: the file system has no locks
};

/// Returns the folder for results between runs that take long to make: one of this name in the user's cache, else among
/// the temporary files. It need not exist.
std::string kept_folder(const std::string& name);

}  // namespace millrace::program
