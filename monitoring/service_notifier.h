#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "kernels/base/clock.h"
#include "kernels/base/descriptor.h"
#include "kernels/base/result.h"

namespace millrace::monitoring {

/// Tells the state of this process to the service manager that started it, by the datagrams of sd_notify(3). A
/// default-constructed one has no manager and sends nothing.
///
/// Bytes     one datagram a call, lines "NAME=VALUE" with '\n' between them.
///           `ready`: READY=1, STATUS=TEXT. `report`: STATUS=TEXT. `reloading`: RELOADING=1, MONOTONIC_USEC=NUMBER.
///           `stopping`: STOPPING=1, STATUS=TEXT. `keep_alive`: WATCHDOG=1.
/// Limits    a text is cut to 200 bytes, and a control character in it becomes '?'.
/// Failures  a datagram that the manager does not take within 100 ms is dropped; only ready() reports that.
/// Threads   one at a time.
/// Source    sd_notify(3), sd_watchdog_enabled(3).
class ServiceNotifier {
 public:
  /// Holds the environment variables of the protocol; null: not set.
  struct Environment {
    const char* notify_socket = nullptr;
    const char* watchdog_usec = nullptr;
    const char* watchdog_pid = nullptr;
  };

  ServiceNotifier() = default;

  /// Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID of this process.
  static Result<ServiceNotifier> from_environment();
  /// Errors  invalid_argument: the socket is neither a path nor '@' with a name, or is too long, or the interval is no
  ///         number. io: the socket cannot be reached.
  static Result<ServiceNotifier> from(const Environment& environment, int64_t own_pid);

  bool is_present() const { return static_cast<bool>(socket_); }

  /// Says that the process serves. Also ends a reload. Error: io, the manager did not take it.
  Status ready(std::string_view status);
  void report(std::string_view status);
  /// Says that a reload begins at `now`, of the monotonic clock; ready() ends it.
  void reloading(TimeNs now);
  void stopping(std::string_view status);

  /// Sends a sign of life if half of the watchdog's interval has passed since the last one.
  void keep_alive(TimeNs now);
  /// Returns the time of the next sign of life; the largest time where the manager wants none.
  TimeNs next_keep_alive() const { return next_keep_alive_; }

 private:
  bool send(const std::string& datagram);

  Descriptor socket_;
  TimeNs keep_alive_every_ = 0;  ///< 0: the manager wants no sign of life
  TimeNs next_keep_alive_ = std::numeric_limits<TimeNs>::max();
};

}  // namespace millrace::monitoring
