#pragma once

#include <span>
#include <vector>

#include "worker/launch/child_process.h"
#include "worker/program/outcome.h"

namespace millrace::bench {

/// Holds a server that ends after the workers.
struct ServerProcess {
  const char* what = "shard";  ///< or "switch"
  size_t number = 0;
  launch::ChildProcess* process = nullptr;
};

/// Waits for all workers of a benchmark; when one fails, or a server, the others are ended too (they wait for it at the
/// barrier).
///
/// reports     [workers] of each, at the end.
/// timeout_ms  for all together.
/// Errors      which process ended, with its own exit code where that says a kind of failure; job_ended: killed, or
///             time is over; interrupted.
program::Outcome wait_for_workers(std::vector<launch::ChildProcess>& workers, std::span<const ServerProcess> servers,
                                  std::vector<launch::ExitReport>& reports, int timeout_ms);

}  // namespace millrace::bench
