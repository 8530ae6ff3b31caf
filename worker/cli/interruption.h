#pragma once

#include <atomic>

namespace millrace::cli {

/// From now on SIGINT and SIGTERM end the process at once, with the exit code of an interruption, one line on stderr and without
/// unfinished files (atomic_file.h). For commands that hold nothing else.
void end_at_interruption();

/// From now on SIGINT and SIGTERM make the returned flag true instead of ending the process; a second one ends it.
const std::atomic<bool>& interruption_flag();

}  // namespace millrace::cli
