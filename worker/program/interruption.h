#pragma once

#include <atomic>

#include "kernels/base/clock.h"
#include "worker/program/outcome.h"

namespace millrace::program {

/// Time within which a second signal of the same number is the same request. `timeout` and service managers signal a
/// process and then, with its group, the same process again.
inline constexpr TimeNs kSameRequestNs = kNsPerS;

/// Tells requests to end from the signals that bring them.
///
/// Threads  any, and signal handlers.
class InterruptionRequests {
 public:
  /// Returns whether the signal is a new request; false: it belongs to the request before.
  bool is_new(int signal, TimeNs now);
  /// Returns the signal of the last request; 0: none.
  int last_signal() const { return signal_.load(); }
  int count() const { return count_.load(); }

 private:
  std::atomic<int> signal_{0};
  std::atomic<TimeNs> since_{0};
  std::atomic<int> count_{0};
};

/// Makes SIGINT and SIGTERM end the process at once. So does SIGHUP, here and below, unless it is ignored (nohup) or
/// taken by reload_request_flag(). The process ends with the exit code of an interruption, one line on stderr
/// and without unfinished files (atomic_file.h). For commands that hold nothing else.
void end_at_interruption();

/// Makes SIGINT and SIGTERM set the returned flag from now on instead of ending the process; a second request ends it.
/// For commands that hold nothing that outlives them.
const std::atomic<bool>& interruption_flag();

/// Counts SIGINT and SIGTERM from now on, request by request; none ends the process. For commands with processes,
/// network namespaces or folders of their own, which they remove within a bounded time.
const InterruptionRequests& interruption_requests();

/// Makes SIGUSR2, which asks servers to save their stores, set the returned flag from now on instead of ending the
/// process. For commands with servers, which pass it on and take the flag back.
std::atomic<bool>& save_request_flag();

/// The same for SIGHUP, which asks servers to read their keys and rights again.
std::atomic<bool>& reload_request_flag();

/// Returns the code as shells have it: 130 when the last request was SIGINT, 143 when it was SIGTERM.
ExitCode last_interruption_code();

}  // namespace millrace::program
