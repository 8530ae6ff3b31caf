#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/base/result.h"
#include "monitoring/http/http_protection.h"
#include "protocol/table/membership_table.h"

namespace millrace::server {

/// Measures the paths from the shards of the table to this process. It measures nothing before a reader asks, and one
/// path at a time.
///
/// Threads  any.
class ShardPaths {
 public:
  /// For the connection to the port for workers: a lost packet of it is sent again after a second.
  static constexpr int kConnectMs = 3'000;
  /// For each transfer.
  static constexpr int kTimeoutMs = 700;
  static constexpr int kTransfers = 2;

  struct Sources {
    /// Opens a table for this call alone.
    std::function<Result<std::unique_ptr<protocol::MembershipTable>>()> open_table;
    std::function<std::shared_ptr<const monitoring::HttpCaller>()> caller;  ///< of other processes' ports
    std::string own_address;  ///< this process's address for workers, as the table has it
  };

  explicit ShardPaths(Sources sources) : sources_(std::move(sources)) {}

  /// Connects to a shard's port for workers and fetches its /probe. Returns one JSON object:
  /// - shard: its number.
  /// - round_trip_ms: of the connection, where the kernel has measured it; or connect_problem, a sentence.
  /// - bytes, best_ms: of the fastest of two transfers; or late_ms, the time after which none had arrived; or
  ///   transfer_problem, a sentence.
  ///
  /// query   "shard=N".
  /// Cost    2 MiB from that shard; at most kConnectMs, three times kTimeoutMs, and the lookup of a name.
  /// Errors  invalid_argument: another query, or no other shard has that number. unavailable: a measurement is under
  ///         way; no process has that number. Those of the table.
  Result<std::string> json(std::string_view query);

 private:
  const Sources sources_;
  std::mutex measuring_;
};

}  // namespace millrace::server
