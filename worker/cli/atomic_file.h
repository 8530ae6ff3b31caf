#pragma once

#include <string>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"

namespace millrace::cli {

/// A file that appears whole or not at all: written beside `path` under a temporary name, synced, then renamed onto it.
/// Until commit() the old file is untouched; an object that ends without commit() removes its temporary file.
///
/// Threads  one.
class AtomicFile {
 public:
  /// Errors  io: the temporary file cannot be made; the sentence names it and the system's reason; `path` is something else
  /// than a file.
  static Result<AtomicFile> create(const std::string& path);

  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  /// Errors  io: a full disk among them.
  Status write(ByteSpan bytes);

  /// Makes it the file at `path`. Errors  io: the old file stays.
  Status commit();

  const std::string& path() const { return path_; }

 private:
  AtomicFile(std::string path, std::string temporary, int descriptor, int slot);
  std::unexpected<Error> refuse(const char* action) const;

  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
  int slot_ = -1;  ///< where remove_unfinished_files() finds it; −1: all places were taken
};

/// Removes the temporary files of all AtomicFiles that are open, for a process that ends without running destructors.
///
/// Threads  any; safe in a signal handler.
void remove_unfinished_files();

}  // namespace millrace::cli
