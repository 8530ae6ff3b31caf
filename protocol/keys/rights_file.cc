#include "protocol/keys/rights_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace millrace::protocol {

RightsDescriptor::~RightsDescriptor() {
  if (fd >= 0) ::close(fd);
}

Status judge_rights_owner(int fd, const std::string& what, const std::string& path) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) return fail(ErrorCode::kIo, what + ": " + std::strerror(errno));
  // Orchestrators mount secrets as folders with such a mode, read-only.
  struct statvfs system{};
  const bool read_only = ::fstatvfs(fd, &system) == 0 && (system.f_flag & ST_RDONLY) != 0;
  if ((status.st_mode & S_IWOTH) != 0 && !read_only) {
    return fail(ErrorCode::kInvalidArgument,
                what + ": all users may write it, and so give themselves rights; chmod o-w " + path);
  }
  if (status.st_uid == 0 || status.st_uid == ::geteuid()) return {};
  return fail(ErrorCode::kInvalidArgument,
              what + ": it belongs to user " + std::to_string(status.st_uid) +
                  ", which can give rights by it; it must belong to root or to the user of this process: chown " +
                  path);
}

Result<std::string> read_rights_file(const std::string& what, const std::string& path, size_t bytes_max) {
  const RightsDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.fd < 0) return fail(ErrorCode::kIo, what + ": " + std::strerror(errno));
  struct stat status{};
  if (::fstat(file.fd, &status) != 0) return fail(ErrorCode::kIo, what + ": " + std::strerror(errno));
  if (!S_ISREG(status.st_mode)) return fail(ErrorCode::kInvalidArgument, what + ": not a file");
  if (const Status owner = judge_rights_owner(file.fd, what, path); !owner) return std::unexpected(owner.error());
  std::string text(bytes_max, '\0');
  size_t count = 0;
  while (count < text.size()) {
    const ssize_t got = ::read(file.fd, text.data() + count, text.size() - count);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail(ErrorCode::kIo, what + ": " + std::strerror(errno));
    if (got == 0) break;
    count += static_cast<size_t>(got);
  }
  text.resize(count);
  return text;
}

}  // namespace millrace::protocol
