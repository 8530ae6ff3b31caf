#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "kernels/base/result.h"
#include "worker/program/outcome.h"

namespace millrace::cli {

/// Returns the exit code of a command whose process ended with `exit_code` before its time: the process's own where it
/// is one of a worker's, and kJobEnded where a signal ended it.
///
/// exit_code  as ExitReport has it, not 0.
ExitCode code_of_child_end(int exit_code);

/// Reads the line that a server or a switch prints where it cannot start (`--json`, "event": "failed").
///
/// who      the process, at the front of the sentence.
/// Returns  nothing where the line says something else.
std::optional<Error> failed_start(const nlohmann::json& line, const std::string& who);

}  // namespace millrace::cli
