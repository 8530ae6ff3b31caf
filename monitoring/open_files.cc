#include "monitoring/open_files.h"

#include <dirent.h>
#include <sys/resource.h>

#include <algorithm>
#include <memory>

namespace millrace::monitoring {
namespace {

constexpr rlim_t kOpenFilesMax = rlim_t{1} << 20;

}  // namespace

uint64_t raise_open_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kOpenFilesMax;
  rlimit raised = limit;
  raised.rlim_cur = std::min(limit.rlim_max, kOpenFilesMax);
  if (raised.rlim_cur <= limit.rlim_cur || ::setrlimit(RLIMIT_NOFILE, &raised) != 0) return limit.rlim_cur;
  return raised.rlim_cur;
}

uint64_t open_file_limit() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : kOpenFilesMax;
}

std::optional<uint64_t> open_file_count() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), ::closedir);
  if (!folder) return std::nullopt;
  uint64_t count = 0;
  while (const dirent* entry = ::readdir(folder.get())) count += entry->d_name[0] != '.' ? 1 : 0;
  return count - 1;  // the folder itself
}

}  // namespace millrace::monitoring
