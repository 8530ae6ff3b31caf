#pragma once

#include <expected>

#include "protocol/messages/messages.h"

namespace millrace::protocol {

/// What one side can speak.
struct Offer {
  uint32_t version_min = kProtocolVersionMin;
  uint32_t version_max = kProtocolVersion;
  Capabilities capabilities = 0;
  std::string_view software = "this build";  ///< named in the refusal
};

/// What both speak from the handshake on.
struct Agreement {
  uint32_t version = kProtocolVersion;
  Capabilities capabilities = 0;
  bool operator==(const Agreement&) const = default;
};

/// The newest version and the capabilities that both have; or the refusal that the opener of the connection is sent
/// (not to be retried: another build is needed). Versions only: the job, the shard map and membership are judged by the
/// shard.
///
/// Threads  reentrant, pure.
std::expected<Agreement, Refuse> negotiate(const Hello& theirs, const Offer& ours);
std::expected<Agreement, Refuse> negotiate(const ShardHello& theirs, const Offer& ours);

}  // namespace millrace::protocol
