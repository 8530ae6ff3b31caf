#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/messages/peer_id.h"

namespace millrace::server {

/// One line of the audit log: an act of a peer, or of this shard.
struct AuditEvent {
  enum class What : uint8_t {
    kStart = 1,      ///< this shard has started
    kStop = 2,       ///< this shard stops
    kJoin = 3,       ///< a connection speaks for a worker from now on
    kLeave = 4,      ///< a worker has said Goodbye
    kEnd = 5,        ///< a job is over at this shard
    kRefuse = 6,     ///< a connection, a Hello or a ShardHello is refused
    kEvict = 7,      ///< this shard has removed a worker from its job
    kReload = 8,     ///< keys and rights were read again, or could not be
    kClose = 9,      ///< this shard has ended a connection
    kOrder = 10,     ///< a named token of the HTTP port orders the end of a job
    kKeyEnd = 11,    ///< an allowed key has ended by its date
    kDrain = 12,     ///< this shard has left its number to a spare, at that address
    kTakeOver = 13,  ///< this spare has taken the number
  };
  What what = What::kStart;
  protocol::PeerId by = {};  ///< key and address; empty: no peer is involved
  std::string token = {};    ///< the name of a named token, in place of a key
  std::string job = {};
  std::optional<uint32_t> worker = {};
  std::optional<uint32_t> of_shard = {};  ///< another shard
  uint64_t incarnation = 0;               ///< of the worker, or of the number's next start; 0: none
  std::string code = {};                  ///< "unauthenticated", "finished", "silent", ...
  std::string sentence = {};
};

/// Returns the line of a spare at that address whose start of the shard it took has this incarnation.
inline AuditEvent take_over_event(const std::string& address, uint64_t incarnation) {
  return {.what = AuditEvent::What::kTakeOver, .by = {.bytes = {}, .address = address}, .incarnation = incarnation};
}

}  // namespace millrace::server
