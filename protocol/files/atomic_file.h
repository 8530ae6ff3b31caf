#pragma once

#include <sys/types.h>

#include <string>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"

/// Files that appear whole or not at all: models, states, stores, data. All programs write them by these functions.
namespace millrace::files {

inline constexpr mode_t kForAll = 0666;     ///< less the process's umask
inline constexpr mode_t kOwnerOnly = 0600;  ///< what may tell about the data that it came from: gradients, weights

/// Finds out whether a file could be put at `path`, before the work begins whose result goes there. Changes nothing.
///
/// Errors  io: `path` is a folder, a device, a pipe or a socket. Or it is a mount of its own (a file that a container
///         was given), set immutable, or of another user in a sticky folder. AtomicFile::create() finds a folder
///         without write permission.
Status check_replaceable(const std::string& path);

/// A file that is written in the folder of `path`, synced, then renamed onto it. Until commit() the old file is
/// untouched. The new one has no name before commit(), so a killed process leaves none. A file system without unnamed
/// files (NFS, FUSE) gives it a temporary name: an object that ends without commit() removes it, a SIGKILL leaves it.
///
/// Threads  one.
class AtomicFile {
 public:
  /// Begins the file. Errors  io: as check_replaceable(); the temporary file cannot be made; the sentence names it and
  /// the system's reason.
  static Result<AtomicFile> create(const std::string& path, mode_t mode = kForAll);

  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  /// Appends bytes. Errors  io: e.g. a full disk.
  Status write(ByteSpan bytes);

  /// Makes it the file at `path`. Errors io: the old file stays. Where all is on the disk and only the rename fails,
  /// the temporary file stays as well, and the sentence names it. Where a file without a name can get none (a folder
  /// that became read-only, a quota), it is lost with this object.
  Status commit();

  const std::string& path() const { return path_; }
  /// Returns the name that the new file has between the first steps of commit() and its last, or from the begin on.
  const std::string& temporary_path() const { return temporary_; }

 private:
  friend struct AtomicFilePeek;  ///< of tests
  friend Status write_file_atomically(const std::string& path, ByteSpan bytes, mode_t mode);
  AtomicFile(std::string path, int descriptor);
  static Result<AtomicFile> create_named(const std::string& path, mode_t mode);
  std::unexpected<Error> refuse(const char* action) const;
  bool give_name();
  void let_go();

  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
  bool named_ = false;  ///< the file has its temporary name, or may have it
  int slot_ = -1;       ///< where remove_unfinished_files() finds it; −1: all places were taken
};

/// Finds out whether write_file_atomically() could put a file at `path`; makes a temporary file and removes it.
///
/// Errors  io: as AtomicFile::create().
Status try_to_write(const std::string& path, mode_t mode = kForAll);

/// Puts `bytes` at `path` as a whole or not at all. Bytes that cannot be put there are kept beside it. If that disk is
/// full, they are kept in the process's folder, in $TMPDIR (/var/tmp where that is not set) or in /tmp. A kept file
/// elsewhere than beside `path` has a name of its own, and is for its owner alone, with any `mode`.
///
/// Errors  io: the path, the step that failed, the system's reason, and the file that the bytes are in instead.
Status write_file_atomically(const std::string& path, ByteSpan bytes, mode_t mode = kForAll);

/// Removes the temporary files of all AtomicFiles that are open, for a process that ends without running destructors.
///
/// Threads  any; safe in a signal handler.
void remove_unfinished_files();

}  // namespace millrace::files
