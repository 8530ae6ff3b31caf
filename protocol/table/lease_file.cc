#include "protocol/table/lease_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace millrace::protocol {
namespace {

/// Returns a lock of `count` bytes. Locks of open file descriptions (F_OFD_*) belong to the descriptor, not to the
/// process.
struct flock byte_lock(int64_t byte, short type = F_WRLCK, int64_t count = 1) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = count;
  return lock;
}

}  // namespace

LeaseFile::~LeaseFile() {
  if (fd_ >= 0) ::close(fd_);
}

std::unexpected<Error> LeaseFile::io_error(const char* what) const {
  return fail(ErrorCode::kIo,
              fmt::format("membership table: leases in {}: cannot {}: {}", path_, what, std::strerror(errno)));
}

Status LeaseFile::open() {
  const auto open_existing = [this] { return ::open(path_.c_str(), O_RDWR | O_CLOEXEC); };
  if (fd_ < 0) fd_ = open_existing();
  if (fd_ < 0 && errno == ENOENT) {
    // O_EXCL: root gives away no file that another user has put there.
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd_ < 0 && errno == EEXIST) {  // another process was faster
      fd_ = open_existing();
    } else if (struct stat table{}; fd_ >= 0 && ::geteuid() == 0 && ::stat(table_.c_str(), &table) == 0) {
      // The service that owns the table must be able to open its leases. Without the right to do so the file stays.
      [[maybe_unused]] const int given = ::fchown(fd_, table.st_uid, table.st_gid);
    }
  }
  if (fd_ < 0) return io_error("open");
  return {};
}

Result<bool> LeaseFile::hold(uint32_t byte) {
  if (held_ == byte) return true;
  if (Status opened = open(); !opened) return std::unexpected(opened.error());
  struct flock lock = byte_lock(byte);
  if (::fcntl(fd_, F_OFD_SETLK, &lock) != 0) {
    if (errno == EAGAIN || errno == EACCES) return false;
    return io_error("lock");
  }
  const Status released = release();
  held_ = byte;
  if (!released) return std::unexpected(released.error());
  return true;
}

Status LeaseFile::release() {
  if (held_ < 0) return {};
  struct flock lock = byte_lock(held_, F_UNLCK);
  if (::fcntl(fd_, F_OFD_SETLK, &lock) != 0) return io_error("unlock");
  held_ = -1;
  return {};
}

Result<bool> LeaseFile::is_held(uint32_t byte) {
  if (held_ == byte) return true;
  return has_lock(byte, 1);
}

Result<bool> LeaseFile::is_any_held(uint32_t count) {
  if (held_ >= 0 && held_ < count) return true;
  return has_lock(0, count);
}

/// Returns whether another process has one of the bytes.
Result<bool> LeaseFile::has_lock(uint32_t byte, uint32_t count) {
  if (fd_ < 0) fd_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
  if (fd_ < 0 && errno == ENOENT) return false;
  if (fd_ < 0) return io_error("open");
  struct flock lock = byte_lock(byte, F_WRLCK, count);
  if (::fcntl(fd_, F_OFD_GETLK, &lock) != 0) return io_error("read");
  return lock.l_type != F_UNLCK;
}

}  // namespace millrace::protocol
