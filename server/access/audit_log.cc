#include "server/access/audit_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

namespace millrace::server {
namespace {

constexpr mode_t kAuditMode = 0640;

/// O_NONBLOCK: a pipe in the place of a file must not block the shard. Readable: for its last byte.
constexpr int kAuditFlags = O_RDWR | O_APPEND | O_CLOEXEC | O_NONBLOCK;

/// Opens the file, or makes it. Its mode does not depend on the umask: a service's is often 0077, and the log's readers
/// are of its group.
int open_or_make(const std::string& path) {
  const int made = ::open(path.c_str(), kAuditFlags | O_CREAT | O_EXCL, 0600);
  if (made < 0) return errno == EEXIST ? ::open(path.c_str(), kAuditFlags) : made;
  ::fchmod(made, kAuditMode);
  return made;
}

Result<int> open_to_append(const std::string& path) {
  const int descriptor = open_or_make(path);
  if (descriptor < 0) return fail(ErrorCode::kIo, "audit log " + path + ": " + std::strerror(errno));
  struct stat status{};
  if (::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode)) return descriptor;
  ::close(descriptor);
  return fail(ErrorCode::kInvalidArgument, "audit log " + path + ": not a file");
}

/// Returns whether the file ends within a line: a writer was killed, or the disk was full. Also another shard's line.
bool ends_within_line(int descriptor) {
  struct stat status{};
  char last = '\n';
  if (::fstat(descriptor, &status) != 0 || status.st_size == 0) return false;
  return ::pread(descriptor, &last, 1, status.st_size - 1) == 1 && last != '\n';
}

int64_t wall_clock_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Result<std::unique_ptr<AuditLog>> AuditLog::open(const std::string& path) {
  const Result<int> descriptor = open_to_append(path);
  if (!descriptor) return std::unexpected(descriptor.error());
  return std::unique_ptr<AuditLog>(new AuditLog(path, *descriptor));
}

AuditLog::AuditLog(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

AuditLog::~AuditLog() { ::close(descriptor_); }

Status AuditLog::reopen() {
  const Result<int> descriptor = open_to_append(path_);
  if (!descriptor) return std::unexpected(descriptor.error());
  ::close(std::exchange(descriptor_, *descriptor));
  return {};
}

bool AuditLog::append(const std::string& line) {
  const std::string text = ends_within_line(descriptor_) ? "\n" + line : line;
  ssize_t wrote = 0;
  do {
    wrote = ::write(descriptor_, text.data(), text.size());
  } while (wrote < 0 && errno == EINTR);
  if (wrote >= 0) errno = ENOSPC;  // a part of the line
  return wrote == static_cast<ssize_t>(text.size());
}

Status AuditLog::write(const AuditEvent& event, const std::string& key_name, std::optional<uint32_t> shard,
                       TimeNs now) {
  using What = AuditEvent::What;
  const bool by_any_process = event.what == What::kRefuse || event.what == What::kClose;
  if (by_any_process && !limit_.admit(event, key_name, now)) return {};
  if (event.what == What::kJoin && !limit_.admit_act(event, now)) return {};
  const AuditGap gap{.refusals_left_out = limit_.take_left_out(), .lines_lost = lost_unsaid_};
  if (append(audit_line(event, key_name, shard, gap, wall_clock_ms()))) {
    lost_unsaid_ = 0;
    return {};
  }
  limit_.count_left_out(gap.refusals_left_out);
  ++lines_lost_;
  if (lost_unsaid_++ != 0) return {};
  return fail(ErrorCode::kIo, "audit log " + path_ + ": a line was not written: " + std::strerror(errno));
}

}  // namespace millrace::server
