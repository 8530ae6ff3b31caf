#pragma once

#include <functional>
#include <memory>
#include <string>

#include "kernels/base/result.h"
#include "monitoring/service_notifier.h"
#include "server/process/options.h"

namespace millrace::server {

/// The wait of a spare for a number.
struct SpareWait {
  std::function<void()> on_waiting = [] {};              ///< called once the spare has read the table and waits
  std::function<bool()> is_over = [] { return false; };  ///< whether it is asked to end
  /// Returns whether it is asked to read its files again, since the last call.
  std::function<bool()> takes_reload = [] { return false; };
};

/// Runs the shard process: sockets, clock, threads, table and signals around one ShardCore. One loop thread owns the
/// core and the sockets. Helpers of the TaskPool compute. The HTTP port has threads of its own and asks the loop for
/// its status.
class ShardProcess {
 public:
  /// Opens the table, binds the port and registers this start of the shard. A spare waits until it has a number;
  /// returns nullptr where it was asked to end before.
  /// Errors  io: table or port; shard_map_mismatch: the table belongs to another number of shards; invalid_argument.
  ///
  /// manager     learns that a spare waits, that run() serves, reloads and drains, and how ready the shard is.
  static Result<std::unique_ptr<ShardProcess>> start(const Options& options, const SpareWait& wait = {},
                                                     monitoring::ServiceNotifier manager = {});
  ~ShardProcess();
  ShardProcess(const ShardProcess&) = delete;
  ShardProcess& operator=(const ShardProcess&) = delete;

  /// Returns the address for other processes: "tcp://host:port".
  const std::string& address() const;
  /// Returns "host:port"; empty without --http.
  const std::string& http_address() const;
  /// Returns "host:port" of its aggregator of datagrams; empty without --datagrams.
  std::string datagrams_address() const;
  uint64_t incarnation() const;
  uint32_t shard() const;
  uint32_t shards() const;

  /// Serves until request_stop() and the end of draining. Error: the reason why it stopped by itself.
  Status run();

  /// Begins an orderly shutdown. Safe from signal handlers and any thread; may be called more than once.
  void request_stop() noexcept;

  /// Saves the stores of all jobs soon. As request_stop().
  void request_save() noexcept;

  /// Reads the allowed keys and the policy again and opens the audit log again. As request_stop().
  void request_reload() noexcept;

 private:
  class Loop;
  explicit ShardProcess(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace millrace::server
