#pragma once

#include <atomic>

#include "worker/cli/outcome.h"

namespace millrace::cli {

/// From now on SIGINT and SIGTERM end the process at once, with the exit code of an interruption, one line on stderr and without
/// unfinished files (atomic_file.h). For commands that hold nothing else.
void end_at_interruption();

/// From now on SIGINT and SIGTERM make the returned flag true instead of ending the process; a second one ends it. For commands
/// that hold nothing that outlives them.
const std::atomic<bool>& interruption_flag();

/// From now on SIGINT and SIGTERM are counted, however many come, and none ends the process: for commands with processes, network
/// namespaces or folders of their own, which they take away within a bounded time.
const std::atomic<int>& interruption_count();

/// As shells say it: 130 when the last signal was SIGINT, 143 when it was SIGTERM.
ExitCode last_interruption_code();

}  // namespace millrace::cli
