#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>

#include "kernels/base/result.h"

namespace millrace::cli {

/// Exit codes of `millrace`. The numbers are documented (`millrace --help`, worker/cli/DESIGN.md) and never change.
enum class ExitCode : uint8_t {
  kOk = 0,
  kInternal = 1,     ///< a fault of Millrace itself
  kUsage = 2,        ///< a flag is unknown, missing or out of range
  kBadData = 3,      ///< a file is not what it should be: malformed, truncated, empty; a gradient that is not finite
  kUnreachable = 4,  ///< a server cannot be reached
  kRefused = 5,      ///< the servers refuse the job or this worker; the sentence says why
  kIo = 6,           ///< a file cannot be read or written
  kInterrupted = 7,  ///< SIGINT or SIGTERM
  kJobEnded = 8,     ///< the job ended early: a shard was lost, too few workers are left, a time ran out
  kStandsStill = 9,  ///< status: a job does not move
  kNotStarted = 10,  ///< status: a job waits for its start
  kWeightsDisagree = 11,  ///< status: a worker's weights are not those of the others
  kDoesNotBalance = 12,   ///< status: a job's audit finds something missing, or too much
  kEndedBySigint = 130,   ///< serve: a second signal, SIGINT, did not wait for rounds in flight
  kEndedBySigterm = 143,  ///< the same, SIGTERM
};

/// One line an exit code, for --help.
std::string exit_code_table();

/// Why a command ends: its exit code, and one sentence that says what to do; none where another process of the job says it.
struct Failure {
  ExitCode code = ExitCode::kInternal;
  std::string message;
};
using Outcome = std::expected<void, Failure>;

/// The failure that an error of a file, of data or of a flag amounts to.
Failure failure_of(const Error& error);

inline std::unexpected<Failure> fail_with(ExitCode code, std::string message) {
  return std::unexpected(Failure{code, std::move(message)});
}
inline std::unexpected<Failure> fail_with(const Error& error) { return std::unexpected(failure_of(error)); }

}  // namespace millrace::cli
