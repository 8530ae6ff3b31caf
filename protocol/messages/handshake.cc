#include "protocol/messages/handshake.h"

#include <fmt/format.h>

#include <algorithm>

namespace millrace::protocol {
namespace {

std::expected<Agreement, Refuse> negotiate_offers(const Offer& theirs, const Offer& ours) {
  const uint32_t newest = std::min(theirs.version_max, ours.version_max);
  const uint32_t oldest = std::max(theirs.version_min, ours.version_min);
  if (newest >= oldest) return Agreement{newest, theirs.capabilities & ours.capabilities};
  Refuse refuse;
  refuse.code = ErrorCode::kVersionMismatch;
  refuse.sentence = fmt::format(
      "{} speaks protocol versions {} to {}, {} speaks {} to {}: use builds that have one in common", theirs.software,
      theirs.version_min, theirs.version_max, ours.software, ours.version_min, ours.version_max);
  return std::unexpected(std::move(refuse));
}

std::string_view software_name(const std::string& software) {
  return software.empty() ? std::string_view("the peer") : std::string_view(software);
}

}  // namespace

std::expected<Agreement, Refuse> negotiate(const Hello& theirs, const Offer& ours) {
  return negotiate_offers({theirs.version_min, theirs.version_max, theirs.capabilities, software_name(theirs.software)},
                          ours);
}

std::expected<Agreement, Refuse> negotiate(const ShardHello& theirs, const Offer& ours) {
  return negotiate_offers({theirs.version_min, theirs.version_max, 0, software_name(theirs.software)}, ours);
}

}  // namespace millrace::protocol
