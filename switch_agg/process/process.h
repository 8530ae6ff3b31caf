#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/base/result.h"
#include "monitoring/service_notifier.h"
#include "switch_agg/process/options.h"

namespace millrace::switch_agg {

/// Runs the switch's process: a thread a lane, the HTTP port's threads, and the one that calls run() and waits for
/// signals.
class SwitchProcess {
 public:
  /// Reads the jobs, opens the ports, reserves the slots.
  /// Errors  invalid_argument, limit_exceeded: the jobs, memory; unsupported: no DPDK; io: files, ports, devices.
  static Result<std::unique_ptr<SwitchProcess>> start(const RunOptions& options);
  ~SwitchProcess();
  SwitchProcess(const SwitchProcess&) = delete;
  SwitchProcess& operator=(const SwitchProcess&) = delete;

  /// Returns one address a lane, as workers reach it.
  std::vector<std::string> addresses() const;
  /// Returns "host:port"; empty without --http.
  std::string http_address() const;

  /// Serves until request_stop(). The manager learns that it serves, reloads and ends. It gets no sign of life while a
  /// lane's loop stands.
  void run(monitoring::ServiceNotifier& manager);

  /// Ends run(). Safe from signal handlers and any thread; may be called more than once.
  void request_stop() noexcept;
  /// Reads the file of jobs again, soon. A faulty file changes nothing, and its fault is printed on stderr.
  void request_reload() noexcept;

 private:
  class Impl;
  explicit SwitchProcess(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::switch_agg
