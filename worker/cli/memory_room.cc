#include "worker/cli/memory_room.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>

namespace millrace::cli {
namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

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

/// Returns the least that the control group and those around it leave.
uint64_t left_in_groups() {
  constexpr std::string_view kUnified = "0::";
  std::ifstream file("/proc/self/cgroup");
  std::string group;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kUnified)) group = line.substr(kUnified.size());
  }
  uint64_t left = kNoLimit;
  while (!group.empty()) {
    const std::string folder = "/sys/fs/cgroup" + group;
    const auto most = number_in(folder + "/memory.max");
    const auto used = number_in(folder + "/memory.current");
    if (most && used) left = std::min(left, *most - std::min(*most, *used));
    group.resize(group == "/" ? 0 : std::max<size_t>(group.rfind('/'), 1));
  }
  return left;
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

uint64_t memory_available_bytes() { return std::min({free_on_machine(), left_in_groups(), left_in_address_space()}); }

Error no_memory_for_model(const std::string& what, uint64_t features, uint64_t available) {
  const uint64_t bytes = model_bytes(features);
  return {ErrorCode::kLimitExceeded, fmt::format("{}: a model's weights alone take {} bytes ({}), and {} are free",
                                                 what, bytes, gigabytes(bytes), gigabytes(available))};
}

Status check_model_fits(const std::string& what, uint64_t features, uint64_t available) {
  if (model_bytes(features) <= available) return {};
  return std::unexpected(no_memory_for_model(what, features, available));
}

}  // namespace millrace::cli
