#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kernels/base/result.h"

namespace millrace::peer {

/// Owns a file of which each rank reads parts by MPI-IO. Each opens it for itself (MPI_COMM_SELF): no call waits for
/// another rank, which might be stuck.
///
/// Threads  one; its calls do not overlap a communicator's, unless MPI's level is `multiple`.
class MpiFile {
 public:
  /// Errors   io: it cannot be opened, or is no regular file. unavailable: MPI is not there.
  static Result<std::unique_ptr<MpiFile>> open(const std::string& path);
  MpiFile(const MpiFile&) = delete;
  MpiFile& operator=(const MpiFile&) = delete;
  ~MpiFile();

  uint64_t bytes() const { return bytes_; }

  /// Fills `into` from byte `at` on (MPI_File_read_at). Errors  io: the file fails, or has become shorter.
  Status read_at(uint64_t at, std::span<uint8_t> into);

 private:
  class Handle;
  MpiFile(std::string path, std::unique_ptr<Handle> handle, uint64_t bytes);

  std::string path_;
  std::unique_ptr<Handle> handle_;
  uint64_t bytes_;
};

}  // namespace millrace::peer
