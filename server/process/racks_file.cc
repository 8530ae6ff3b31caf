#include "server/process/racks_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "protocol/datagram/header.h"

namespace millrace::server {
namespace {

using RacksJson = nlohmann::json;

constexpr size_t kRacksFileBytesMax = 1 << 16;
constexpr const char* kForm =
    "is not JSON of the form {\"racks\": [[0, 1], [2, 3]]}: workers of each rack, 0 to 63, each in one rack";

Error malformed_racks() { return {ErrorCode::kInvalidArgument, kForm}; }

}  // namespace

Result<std::vector<uint64_t>> parse_racks(std::string_view text) {
  const RacksJson document = RacksJson::parse(text, nullptr, false);
  if (!document.is_object() || document.size() != 1 || !document.contains("racks"))
    return std::unexpected(malformed_racks());
  const RacksJson& list = document["racks"];
  if (!list.is_array() || list.size() > protocol::kSwitchWorkersMax) return std::unexpected(malformed_racks());
  std::vector<uint64_t> racks;
  uint64_t named = 0;
  for (const RacksJson& rack : list) {
    if (!rack.is_array() || rack.empty()) return std::unexpected(malformed_racks());
    uint64_t workers = 0;
    for (const RacksJson& one : rack) {
      if (!one.is_number_unsigned() || one.get<uint64_t>() >= protocol::kSwitchWorkersMax)
        return std::unexpected(malformed_racks());
      workers |= uint64_t{1} << one.get<uint64_t>();
    }
    if ((named & workers) != 0) return std::unexpected(malformed_racks());
    named |= workers;
    racks.push_back(workers);
  }
  return racks;
}

Result<std::vector<uint64_t>> read_racks_file(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text(kRacksFileBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.eof() || file.bad()) {
    return fail(ErrorCode::kIo,
                errno == 0 ? fmt::format("'{}' has more than {} bytes: no list of racks", path, kRacksFileBytesMax)
                           : fmt::format("cannot read the list of racks '{}': {}", path, std::strerror(errno)));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  Result<std::vector<uint64_t>> racks = parse_racks(text);
  if (!racks) return fail(racks.error().code, fmt::format("'{}' {}", path, racks.error().message));
  return racks;
}

}  // namespace millrace::server
