#pragma once

#include <atomic>

namespace millrace::cli {

/// From now on SIGINT and SIGTERM make the returned flag true instead of ending the process; a second one ends it.
const std::atomic<bool>& interruption_flag();

}  // namespace millrace::cli
