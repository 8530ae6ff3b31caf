#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "kernels/base/result.h"
#include "worker/program/outcome.h"

namespace millrace::launch {

/// Returns the exit code of a command whose process ended with `exit_code` before its time. It is the process's own
/// where that is one of a worker's, and kJobEnded where a signal ended it.
///
/// exit_code  as ExitReport has it, not 0.
program::ExitCode code_of_child_end(int exit_code);

/// Reads the line that a server or a switch prints where it cannot start (`--json`, "event": "failed"). The parameter
/// for the process goes in front of the sentence.
///
/// Returns  nothing where the line is another one.
std::optional<Error> failed_start(const nlohmann::json& line, const std::string& who);

}  // namespace millrace::launch
