#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/result.h"

namespace millrace::protocol {

/// The leases of shards on one machine: a file beside the table, of which each shard locks one byte. The system frees
/// the lock when the process ends, however it ends, so no lease has to be renewed.
///
/// Threads  one at a time.
class LeaseFile {
 public:
  explicit LeaseFile(std::string path) : path_(std::move(path)) {}
  ~LeaseFile();
  LeaseFile(const LeaseFile&) = delete;
  LeaseFile& operator=(const LeaseFile&) = delete;

  /// Locks the shard's byte unless this object has it. Returns false: another process has it. Errors  io.
  Result<bool> hold(uint32_t shard);
  /// Returns whether any process has the shard's byte. Errors  io.
  Result<bool> is_held(uint32_t shard);

 private:
  Status open();
  std::unexpected<Error> io_error(const char* what) const;

  std::string path_;
  int fd_ = -1;
  int64_t held_ = -1;  ///< the shard whose byte this object has locked
};

}  // namespace millrace::protocol
