#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/descriptor.h"
#include "protocol/address/stream_sockets.h"
#include "protocol/table/membership_table.h"

namespace millrace::server {

/// Tells a spare that a shard's process is gone before its lease ends. A host that lives refuses connections to the
/// address of such a process.
///
/// A refusal counts only after the address has accepted a connection of this spare in the same start. So a firewall on
/// the way is not taken for a process that is gone, unless it comes up later. Even then the swap of the incarnation
/// fences the old process: it costs a recovery and no step. Where a host does not answer, the lease decides.
///
/// Limit    of a name with several addresses it connects to the first one.
/// Threads  one at a time. Waits for nothing but the lookup of a host's name, once a start.
class ShardProbe {
 public:
  /// Between the end of a connection to a shard and the next one.
  static constexpr TimeNs kEvery = 100 * kNsPerMs;
  /// A connection that takes longer says nothing.
  static constexpr TimeNs kLimit = kNsPerS;

  /// Continues the connections. Returns for each shard whether its address refuses connections now.
  std::vector<bool> look(const std::vector<protocol::ClusterView::Shard>& shards, TimeNs now);

 private:
  struct Target {
    std::string address;
    uint64_t incarnation = 0;
    std::optional<protocol::SocketAddress> at;  ///< empty: the address cannot be probed
    Descriptor socket;                          ///< that connects now
    TimeNs begun = 0;
    TimeNs next = 0;
    bool has_accepted = false;
    bool refuses = false;
  };
  static void retarget(Target& target, const protocol::ShardEntry& entry);
  static void begin(Target& target, TimeNs now);
  static void end(Target& target, int error, TimeNs now);
  static void proceed(Target& target, TimeNs now);

  std::vector<Target> targets_;  ///< by shard
};

}  // namespace millrace::server
