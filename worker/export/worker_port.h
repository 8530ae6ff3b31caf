#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/result.h"
#include "millrace/millrace.h"
#include "monitoring/http/http_port.h"
#include "monitoring/metrics.h"
#include "worker/export/worker_export.h"

namespace millrace::worker {

/// Returns the switch's numbers of a worker of path switch, for its status and for its end.
nlohmann::json switch_json(const SwitchStats& path);

/// Runs the HTTP port of a worker: /metrics, /healthz, /status and /trace of one session.
///
/// Threads  all members; the port answers on its own threads.
class WorkerPort {
 public:
  struct Identity {
    std::string job;
    uint32_t worker = 0;
    uint32_t workers = 1;
  };

  /// Functions that the port calls for every answer, on its own threads. Empty: the values of the last update(), and
  /// healthy.
  struct Source {
    std::function<Stats()> stats;
    std::function<std::optional<std::string>()> unhealthy;  ///< must not wait (HttpHandlers)
    /// Answers /trace (Session::trace). Its answer to "phases" is a part of the status. Empty: there is no such path.
    std::function<Result<std::string>(std::string_view query)> trace;
  };

  /// address  "127.0.0.1:9100"; port 0 takes a free one.
  /// flag     what gave the address, named in errors.
  /// protection  of the port; nullptr: none.
  /// Errors   as HttpPort::start.
  static Result<std::unique_ptr<WorkerPort>> start(const std::string& address, std::string_view flag, Identity identity,
                                                   Source source = {},
                                                   std::shared_ptr<monitoring::HttpProtection> protection = nullptr);
  WorkerPort(const WorkerPort&) = delete;
  WorkerPort& operator=(const WorkerPort&) = delete;

  uint16_t port() const { return port_->port(); }
  /// Ends the answers that are under way, and the port's threads.
  void stop() { port_->stop(); }

  /// Shows the session's sums as they are now.
  void update(const Stats& stats);

  /// Counts a step that took this time, from its push to its update.
  void step_done(double seconds) { export_.step_done(seconds); }

 private:
  WorkerPort(Identity identity, Source source);
  void ask_source();
  std::string status_json();
  std::string status_of(const Stats& stats) const;

  Identity identity_;
  Source source_;
  monitoring::Metrics metrics_;
  std::mutex asking_;  ///< held over an answer of the source; taken before the next
  std::mutex mutex_;   ///< guards the next two; held while /metrics is written
  WorkerExport export_;
  std::string status_ = "{}";
  std::unique_ptr<monitoring::HttpPort> port_;  ///< last: its threads use the members above
};

}  // namespace millrace::worker
