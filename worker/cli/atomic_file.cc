#include "worker/cli/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

namespace millrace::cli {
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

}  // namespace

void remove_unfinished_files() {
  for (const Slot& slot : unfinished) {
    if (slot.ready.load()) unlink(slot.path.data());
  }
}

Result<AtomicFile> AtomicFile::create(const std::string& path) {
  // Renaming onto a device, a pipe or a socket would put a file in its place.
  struct stat there = {};
  if (stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {
    const char* what = S_ISDIR(there.st_mode) ? "a folder" : "a device, a pipe or a socket";
    return fail(ErrorCode::kIo, "cannot write " + path + ": it is " + what + "; give the name of a file");
  }
  // The process's number keeps two writers of one path apart; what an ended process left is overwritten.
  std::string temporary = path + ".new-" + std::to_string(getpid());
  const int slot = note_unfinished(temporary);  // before it exists: a signal may come right after
  const int descriptor = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (descriptor < 0) {
    forget_unfinished(slot);
    return fail(ErrorCode::kIo, "cannot write " + path + ": " + temporary + ": " + std::strerror(errno));
  }
  return AtomicFile(path, std::move(temporary), descriptor, slot);
}

AtomicFile::AtomicFile(std::string path, std::string temporary, int descriptor, int slot)
    : path_(std::move(path)), temporary_(std::move(temporary)), descriptor_(descriptor), slot_(slot) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      slot_(std::exchange(other.slot_, -1)) {}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  close(descriptor_);
  unlink(temporary_.c_str());
  forget_unfinished(slot_);
}

std::unexpected<Error> AtomicFile::refuse(const char* action) const {
  return fail(ErrorCode::kIo, "cannot write " + path_ + ": " + action + ": " + std::strerror(errno) +
                                  "; a file that was there before is unchanged");
}

Status AtomicFile::write(ByteSpan bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return refuse("write");
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return {};
}

Status AtomicFile::commit() {
  if (fsync(descriptor_) != 0) return refuse("fsync");
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return refuse("rename");
  close(std::exchange(descriptor_, -1));
  forget_unfinished(std::exchange(slot_, -1));
  // The rename itself is on disk once the folder is; where folders cannot be synced the file is whole all the same.
  const size_t slash = path_.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor >= 0) {
    fsync(descriptor);
    close(descriptor);
  }
  return {};
}

}  // namespace millrace::cli
