#include "protocol/datagram/io/job_key_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

namespace millrace::protocol {
namespace {

constexpr size_t kDigits = 2 * sizeof(JobKey);

/// Closes a file at the end of its scope.
struct OpenFile {
  int fd;
  ~OpenFile() {
    if (fd >= 0) ::close(fd);
  }
};

std::optional<uint8_t> digit(char c) {
  if (c >= '0' && c <= '9') return static_cast<uint8_t>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<uint8_t>(c - 'a' + 10);
  if (c >= 'A' && c <= 'F') return static_cast<uint8_t>(c - 'A' + 10);
  return std::nullopt;
}

std::optional<JobKey> parse(std::string_view text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  if (text.size() != kDigits) return std::nullopt;
  JobKey key;
  for (size_t i = 0; i < key.size(); ++i) {
    const auto high = digit(text[2 * i]);
    const auto low = digit(text[2 * i + 1]);
    if (!high || !low) return std::nullopt;
    key[i] = static_cast<uint8_t>(*high << 4 | *low);
  }
  return key;
}

std::unexpected<Error> io_error(const std::string& path, const char* what) {
  return fail(ErrorCode::kIo, "job key " + path + ": cannot " + what + ": " + std::strerror(errno));
}

}  // namespace

Result<JobKey> read_job_key(const std::string& path) {
  const OpenFile file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) return io_error(path, "open");
  struct stat status{};
  if (::fstat(file.fd, &status) != 0) return io_error(path, "stat");
  if (!S_ISREG(status.st_mode)) return fail(ErrorCode::kInvalidArgument, "job key " + path + ": not a file");
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return fail(ErrorCode::kInvalidArgument, "job key " + path + ": others may read or write it; chmod 600 " + path);
  }
  std::array<char, kDigits + 2> text;  // a byte more than there may be
  size_t bytes = 0;
  while (bytes < text.size()) {
    const ssize_t got = ::read(file.fd, text.data() + bytes, text.size() - bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error(path, "read");
    if (got == 0) break;
    bytes += static_cast<size_t>(got);
  }
  const auto key = parse(std::string_view(text.data(), bytes));
  if (!key) {
    return fail(ErrorCode::kInvalidArgument,
                "job key " + path + ": must be 64 hexadecimal digits and a newline (openssl rand -hex 32)");
  }
  return *key;
}

}  // namespace millrace::protocol
