#include "protocol/keys/secret_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kernels/base/descriptor.h"

namespace millrace::protocol {

Status check_secret_mode(const struct stat& status, const std::string& what, const std::string& path) {
  if ((status.st_mode & (S_IRWXO | S_IWGRP)) == 0) return {};
  const bool by_all = (status.st_mode & S_IRWXO) != 0;
  return fail(ErrorCode::kInvalidArgument, what + " file " + path + ": " +
                                               (by_all ? "all users may read or write it" : "its group may write it") +
                                               ", and it has a secret " + what + "; chmod 600 " + path +
                                               " (its group may read it at most), and draw a new " + what +
                                               " where others had the chance to read this one");
}

namespace {

using ModeCheck = Status (*)(const struct stat& status, const std::string& what, const std::string& path);

Status check_trusted_mode(const struct stat& status, const std::string& what, const std::string& path) {
  if ((status.st_mode & S_IWOTH) == 0) return {};
  return fail(ErrorCode::kInvalidArgument, what + " file " + path + ": all users may write it; chmod o-w " + path +
                                               ", and compare it with its origin");
}

Result<std::string> read_file(const std::string& path, const std::string& what, size_t bytes_max, ModeCheck check) {
  const auto io_error = [&](const char* action) {
    return fail(ErrorCode::kIo, what + " file " + path + ": cannot " + action + ": " + std::strerror(errno));
  };
  // O_NONBLOCK: a pipe in the place of a file must not block the program.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return io_error("open");
  struct stat status{};
  if (::fstat(file.number(), &status) != 0) return io_error("stat");
  if (!S_ISREG(status.st_mode)) return fail(ErrorCode::kInvalidArgument, what + " file " + path + ": not a file");
  if (const Status fits = check(status, what, path); !fits) return std::unexpected(fits.error());
  std::string text(bytes_max + 1, '\0');
  size_t count = 0;
  while (count < text.size()) {
    const ssize_t got = ::read(file.number(), text.data() + count, text.size() - count);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error("read");
    if (got == 0) break;
    count += static_cast<size_t>(got);
  }
  if (count > bytes_max) {
    return fail(ErrorCode::kInvalidArgument,
                what + " file " + path + ": it has more than " + std::to_string(bytes_max) + " bytes");
  }
  text.resize(count);
  return text;
}

Status write_whole(const Descriptor& file, const std::string& name, std::string_view text) {
  const auto io_error = [&](const char* action) {
    return fail(ErrorCode::kIo, name + ": cannot " + action + ": " + std::strerror(errno));
  };
  for (size_t done = 0; done < text.size();) {
    const ssize_t wrote = ::write(file.number(), text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return io_error("write");
    done += static_cast<size_t>(wrote);
  }
  if (::fsync(file.number()) != 0) return io_error("sync");
  return {};
}

}  // namespace

Status make_secret_folder(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return fail(ErrorCode::kIo, "folder " + folder + ": cannot be made: " + std::strerror(errno));
}

Status make_new_file(const std::string& path, const std::string& what, mode_t mode, std::string_view text) {
  const std::string name = what + " file " + path;
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file && errno == EEXIST) {
    return fail(ErrorCode::kIo, name + " exists: a new key does not replace it; take another name, or remove the file");
  }
  if (!file) return fail(ErrorCode::kIo, name + ": cannot make: " + std::strerror(errno));
  Status written = write_whole(file, name, text);
  if (written && ::fchmod(file.number(), mode) != 0)
    written = fail(ErrorCode::kIo, name + ": cannot set the mode: " + std::strerror(errno));
  if (!written) ::unlink(path.c_str());
  return written;
}

Result<std::string> read_secret_file(const std::string& path, const std::string& what, size_t bytes_max) {
  return read_file(path, what, bytes_max, check_secret_mode);
}

Result<std::string> read_trusted_file(const std::string& path, const std::string& what, size_t bytes_max) {
  return read_file(path, what, bytes_max, check_trusted_mode);
}

}  // namespace millrace::protocol
