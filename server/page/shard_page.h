#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/log_line.h"
#include "monitoring/catalog.h"
#include "monitoring/http/http_port.h"
#include "monitoring/http/secure/http_security.h"
#include "monitoring/metrics.h"
#include "monitoring/status/shard_status.h"
#include "protocol/table/open_table.h"
#include "server/base/reader_rights.h"
#include "server/page/cluster_watch.h"
#include "server/page/job_history.h"
#include "server/page/shard_paths.h"

namespace millrace::server {

/// Serves the page of a shard or spare, which shows the cluster and its jobs: /cluster and /history beside /status.
/// /probe answers 1 MiB, by which `millrace doctor` and other shards measure a path. /path measures the one from
/// another shard. POST /jobs/NAME/end ends a job.
class ShardPage {
 public:
  /// metrics   of the shard; gets the ends of the certificates for other ports and for the table.
  /// security  of the port, and of the ports that it asks.
  /// workers   "HOST:PORT" of workers' HTTP ports (--page-workers).
  ShardPage(monitoring::Metrics& metrics, protocol::TableFlags table, monitoring::HttpSecurityOptions security,
            std::vector<std::string> workers)
      : certificate_end_time_(monitoring::ShardMetrics(metrics).certificate_end_time),
        table_(std::move(table)),
        security_(std::move(security)),
        workers_(std::move(workers)) {}

  /// Adds the shard's report of this second. Threads  the loop's.
  void add(const StatusReport& report, TimeNs now) { history_.add(report, now); }

  /// Opens the HTTP port with the page's paths added to `handlers`. `rights` judges named tokens.
  ///
  /// REQUIRES  the port ends before this object.
  /// Errors    as HttpPort::start(), open_http_protection() and open_http_caller().
  Result<std::unique_ptr<monitoring::HttpPort>> open(const std::string& http, const std::string& own_address,
                                                     monitoring::HttpHandlers handlers, ReaderRights rights);

  /// Reads the files of TLS and token again, of this port and for others'. Where that fails both stay as they were.
  /// Threads  the loop's.
  ///
  /// Returns  the line to log; nothing: there are no such files.
  std::optional<LogLine> reload();

 private:
  std::shared_ptr<const monitoring::HttpCaller> caller_now() const;

  void update_certificate_ends() const;
  std::string cluster_json();
  monitoring::HttpAnswer answer_reader(const monitoring::HttpRequest& request);
  monitoring::HttpAnswer answer_end(const monitoring::HttpRequest& request);
  monitoring::HttpAnswer end(const std::string& job, const std::string& reason, const monitoring::HttpRequest& request);

  const monitoring::GaugeFamily certificate_end_time_;
  const protocol::TableFlags table_;
  const monitoring::HttpSecurityOptions security_;
  const std::vector<std::string> workers_;
  std::shared_ptr<monitoring::HttpProtection> protection_;
  mutable std::mutex caller_mutex_;
  std::shared_ptr<const monitoring::HttpCaller> caller_;  ///< of other processes' ports
  ReaderRights rights_;
  std::function<std::string()> own_status_;
  std::mutex ending_;  ///< held while a job is ended, so that a slow table takes one of the port's threads alone
  JobHistory history_;
  std::unique_ptr<ShardPaths> paths_;
  std::unique_ptr<ClusterWatch> owned_watch_;
  std::atomic<ClusterWatch*> watch_ = nullptr;  ///< once the port's number is known
};

}  // namespace millrace::server
