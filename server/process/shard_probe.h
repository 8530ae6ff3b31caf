#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "protocol/table/membership_table.h"

namespace millrace::server {

/// Tells a spare that a shard's process is gone before its lease ends: where the host lives, it refuses connections to
/// the address of a process that is gone.
///
/// A refusal counts only after the address has accepted a connection of this spare in the same start. So a firewall on
/// the way is not taken for a process that is gone, unless it comes up later. Even then a spare costs a recovery and no
/// step: it takes the number by the swap of the incarnation. A host that does not answer says nothing; there the lease
/// decides.
///
/// Threads  one at a time. Waits for nothing but the lookup of a host's name, once a start.
class ShardProbe {
 public:
  /// Between the ends and the beginnings of two connections to one shard.
  static constexpr TimeNs kEvery = 100 * kNsPerMs;
  /// A connection that takes longer says nothing.
  static constexpr TimeNs kLimit = kNsPerS;

  ShardProbe() = default;
  ~ShardProbe();
  ShardProbe(const ShardProbe&) = delete;
  ShardProbe& operator=(const ShardProbe&) = delete;

  /// Goes on with the connections. Returns for each shard whether its address refuses connections now.
  std::vector<bool> look(const std::vector<protocol::ClusterView::Shard>& shards, TimeNs now);

 private:
  struct Target {
    std::string address;
    uint64_t incarnation = 0;
    std::string host;  ///< its number; empty: the address cannot be probed
    uint16_t port = 0;
    int fd = -1;
    TimeNs begun = 0;
    TimeNs next = 0;
    bool has_accepted = false;
    bool refuses = false;
  };
  static void retarget(Target& target, const protocol::ShardEntry& entry);
  static void begin(Target& target, TimeNs now);
  static void end(Target& target, int error, TimeNs now);
  static void go_on(Target& target, TimeNs now);

  std::vector<Target> targets_;  ///< by shard
};

}  // namespace millrace::server
