#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/result.h"
#include "monitoring/http/secure/http_security.h"
#include "worker/launch/child_process.h"

namespace millrace::launch {

struct ShardProcessOptions {
  bool spare = false;  ///< waits for the number of a shard that is gone; `shard` and `shards` count for nothing
  uint32_t shard = 0;
  uint32_t shards = 1;
  std::string host = "127.0.0.1";
  uint16_t port = 0;              ///< 0: a free one
  std::string network_namespace;  ///< empty: the caller's
  std::string table;              ///< path of the membership table all shards share
  std::string log;                ///< where its log goes; empty: the caller's stderr
  std::string http;               ///< "127.0.0.1:0"; empty: no HTTP port
  monitoring::HttpSecurityOptions http_security = {};
  uint32_t store_save_seconds = 0;        ///< how often while a job runs; 0: never
  std::string store_dir = {};             ///< where jobs' stores are saved; empty: nowhere
  std::string datagrams = {};             ///< where it replaces switches, "127.0.0.1:0" (shard 0); empty: nowhere
  std::string job_keys = {};              ///< folder of those jobs' keys
  std::string key = {};                   ///< secret key of the cluster; empty: none
  std::string allowed_keys = {};          ///< public keys that may connect, beside it
  std::string policy = {};                ///< rights of those keys; empty: everything
  std::string audit_log = {};             ///< empty: none
  bool insecure = false;                  ///< without keys, on an address that other hosts reach
  double link_rate = 0;                   ///< bits per second to the workers, for codec auto; 0: not known
  std::optional<uint32_t> drain_ms = {};  ///< at its end: time for rounds in flight; empty: the server's own default
  int timeout_ms = 30'000;                ///< to come up
};

/// Returns addresses of shards that are not started yet, each another one. For checks before a process starts.
std::vector<std::string> addresses_to_come(uint32_t shards);

/// Owns a millrace-server that this process started and that ends with it. A spare has no address until
/// await_number().
class ShardProcess {
 public:
  /// Blocks until the shard is ready, or the spare waits.
  ///
  /// Errors  of ErrorPlace::kShard: as ChildProcess; the server's own, with its sentence: a port in use, a table of
  ///         another cluster. unavailable: it ended without a message before it was ready, or its time-out passed.
  static Result<ShardProcess> start(const ShardProcessOptions& options);

  /// Blocks until the spare has the number of a shard and is ready. Errors  as start().
  Status await_number() { return await_event("listening"); }

  const std::string& address() const { return address_; }            ///< "tcp://127.0.0.1:41234"
  uint16_t port() const { return port_; }                            ///< of address()
  const std::string& http_address() const { return http_address_; }  ///< "127.0.0.1:8080"; empty without
  const std::string& datagrams() const { return datagrams_; }        ///< "127.0.0.1:7800"; empty without
  ChildProcess& process() { return process_; }

  /// Sends SIGTERM, and SIGKILL after grace_ms: longer than a shard needs to notify its jobs of their end.
  ExitReport stop(int grace_ms = 15'000) { return process_.terminate(grace_ms); }

 private:
  ShardProcess(ChildProcess process, const ShardProcessOptions& options);
  /// Reads the server's next line, which must be of that event.
  Status await_event(const std::string& event);

  ChildProcess process_;
  std::string who_;    ///< "shard 0", for sentences
  std::string where_;  ///< where its log is, likewise
  int timeout_ms_;
  std::string address_;
  uint16_t port_ = 0;
  std::string http_address_;
  std::string datagrams_;
};

}  // namespace millrace::launch
