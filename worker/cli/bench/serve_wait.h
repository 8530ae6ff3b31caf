#pragma once

#include <span>
#include <vector>

#include "worker/cli/outcome.h"
#include "worker/cli/process/child_process.h"

namespace millrace::cli {

/// Waits for all workers of a benchmark; when one fails, or a server, the others are ended too (they wait for it at the barrier).
///
/// servers     shards and switches, that end after their workers.
/// reports     [workers] of each, at the end.
/// timeout_ms  for all together.
/// Errors      which process ended, with its own exit code where that says a kind of failure; job_ended: killed, or time is over;
///             interrupted.
Outcome wait_for_workers(std::vector<ChildProcess>& workers, std::span<ChildProcess* const> servers,
                         std::vector<ExitReport>& reports, int timeout_ms);

}  // namespace millrace::cli
