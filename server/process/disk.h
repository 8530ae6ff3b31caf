#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"

namespace millrace::server {

/// The calls of saves to a file system: the seam at which tests let disks fill up and processes die.
///
/// Errors   of every call: io, with the path and the system's reason.
class Disk {
 public:
  virtual ~Disk() = default;

  /// Creates an empty file in place of an earlier one; returns its number for the calls below. Another process that
  /// has the earlier file open does not write into this one.
  virtual Result<int> create(const std::string& path) = 0;
  virtual Status write(int file, ByteSpan bytes) = 0;
  virtual Status sync(int file) = 0;
  /// Closes the file. The number means nothing any more, with any result: a full disk may report its error only here.
  virtual Status close(int file) = 0;
  virtual Status rename(const std::string& from, const std::string& to) = 0;
  /// Gives the file at `path` the second name `as`, which no file has.
  virtual Status link(const std::string& path, const std::string& as) = 0;
  /// Finds out whether a file could be renamed to `path`. Changes nothing.
  virtual Status check_replaceable(const std::string& path) = 0;
  virtual Status sync_folder(const std::string& path) = 0;
  virtual void remove(const std::string& path) = 0;
  /// Returns the paths of the folder of `prefix` that begin with it, as FOLDER/NAME. Errors  io: the folder cannot be
  /// read.
  virtual Result<std::vector<std::string>> find(const std::string& prefix) = 0;

  struct Opened {
    int file = 0;
    uint64_t bytes = 0;
  };
  virtual Result<Opened> open(const std::string& path) = 0;
  /// Fills all of `out`.
  virtual Status read(int file, std::span<uint8_t> out) = 0;
};

/// Returns the system's disk.
std::unique_ptr<Disk> system_disk();

/// Refuses a path that is no folder in which files can be made.
Status check_folder(const std::string& path);

}  // namespace millrace::server
