#include "worker/cli/scratch_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRandomPart = "XXXXXX";
constexpr const char* kKeptMark = "kept";

/// The folder's lock; -1: another process has it, or it is no folder of this user.
int lock_folder(const std::string& path) {
  // Without O_CLOEXEC: children hold the lock too.
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (folder < 0) return -1;
  struct stat of{};
  if (::fstat(folder, &of) == 0 && of.st_uid == ::geteuid() && ::flock(folder, LOCK_EX | LOCK_NB) == 0) return folder;
  ::close(folder);
  return -1;
}

bool is_of_stem(const std::string& name, const std::string& stem) {
  return name.size() == stem.size() + 1 + kRandomPart.size() && name.starts_with(stem + "-");
}

/// Removes the folders of killed processes: no process holds their lock.
void remove_left_behind(const fs::path& place, const std::string& stem) {
  std::error_code ignored;
  for (auto at = fs::directory_iterator(place, ignored); at != fs::directory_iterator(); at.increment(ignored)) {
    if (!is_of_stem(at->path().filename().string(), stem)) continue;
    const int lock = lock_folder(at->path().string());
    if (lock < 0) continue;
    if (!fs::exists(at->path() / kKeptMark, ignored)) fs::remove_all(at->path(), ignored);
    ::close(lock);
  }
}

}  // namespace

Result<ScratchFolder> ScratchFolder::make(const std::string& stem) {
  constexpr const char* kAdvice = "; TMPDIR names the folder for temporary files";
  constexpr int kTries = 16;
  std::error_code problem;
  const fs::path place = fs::temp_directory_path(problem);
  if (problem) return fail(ErrorCode::kIo, "there is no folder for temporary files: " + problem.message() + kAdvice);
  remove_left_behind(place, stem);
  for (int tries = 0; tries < kTries; ++tries) {
    std::string path = (place / (stem + "-" + std::string(kRandomPart))).string();
    if (::mkdtemp(path.data()) == nullptr) break;
    // Until it is locked, another process's make() may take it for one that was left behind.
    const int lock = lock_folder(path);
    std::error_code ignored;
    if (lock >= 0 && fs::exists(path, ignored)) return ScratchFolder(std::move(path), lock);
    if (lock >= 0) ::close(lock);
  }
  return fail(ErrorCode::kIo, "cannot make a folder in " + place.string() + ": " + std::strerror(errno) + kAdvice);
}

ScratchFolder::ScratchFolder(ScratchFolder&& other) noexcept
    : path_(std::exchange(other.path_, {})), lock_(std::exchange(other.lock_, -1)) {}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
  if (lock_ >= 0) ::close(lock_);
}

void ScratchFolder::keep() {
  std::error_code ignored;
  if (path_.empty() || fs::is_empty(path_, ignored)) return;
  const int mark = ::open((path_ + "/" + kKeptMark).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (mark >= 0) ::close(mark);
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

}  // namespace millrace::cli
