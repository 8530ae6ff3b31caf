#include "protocol/files/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

namespace millrace::files {
namespace {

/// Names of unfinished files for a signal handler: fixed memory, one writer a slot.
constexpr size_t kSlots = 8;
struct Slot {
  std::atomic<bool> taken = false;
  std::atomic<bool> ready = false;
  std::array<char, 4096> path = {};
};
std::array<Slot, kSlots> unfinished;

int note_unfinished(const std::string& path) {
  for (size_t slot = 0; slot < kSlots; ++slot) {
    if (path.size() >= unfinished[slot].path.size() || unfinished[slot].taken.exchange(true)) continue;
    std::copy_n(path.c_str(), path.size() + 1, unfinished[slot].path.begin());
    unfinished[slot].ready.store(true);
    return static_cast<int>(slot);
  }
  return -1;
}

/// Keeps errno.
void forget_unfinished(int slot) {
  if (slot < 0) return;
  unfinished[static_cast<size_t>(slot)].ready.store(false);
  unfinished[static_cast<size_t>(slot)].taken.store(false);
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::unexpected<Error> cannot_replace(const std::string& path, const std::string& why) {
  return fail(ErrorCode::kIo, "cannot write " + path + ": " + why);
}

bool write_all(int descriptor, ByteSpan bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return true;
}

/// Returns the state of the name itself, not of the target of a link. Nothing where there is no such file.
std::optional<struct statx> look_at(const std::string& path) {
  struct statx there = {};
  if (statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &there) != 0) return std::nullopt;
  return there;
}

bool has(const struct statx& there, uint64_t attribute) {
  return (there.stx_attributes & there.stx_attributes_mask & attribute) != 0;
}

/// Returns whether a sticky folder keeps this user from replacing the file. Root may replace it.
bool is_anothers(const struct statx& file, const struct statx& folder) {
  const uid_t user = geteuid();
  return (folder.stx_mode & S_ISVTX) != 0 && user != 0 && file.stx_uid != user && folder.stx_uid != user;
}

/// Writes the bytes into a new file in `folder`, for its owner alone. Users without access to the requested folder may
/// have access to this one. Returns its path. Empty: it could not be written whole.
std::string keep_in(const std::string& folder, const std::string& name, ByteSpan bytes) {
  std::string path = folder + "/" + name + ".kept-XXXXXX";
  const int descriptor = mkostemp(path.data(), O_CLOEXEC);
  if (descriptor < 0) return {};
  const bool whole = write_all(descriptor, bytes) && fsync(descriptor) == 0;
  if (close(descriptor) == 0 && whole) return path;
  unlink(path.c_str());
  return {};
}

std::string keep_elsewhere(const std::string& path, ByteSpan bytes) {
  const char* named = std::getenv("TMPDIR");
  for (const char* folder : {".", named != nullptr ? named : "/var/tmp", "/tmp"}) {
    if (std::string kept = keep_in(folder, base_name(path), bytes); !kept.empty()) return kept;
  }
  return {};
}

std::string path_of_descriptor(int descriptor) { return "/proc/self/fd/" + std::to_string(descriptor); }

/// Opens a file without a name in the folder of `path`. No file system keeps it when the process ends, however it ends.
/// Negative: this file system has none (NFS, FUSE), the folder cannot be written, or there is no /proc to name it by.
int open_unnamed(const std::string& path, mode_t mode) {
  const int descriptor = open(folder_of(path).c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, mode);
  if (descriptor < 0 || access(path_of_descriptor(descriptor).c_str(), F_OK) == 0) return descriptor;
  close(descriptor);
  return -1;
}

}  // namespace

Status check_replaceable(const std::string& path) {
  // Renaming onto a device, a pipe or a socket would put a file in its place.
  struct stat there = {};
  if (stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {
    const std::string what = S_ISDIR(there.st_mode) ? "a folder" : "a device, a pipe or a socket";
    return cannot_replace(path, "it is " + what + "; give the name of a file");
  }
  const auto folder = look_at(folder_of(path));
  const auto file = look_at(path);
  if (!folder || !file) return {};  // create() reports a missing folder
  if (has(*file, STATX_ATTR_MOUNT_ROOT)) {
    return cannot_replace(path,
                          "it is a mount of its own, which no other file can take the place of; mount its folder "
                          "instead, or give another name");
  }
  if (has(*file, STATX_ATTR_IMMUTABLE) || has(*file, STATX_ATTR_APPEND) || has(*folder, STATX_ATTR_APPEND)) {
    return cannot_replace(path, "it, or its folder, is set immutable or append-only (lsattr); give another name");
  }
  if (is_anothers(*file, *folder))
    return cannot_replace(path, "it belongs to another user, and its folder is sticky; give another name");
  return {};
}

void remove_unfinished_files() {
  for (const Slot& slot : unfinished) {
    if (slot.ready.load()) unlink(slot.path.data());
  }
}

Result<AtomicFile> AtomicFile::create(const std::string& path, mode_t mode) {
  if (Status can = check_replaceable(path); !can) return std::unexpected(can.error());
  const int descriptor = open_unnamed(path, mode);
  return descriptor < 0 ? create_named(path, mode) : AtomicFile(path, descriptor);
}

Result<AtomicFile> AtomicFile::create_named(const std::string& path, mode_t mode) {
  AtomicFile file(path, -1);  // noted before it exists: a signal may come right after
  file.named_ = true;
  file.descriptor_ = open(file.temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode);
  if (file.descriptor_ < 0) return cannot_replace(path, file.temporary_ + ": " + std::strerror(errno));
  return file;
}

// The process's number keeps two writers of one path apart; the file of an ended process is overwritten.
AtomicFile::AtomicFile(std::string path, int descriptor)
    : path_(std::move(path)),
      temporary_(path_ + ".new-" + std::to_string(getpid())),
      descriptor_(descriptor),
      slot_(note_unfinished(temporary_)) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      named_(other.named_),
      slot_(std::exchange(other.slot_, -1)) {}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) {
    close(descriptor_);
    if (named_) unlink(temporary_.c_str());
  }
  forget_unfinished(slot_);
}

std::unexpected<Error> AtomicFile::refuse(const char* action) const {
  return cannot_replace(
      path_, std::string(action) + ": " + std::strerror(errno) + "; a file that was there before is unchanged");
}

/// Closes the temporary file, which no destructor or signal handler removes from now on.
void AtomicFile::let_go() {
  close(std::exchange(descriptor_, -1));
  forget_unfinished(std::exchange(slot_, -1));
}

Status AtomicFile::write(ByteSpan bytes) { return write_all(descriptor_, bytes) ? Status() : refuse("write"); }

/// Gives an unnamed file its temporary name: no system call puts it at a name that exists.
bool AtomicFile::give_name() {
  const std::string opened = path_of_descriptor(descriptor_);
  unlink(temporary_.c_str());
  named_ = linkat(AT_FDCWD, opened.c_str(), AT_FDCWD, temporary_.c_str(), AT_SYMLINK_FOLLOW) == 0;
  return named_;
}

Status AtomicFile::commit() {
  if (fsync(descriptor_) != 0) return refuse("fsync");
  if (!named_ && !give_name()) return refuse("link");
  if (rename(temporary_.c_str(), path_.c_str()) != 0) {
    auto refused = refuse("rename");
    refused.error().message += "; its new contents are in " + temporary_;
    let_go();
    return refused;
  }
  let_go();
  // The rename itself is on disk once the folder is; where folders cannot be synced the file is whole all the same.
  const int descriptor = open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor >= 0) {
    fsync(descriptor);
    close(descriptor);
  }
  return {};
}

Status try_to_write(const std::string& path, mode_t mode) {
  const auto probe = AtomicFile::create(path, mode);
  return probe ? Status() : Status(std::unexpected(probe.error()));
}

Status write_file_atomically(const std::string& path, ByteSpan bytes, mode_t mode) {
  // The name of the file that takes the other's place is the process's: two threads would use one.
  static std::mutex writing;
  const std::lock_guard one_at_a_time(writing);
  Status done;
  std::string beside;
  {
    auto file = AtomicFile::create(path, mode);
    done = file ? file->write(bytes) : Status(std::unexpected(file.error()));
    if (done) {
      done = file->commit();
      if (file->named_) beside = file->temporary_;
    }
  }
  if (done || (!beside.empty() && access(beside.c_str(), F_OK) == 0)) return done;
  const std::string kept = keep_elsewhere(path, bytes);
  if (!kept.empty()) done.error().message += "; its new contents are in " + kept;
  return done;
}

}  // namespace millrace::files
