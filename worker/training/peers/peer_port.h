#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/base/result.h"
#include "monitoring/catalog.h"
#include "monitoring/http/http_port.h"
#include "monitoring/metrics.h"
#include "monitoring/trace/span_recorder.h"
#include "worker/export/worker_export.h"
#include "worker/training/peers/train_over_peers.h"

namespace millrace::training {

/// Returns the address of a rank's port: that of rank 0 with `rank` added to its port; port 0 is any for all.
///
/// Errors   invalid_argument: no address, or one whose port would be above 65535.
Result<std::string> http_address_of_rank(const std::string& address, uint32_t rank);

/// Serves the HTTP port of a rank: /metrics, /healthz, /status and /trace. Over servers the metrics of a worker are
/// there as well, of the rank's session.
///
/// Threads  update(), step_done() and update_done() by one thread; the port answers on its own.
class PeerPort {
 public:
  struct Identity {
    std::string job;
    uint32_t rank = 0;
    uint32_t ranks = 1;
    ExchangePath path = ExchangePath::kPeers;
  };

  /// Functions that the port calls for every answer, on its own threads. Empty: the values of the last update(), and
  /// healthy.
  struct Source {
    std::function<PeerProgress()> progress;
    std::function<std::optional<std::string>()> unhealthy;  ///< must not wait (HttpHandlers)
    monitoring::SpanRecorder* spans = nullptr;              ///< of /trace, outlives the port; nullptr: no such path
  };
  struct Listen {
    std::string address;                                               ///< of this rank
    std::string_view flag = "--http";                                  ///< what gave it, named in errors
    std::shared_ptr<monitoring::HttpProtection> protection = nullptr;  ///< nullptr: none
  };

  /// Errors   as HttpPort::start.
  static Result<std::unique_ptr<PeerPort>> start(Listen listen, Identity identity, Source source);
  static Result<std::unique_ptr<PeerPort>> start(Listen listen, Identity identity) {
    return start(std::move(listen), std::move(identity), Source());
  }
  PeerPort(const PeerPort&) = delete;
  PeerPort& operator=(const PeerPort&) = delete;

  uint16_t port() const { return port_->port(); }

  /// Shows the rank's sums as they are now.
  void update(const PeerProgress& progress);
  /// Counts the time of a step, from the start of its computation to its applied sum.
  void step_done(double seconds) { step_seconds_.observe(seconds); }
  /// Counts the time of a step of the session, from its push to its update. REQUIRES: ExchangePath::kServers.
  void update_done(double seconds) { session_->step_done(seconds); }

 private:
  PeerPort(Identity identity, Source source);
  void ask_source();
  /// Counts in the metrics what grew since the last call.
  void count(const PeerProgress& progress);
  std::string status_of(const PeerProgress& progress) const;

  Identity identity_;
  Source source_;
  monitoring::Metrics metrics_;
  monitoring::PeerMetrics exported_;
  monitoring::Histogram& step_seconds_;
  std::optional<worker::WorkerExport> session_;  ///< over servers
  PeerProgress shown_;                           ///< the counters' present values
  std::mutex asking_;                            ///< held over an answer of the source; taken before the next
  std::mutex mutex_;  ///< guards status_; held while counters grow, and while /metrics is written
  std::string status_ = "{}";
  std::unique_ptr<monitoring::HttpPort> port_;  ///< last: its threads use the members above
};

}  // namespace millrace::training
