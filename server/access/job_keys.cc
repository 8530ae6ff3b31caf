#include "server/access/job_keys.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "protocol/datagram/io/job_key_file.h"

namespace millrace::server {

std::string JobKeys::path_of(uint32_t number) const { return fmt::format("{}/{}.key", folder_, number); }

Result<protocol::JobKey> JobKeys::key_of(uint32_t number) {
  if (const auto known = keys_.find(number); known != keys_.end()) return known->second;
  Result<protocol::JobKey> key = protocol::read_job_key(path_of(number));
  if (key) keys_.emplace(number, *key);
  return key;
}

std::vector<LogLine> JobKeys::reload() {
  std::vector<LogLine> lines;
  size_t changed = 0;
  size_t gone = 0;
  for (auto at = keys_.begin(); at != keys_.end();) {
    const std::string path = path_of(at->first);
    const Result<protocol::JobKey> key = protocol::read_job_key(path);
    // A folder that is gone, as an unmounted one, takes no key away.
    std::error_code error;
    if (!key && !std::filesystem::exists(path, error) && !error && std::filesystem::exists(folder_, error)) {
      ++gone;
      at = keys_.erase(at);
      continue;
    }
    if (!key) {
      lines.push_back({Severity::kError, fmt::format("reload: {}; the key from before holds", key.error().message)});
    } else if (std::exchange(at->second, *key) != *key) {
      ++changed;
    }
    ++at;
  }
  if (keys_.empty() && gone == 0) return lines;
  lines.push_back(
      {Severity::kInfo, fmt::format("reload: {} job keys, {} of them new for jobs that begin from now on{}",
                                    keys_.size(), changed, gone == 0 ? "" : fmt::format("; {} files are gone", gone))});
  return lines;
}

}  // namespace millrace::server
