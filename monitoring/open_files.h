#pragma once

#include <cstdint>
#include <optional>

/// The limit of open files of a process.
namespace millrace::monitoring {

/// Raises the limit of open files to this process's hard limit, 2^20 at most. Called at the start of every program that
/// serves, or connects to many. Returns the limit that holds now: a system may refuse to raise it.
uint64_t raise_open_file_limit();

/// Returns how many descriptors this process may have open.
uint64_t open_file_limit();

/// Returns how many descriptors are open. Nothing: the system does not say (/proc is not there).
/// Cost  reads a folder with an entry for each.
std::optional<uint64_t> open_file_count();

/// What to do about a limit that is too low, for the end of a sentence.
inline constexpr const char* kRaiseOpenFiles =
    "raise the limit of open files (ulimit -n in a shell, LimitNOFILE= of a systemd unit, --ulimit nofile= of a "
    "container)";

}  // namespace millrace::monitoring
