#include "worker/cli/scratch_folder.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace millrace::cli {

Result<std::string> make_scratch_folder(const std::string& stem) {
  constexpr const char* kAdvice = "; TMPDIR names the folder for temporary files";
  std::error_code problem;
  const std::filesystem::path place = std::filesystem::temp_directory_path(problem);
  if (problem) return fail(ErrorCode::kIo, "there is no folder for temporary files: " + problem.message() + kAdvice);
  std::string path = (place / (stem + "-XXXXXX")).string();
  if (::mkdtemp(path.data()) == nullptr)
    return fail(ErrorCode::kIo, "cannot make a folder in " + place.string() + ": " + std::strerror(errno) + kAdvice);
  return path;
}

std::string kept_folder(const std::string& name) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (cache != nullptr && *cache != '\0') return std::string(cache) + "/" + name;
  if (home != nullptr && *home != '\0') return std::string(home) + "/.cache/" + name;
  std::error_code ignored;
  return (std::filesystem::temp_directory_path(ignored) / (name + "-" + std::to_string(::getuid()))).string();
}

}  // namespace millrace::cli
