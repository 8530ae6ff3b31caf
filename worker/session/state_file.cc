#include "worker/session/state_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

namespace millrace::worker {
namespace {

std::unexpected<Error> system_error(const std::string& what) {
  const int reason = errno;
  return fail(ErrorCode::kIo, what + ": " + std::generic_category().message(reason));
}

/// A descriptor that is closed when it goes out of scope.
class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int descriptor() const { return descriptor_; }
  bool good() const { return descriptor_ >= 0; }
  /// Closes now: a full disk or a lost network file system may speak up only here.
  bool close() { return ::close(std::exchange(descriptor_, -1)) == 0; }

 private:
  int descriptor_;
};

bool write_all(int descriptor, ByteSpan bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return true;
}

Status write_new(const std::string& path, ByteSpan bytes) {
  constexpr mode_t kOwnerOnly = 0600;  // gradients may tell about the data they came from
  File file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kOwnerOnly));
  if (!file.good()) return system_error("cannot create '" + path + "'");
  if (!write_all(file.descriptor(), bytes))
    return system_error("cannot write " + std::to_string(bytes.size()) + " bytes to '" + path + "'");
  if (::fsync(file.descriptor()) != 0) return system_error("cannot flush '" + path + "' to the disk");
  if (!file.close()) return system_error("cannot close '" + path + "'");
  return {};
}

}  // namespace

Status write_file_atomically(const std::string& path, ByteSpan bytes) {
  const std::string fresh = path + ".new." + std::to_string(::getpid());
  if (auto written = write_new(fresh, bytes); !written) {
    ::unlink(fresh.c_str());
    return written;
  }
  if (std::rename(fresh.c_str(), path.c_str()) != 0) {
    auto failure = system_error("cannot rename '" + fresh + "' to '" + path + "'");
    ::unlink(fresh.c_str());
    return failure;
  }
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const File directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.good() || ::fsync(directory.descriptor()) != 0)
    return system_error("cannot flush the folder of '" + path + "'");
  return {};
}

Result<ByteBuffer> read_file(const std::string& path) {
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.good()) return system_error("cannot open '" + path + "'");
  struct stat info{};
  if (::fstat(file.descriptor(), &info) != 0) return system_error("cannot look at '" + path + "'");
  ByteBuffer bytes(static_cast<size_t>(info.st_size));
  size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t got = ::read(file.descriptor(), bytes.data() + at, bytes.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error("cannot read '" + path + "'");
    if (got == 0) break;
    at += static_cast<size_t>(got);
  }
  bytes.resize(at);
  return bytes;
}

}  // namespace millrace::worker
