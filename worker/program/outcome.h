#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>

#include "kernels/base/result.h"
#include "monitoring/exit_code.h"

namespace millrace::program {

using monitoring::ErrorPlace;
using monitoring::ExitCode;

/// Returns one line an exit code, for --help.
std::string exit_code_table();

/// Says why a command ends: its exit code, and one sentence that says what to do. No sentence where another process of
/// the job prints it.
struct Failure {
  ExitCode code = ExitCode::kInternal;
  std::string message;
};
using Outcome = std::expected<void, Failure>;

/// Returns the failure that an error amounts to. Errors of a file, of data or of a flag are the process's own.
Failure failure_of(const Error& error, ErrorPlace place = ErrorPlace::kOwn);

inline std::unexpected<Failure> fail_with(ExitCode code, std::string message) {
  return std::unexpected(Failure{code, std::move(message)});
}
inline std::unexpected<Failure> fail_with(const Error& error) { return std::unexpected(failure_of(error)); }

}  // namespace millrace::program
