#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/result.h"

namespace millrace::protocol {

/// The leases of processes on one machine: a file beside the table, of which each process locks one byte. The system
/// frees the lock when the process ends, however it ends, so no lease has to be renewed. The table numbers the bytes.
///
/// Threads  one at a time.
class LeaseFile {
 public:
  /// table  the path of the table's file.
  explicit LeaseFile(const std::string& table) : table_(table), path_(table + "-leases") {}
  ~LeaseFile();
  LeaseFile(const LeaseFile&) = delete;
  LeaseFile& operator=(const LeaseFile&) = delete;

  /// Opens the file, and creates it if absent, so that a later hold() can only fail over the lock. Where root creates
  /// it, it gets the owner of the table's file. Errors  io.
  Status open();

  /// Locks the byte unless this object has it, and gives back the one that it had before. Returns false: another
  /// process has it. Errors  io.
  Result<bool> hold(uint32_t byte);
  /// Gives the byte back that this object has, if any. Errors  io.
  Status release();
  /// Returns whether any process has the byte. Creates no file. Errors  io.
  Result<bool> is_held(uint32_t byte);
  /// Does the same for the first `count` bytes, at one moment: a process that changes its byte has one of both.
  Result<bool> is_any_held(uint32_t count);
  /// Returns the byte that this object has; -1: none.
  int64_t held() const { return held_; }

 private:
  std::unexpected<Error> io_error(const char* what) const;
  Result<bool> has_lock(uint32_t byte, uint32_t count);

  std::string table_;
  std::string path_;
  int fd_ = -1;
  int64_t held_ = -1;
};

}  // namespace millrace::protocol
