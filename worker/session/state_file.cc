#include "worker/session/state_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

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

 private:
  int descriptor_;
};

}  // namespace

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
