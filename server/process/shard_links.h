#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "protocol/transport/transport.h"
#include "server/base/actions.h"
#include "server/process/process_log.h"

namespace millrace::server {

/// Holds the connections that this process opens to the other shards, at the core's request. It opens one again
/// whenever one broke, could not be made, or did not take its ShardHello.
///
/// Memory   std::bad_alloc may leave any method. A later watch() then makes the requested connections.
/// Threads  one at a time (the loop's).
class ShardLinks {
 public:
  /// From a failure to the next try.
  static constexpr TimeNs kAgainAfter = 200 * kNsPerMs;

  /// All outlive this; the poller waits for the connections.
  ShardLinks(uint32_t shard_count, protocol::TransportContext& context, protocol::Poller& poller, ProcessLog& log);

  /// Opens the connection, or moves it to another address. REQUIRES: a number below shard_count.
  void connect(ConnectShard to, TimeNs now);
  /// Sends a message. False: it was not sent; a message other than a ShardHello is lost then.
  bool send(const SendToShard& send);
  /// Returns a message from the connection to `shard`, without waiting; empty where there is none.
  std::optional<protocol::Received> receive(uint32_t shard);
  /// Makes the connections that are due. Returns a shard whose connection is new and has not carried a ShardHello;
  /// nothing when no more is due. Call it until then.
  std::optional<uint32_t> watch(TimeNs now);
  /// Returns when watch() has something to do; nothing where it waits for events of connections only.
  std::optional<TimeNs> deadline() const;

  uint32_t shard_count() const { return static_cast<uint32_t>(links_.size()); }

 private:
  struct Link {
    std::string address;  ///< empty: not asked for
    std::unique_ptr<protocol::Connection> connection;
    std::optional<TimeNs> make_at;
    bool hello_lost = false;  ///< without it the other shard believes nothing: a new connection takes another one
    bool said = false;        ///< its last failure is in the log
  };
  bool make(Link& link, TimeNs now);

  protocol::TransportContext& context_;
  protocol::Poller& poller_;
  ProcessLog& log_;
  std::vector<Link> links_;  ///< by shard number
};

}  // namespace millrace::server
