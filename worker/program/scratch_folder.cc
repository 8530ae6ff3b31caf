#include "worker/program/scratch_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

namespace millrace::program {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRandomPart = "XXXXXX";
constexpr const char* kLockName = "lock";

/// Makes the folder's lock file, locked. -1: the file system has no locks, or the folder takes no file. No lock file is
/// left there, so that remove_left_behind() of any process keeps the folder.
int make_lock(const std::string& folder) {
  const std::string lock_path = folder + "/" + kLockName;
  const std::string unlocked = lock_path + ".new";
  // Without O_CLOEXEC: children hold the lock too.
  const int lock = ::open(unlocked.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, S_IRUSR | S_IWUSR);
  if (lock < 0) return -1;
  // The file gets its name once it is locked: remove_left_behind() never sees one that its maker has yet to lock.
  if (::flock(lock, LOCK_EX | LOCK_NB) == 0 && ::rename(unlocked.c_str(), lock_path.c_str()) == 0) return lock;
  ::unlink(unlocked.c_str());
  ::close(lock);
  return -1;
}

bool is_own(int file, mode_t type) {
  struct stat of{};
  return ::fstat(file, &of) == 0 && of.st_uid == ::geteuid() && (of.st_mode & S_IFMT) == type;
}

/// Returns whether the lock file still has its name: keep() may have taken it away before the lock was free.
bool has_name(int file) {
  struct stat of{};
  return ::fstat(file, &of) == 0 && of.st_nlink > 0;
}

/// Takes the lock of a folder that make() of this user made. -1: it is none, or a process holds the lock.
int take_lock(const std::string& path) {
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder < 0) return -1;
  const int lock =
      is_own(folder, S_IFDIR) ? ::openat(folder, kLockName, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC) : -1;
  ::close(folder);
  if (lock < 0) return -1;
  if (is_own(lock, S_IFREG) && ::flock(lock, LOCK_EX | LOCK_NB) == 0 && has_name(lock)) return lock;
  ::close(lock);
  return -1;
}

bool is_of_stem(const std::string& name, const std::string& stem) {
  return name.size() == stem.size() + 1 + kRandomPart.size() && name.starts_with(stem + "-");
}

/// Removes the folders of killed processes: they have a lock file that no process has locked.
void remove_left_behind(const fs::path& place, const std::string& stem) {
  std::error_code ignored;
  for (auto at = fs::directory_iterator(place, ignored); at != fs::directory_iterator(); at.increment(ignored)) {
    if (!is_of_stem(at->path().filename().string(), stem)) continue;
    const int lock = take_lock(at->path().string());
    if (lock < 0) continue;
    fs::remove_all(at->path(), ignored);
    ::close(lock);
  }
}

bool holds_files(const std::string& folder) {
  std::error_code ignored;
  for (auto at = fs::directory_iterator(folder, ignored); at != fs::directory_iterator(); at.increment(ignored)) {
    if (at->path().filename() != kLockName) return true;
  }
  return false;
}

}  // namespace

Result<ScratchFolder> ScratchFolder::make(const std::string& stem) {
  constexpr const char* kAdvice = "; TMPDIR names the folder for temporary files";
  std::error_code problem;
  const fs::path place = fs::temp_directory_path(problem);
  if (problem) return fail(ErrorCode::kIo, "there is no folder for temporary files: " + problem.message() + kAdvice);
  remove_left_behind(place, stem);
  std::string path = (place / (stem + "-" + std::string(kRandomPart))).string();
  if (::mkdtemp(path.data()) == nullptr)
    return fail(ErrorCode::kIo, "cannot make a folder in " + place.string() + ": " + std::strerror(errno) + kAdvice);
  const int lock = make_lock(path);
  return ScratchFolder(std::move(path), lock);
}

ScratchFolder::ScratchFolder(ScratchFolder&& other) noexcept
    : path_(std::exchange(other.path_, {})), lock_(std::exchange(other.lock_, -1)) {}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
  if (lock_ >= 0) ::close(lock_);
}

void ScratchFolder::keep() {
  if (path_.empty() || !holds_files(path_)) return;
  ::unlink((path_ + "/" + kLockName).c_str());
  path_.clear();
}

std::string kept_folder(const std::string& name) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (cache != nullptr && *cache != '\0') return std::string(cache) + "/" + name;
  if (home != nullptr && *home != '\0') return std::string(home) + "/.cache/" + name;
  std::error_code ignored;
  return (fs::temp_directory_path(ignored) / (name + "-" + std::to_string(::getuid()))).string();
}

}  // namespace millrace::program
