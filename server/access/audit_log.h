#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kernels/base/clock.h"
#include "kernels/base/result.h"
#include "server/access/audit_text.h"

namespace millrace::server {

/// Appends the audit log to a file: JSON lines, each in one write. Several shards may append to one file. A
/// rotation renames the file and sends SIGHUP; then reopen() continues in a new one.
///
/// Disk     a line that cannot be written is lost and counted; the next written line has the count as `lines_lost`.
/// Limit    a line that breaks off while another shard writes one may spoil that one, too.
/// Threads  one at a time.
class AuditLog {
 public:
  /// Opens the file, made with mode 0640 where it is missing.
  /// Errors  io; invalid_argument: it is no regular file.
  static Result<std::unique_ptr<AuditLog>> open(const std::string& path);
  ~AuditLog();
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;

  /// Appends one line, or part of it where the disk is full: the next line then begins on a line of its own.
  /// Errors  io, once until a line is written again.
  Status write(const AuditEvent& event, const std::string& key_name, std::optional<uint32_t> shard, TimeNs now);
  /// Counts refusals that were left out before they came here, for the next line.
  void count_left_out(uint64_t refusals) { limit_.count_left_out(refusals); }
  /// Opens the path again. Errors  as open(); the old file stays in use.
  Status reopen();
  uint64_t lines_lost() const { return lines_lost_; }  ///< since the start

 private:
  AuditLog(std::string path, int descriptor);
  bool append(const std::string& line);

  std::string path_;
  int descriptor_;
  RefusalLimit limit_;
  uint64_t lines_lost_ = 0;
  uint64_t lost_unsaid_ = 0;
};

}  // namespace millrace::server
