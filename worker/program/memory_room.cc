#include "worker/program/memory_room.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>

namespace millrace::program {
namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();
constexpr std::string_view kMoreRoom =
    "end other programs, raise the limit on memory (ulimit -v, or memory.max of the control group), take a larger "
    "machine, or number the features without gaps";

/// Returns the first number of a file; nothing where there is none ("max").
std::optional<uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

uint64_t free_on_machine() {
  std::ifstream file("/proc/meminfo");
  uint64_t kibibytes = 0;
  std::string name;
  std::string rest;
  uint64_t number = 0;
  bool known = false;
  while (file >> name >> number && std::getline(file, rest)) {
    if (name != "MemAvailable:" && name != "SwapFree:") continue;
    kibibytes += number;
    known = true;
  }
  return known ? kibibytes * 1024 : kNoLimit;
}

/// Returns the control group (v2) of this process; empty: it has none.
std::string own_group() {
  constexpr std::string_view kUnified = "0::";
  std::ifstream file("/proc/self/cgroup");
  std::string group;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kUnified)) group = line.substr(kUnified.size());
  }
  return group;
}

/// Returns the bytes of files that a control group's usage includes.
uint64_t cached_files_in(const std::string& folder) {
  std::ifstream file(folder + "/memory.stat");
  uint64_t cached = 0;
  std::string name;
  for (uint64_t bytes = 0; file >> name >> bytes;) {
    if (name == "active_file" || name == "inactive_file") cached += bytes;
  }
  return cached;
}

uint64_t left_in_address_space() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kNoLimit;
  const uint64_t pages = number_in("/proc/self/statm").value_or(0);
  const uint64_t used = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return limit.rlim_cur - std::min<uint64_t>(limit.rlim_cur, used);
}

std::string gigabytes(uint64_t bytes) { return fmt::format("{:.2f} GB", static_cast<double>(bytes) * 1e-9); }

}  // namespace

uint64_t bytes_left_in_groups(const std::string& root, std::string group) {
  uint64_t left = kNoLimit;
  while (!group.empty()) {
    const std::string folder = root + group;
    const auto most = number_in(folder + "/memory.max");
    const auto used = number_in(folder + "/memory.current");
    if (most && used) {
      const uint64_t held = *used - std::min(*used, cached_files_in(folder));
      left = std::min(left, *most - std::min(*most, held));
    }
    group.resize(group == "/" ? 0 : std::max<size_t>(group.rfind('/'), 1));
  }
  return left;
}

uint64_t memory_available_bytes() {
  return std::min({free_on_machine(), bytes_left_in_groups("/sys/fs/cgroup", own_group()), left_in_address_space()});
}

Error out_of_memory_in_training(const std::string& what, uint64_t features) {
  const uint64_t bytes = model_bytes(features);
  return {ErrorCode::kLimitExceeded,
          fmt::format("{}: training ran out of memory; the model's weights alone take {} bytes ({}); {}", what, bytes,
                      gigabytes(bytes), kMoreRoom)};
}

Status check_model_fits(const std::string& what, uint64_t features, uint64_t available) {
  const uint64_t bytes = model_bytes(features);
  if (bytes <= available) return {};
  return fail(ErrorCode::kLimitExceeded,
              fmt::format("{}: a model's weights alone take {} bytes ({}), and {} are free; {}", what, bytes,
                          gigabytes(bytes), gigabytes(available), kMoreRoom));
}

}  // namespace millrace::program
