#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "kernels/base/clock.h"
#include "monitoring/program.h"
#include "monitoring/service_notifier.h"
#include "monitoring/status/shard_status.h"

namespace millrace::server {

/// Returns why a shard with this status is not ready, as one sentence; nothing where it is ready. A shard is ready when
/// it keeps its number, it is not shutting down, it reaches the membership table, and no job is in recovery.
std::optional<std::string> unready_reason(const StatusReport& report);

/// Returns whether the shard's calls to the membership table succeed. Another shard's write lock makes single calls
/// fail: failures count once they have lasted a second.
bool reaches_table(const StatusReport& report);

/// Tells supervisors how the shard does: the service manager by datagrams, probes by the answer of /readyz.
///
/// Order    as_spare() if at all, serving(), then update() and keep_alive() in each pass, draining().
/// Threads  unready(): any. Everything else: the loop's.
class Supervision {
 public:
  /// program   reports on stderr that the manager does not take READY=1.
  Supervision(monitoring::ServiceNotifier manager, monitoring::ServerProgram program)
      : manager_(std::move(manager)), program_(program) {}

  void as_spare();
  void serving();
  void reloading(TimeNs now) { manager_.reloading(now); }
  void reloaded();
  void draining();
  void update(const StatusReport& report);
  void keep_alive(TimeNs now) { manager_.keep_alive(now); }
  TimeNs next_keep_alive() const { return manager_.next_keep_alive(); }

  /// Returns the reason of a 503 at /readyz: of the last update().
  std::optional<std::string> unready() const;

 private:
  void set(std::optional<std::string> reason);
  void say_ready();

  monitoring::ServiceNotifier manager_;
  monitoring::ServerProgram program_;
  mutable std::mutex mutex_;
  std::optional<std::string> unready_ = "starting";
};

}  // namespace millrace::server
