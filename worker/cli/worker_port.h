#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "kernels/base/result.h"
#include "millrace/millrace.h"
#include "monitoring/catalog.h"
#include "monitoring/http_port.h"
#include "monitoring/metrics.h"

namespace millrace::cli {

/// What a worker of path switch says of it, in its status and at the end.
nlohmann::json switch_json(const SwitchStats& path);

/// A training worker's HTTP port: /metrics, /healthz and /status of one session.
///
/// Threads  update() and step_done() by one thread; the port answers on its own.
class WorkerPort {
 public:
  struct Identity {
    std::string job;
    uint32_t worker = 0;
    uint32_t workers = 1;
  };

  /// address  "127.0.0.1:9100"; port 0 takes a free one.
  /// Errors   as HttpPort::start.
  static Result<std::unique_ptr<WorkerPort>> start(const std::string& address, Identity identity);
  WorkerPort(const WorkerPort&) = delete;
  WorkerPort& operator=(const WorkerPort&) = delete;

  uint16_t port() const { return port_->port(); }

  /// Shows the session's sums as they are now.
  void update(const Stats& stats);

  /// A step took so long, from its push to its update applied.
  void step_done(double seconds) { exported_.step_seconds.with({identity_.job}).observe(seconds); }

 private:
  explicit WorkerPort(Identity identity);
  std::string status_json();
  /// Counts in the metrics what grew since the last call.
  void count(const Stats& stats);
  std::string status_of(const Stats& stats) const;

  Identity identity_;
  monitoring::Metrics metrics_;
  monitoring::WorkerMetrics exported_;
  Stats shown_;       ///< what the counters hold already
  std::mutex mutex_;  ///< guards status_
  std::string status_ = "{}";
  std::unique_ptr<monitoring::HttpPort> port_;  ///< last: its threads use the members above
};

}  // namespace millrace::cli
