#include "protocol/keys/key_files.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "protocol/keys/secret_file.h"

namespace millrace::protocol {
namespace {

/// More than a key file has, so that a longer one is noticed.
constexpr size_t kKeyFileBytesMax = 128;

/// Closes a file at the end of its scope.
struct KeyFile {
  int fd;
  explicit KeyFile(int opened) : fd(opened) {}
  KeyFile(const KeyFile&) = delete;
  KeyFile& operator=(const KeyFile&) = delete;
  ~KeyFile() {
    if (fd >= 0) ::close(fd);
  }
};

/// Overwrites its memory at its end.
struct KeyText {
  std::array<char, kKeyFileBytesMax> bytes{};
  size_t count = 0;
  KeyText() = default;
  KeyText(const KeyText&) = default;
  KeyText& operator=(const KeyText&) = default;
  ~KeyText() { sodium_memzero(bytes.data(), bytes.size()); }
  std::string_view text() const { return {bytes.data(), count}; }
};

std::unexpected<Error> key_file_error(const std::string& path, const char* what) {
  return fail(ErrorCode::kIo, "key file " + path + ": cannot " + what + ": " + std::strerror(errno));
}

Result<KeyText> read_key_text(const KeyFile& file, const std::string& path) {
  KeyText text;
  while (text.count < text.bytes.size()) {
    const ssize_t got = ::read(file.fd, text.bytes.data() + text.count, text.bytes.size() - text.count);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return key_file_error(path, "read");
    if (got == 0) break;
    text.count += static_cast<size_t>(got);
  }
  return text;
}

/// O_NONBLOCK: a pipe in the place of a file must not block the program.
int open_key_file(int folder, const std::string& path) {
  return ::openat(folder, path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

enum class KeyKind : uint8_t { kPublic = 1, kSecret = 2 };

/// Refuses anything but a file, a file that all users may write, and a secret that others than owner and group may
/// read.
Status check_key_mode(const KeyFile& file, const std::string& path, KeyKind kind) {
  struct stat status{};
  if (::fstat(file.fd, &status) != 0) return key_file_error(path, "stat");
  if (!S_ISREG(status.st_mode)) return fail(ErrorCode::kInvalidArgument, "key file " + path + ": not a file");
  if (kind == KeyKind::kPublic && (status.st_mode & S_IWOTH) == 0) return {};
  if (kind == KeyKind::kPublic) {
    return fail(ErrorCode::kInvalidArgument, "key file " + path + ": all users may write it, and so let any key in; " +
                                                 "chmod o-w " + path + ", and compare the key with its owner's");
  }
  return check_secret_mode(status, "key", path);
}

}  // namespace

Result<KeyPair> read_secret_key(const std::string& path) {
  const KeyFile file(open_key_file(AT_FDCWD, path));
  if (file.fd < 0) return key_file_error(path, "open");
  if (const Status fits = check_key_mode(file, path, KeyKind::kSecret); !fits) return std::unexpected(fits.error());
  const Result<KeyText> text = read_key_text(file, path);
  if (!text) return std::unexpected(text.error());
  if (const auto secret = secret_key_of_text(text->text())) return key_pair_of(*secret);
  return fail(ErrorCode::kInvalidArgument,
              "key file " + path +
                  (public_key_of_text(text->text()) ? ": it has a public key; a secret one is needed here (NAME.key)"
                                                    : ": it has no secret key; make one by millrace keys new"));
}

Result<PublicKey> read_public_key(const std::string& path) {
  const Result<DatedKey> dated = read_public_key_in(AT_FDCWD, path, path);
  return dated ? Result<PublicKey>(dated->key) : std::unexpected(dated.error());
}

Result<DatedKey> read_public_key_in(int folder, const std::string& name, const std::string& path) {
  const KeyFile file(open_key_file(folder, name));
  if (file.fd < 0) return key_file_error(path, "open");
  if (const Status fits = check_key_mode(file, path, KeyKind::kPublic); !fits) return std::unexpected(fits.error());
  const Result<KeyText> text = read_key_text(file, path);
  if (!text) return std::unexpected(text.error());
  if (const auto key = public_key_of_text(text->text())) return *key;
  return fail(ErrorCode::kInvalidArgument,
              "key file " + path +
                  (secret_key_of_text(text->text()) ? ": it has a secret key; a public one is needed here (NAME.pub)"
                                                    : ": it has no public key; make one by millrace keys new"));
}

Result<KeyFiles> write_new_keys(const std::string& folder, const std::string& name, KeyEnd end) {
  if (const std::string refusal = refuse_key_name(name); !refusal.empty())
    return fail(ErrorCode::kInvalidArgument, "'" + name + "': " + refusal);
  if (const Status made = make_secret_folder(folder); !made) return std::unexpected(made.error());
  KeyFiles files{folder + "/" + name + ".key", folder + "/" + name + ".pub"};
  const KeyPair pair = draw_key_pair();
  // The public file first: where it exists, no secret has been written.
  if (const Status made = make_new_file(files.public_path, "key", 0644, public_key_text(pair.public_key, end)); !made)
    return std::unexpected(made.error());
  std::string secret = secret_key_text(pair.secret);
  const Status made = make_new_file(files.secret_path, "key", 0600, secret);
  sodium_memzero(secret.data(), secret.size());
  if (!made) {
    ::unlink(files.public_path.c_str());
    return std::unexpected(made.error());
  }
  return files;
}

}  // namespace millrace::protocol
