#pragma once

#include <expected>

#include "protocol/messages/messages.h"

namespace millrace::protocol {

/// The versions and capabilities of one side.
struct Offer {
  uint32_t version_min = kProtocolVersionMin;
  uint32_t version_max = kProtocolVersion;
  Capabilities capabilities = 0;
  std::string_view software = "this build";  ///< named in the refusal
};

/// The version and capabilities that both sides use from the handshake on.
struct Agreement {
  uint32_t version = kProtocolVersion;
  Capabilities capabilities = 0;
  bool operator==(const Agreement&) const = default;
};

/// Returns the newest version and the capabilities that both sides have, or the refusal for the opener of the
/// connection. The opener must not retry: another build is needed. Versions only: the shard checks the job, the shard
/// map and the membership.
///
/// Threads  reentrant, pure.
std::expected<Agreement, Refuse> negotiate(const Hello& theirs, const Offer& ours);
std::expected<Agreement, Refuse> negotiate(const ShardHello& theirs, const Offer& ours);

}  // namespace millrace::protocol
