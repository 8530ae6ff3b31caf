#pragma once

#include <cstdint>

#include "kernels/base/result.h"

/// The exit codes of all programs, and the one table that says which error ends a program with which code.
namespace millrace::monitoring {

/// Lists the exit codes. The numbers are documented (each program's --help, worker/cli/DESIGN.md) and never change.
enum class ExitCode : uint8_t {
  kOk = 0,
  kInternal = 1,  ///< a fault of Millrace itself
  kUsage = 2,     ///< a flag is unknown, missing or out of range.
  /// A file is malformed, truncated or empty, or a gradient is not finite.
  kBadData = 3,
  kUnreachable = 4,       ///< a server cannot be reached
  kRefused = 5,           ///< the servers refuse the job or this worker; the sentence says why
  kIo = 6,                ///< a file cannot be read or written
  kInterrupted = 7,       ///< SIGINT or SIGTERM
  kJobEnded = 8,          ///< the job ended early: a shard was lost, too few workers are left, a time ran out
  kStalled = 9,           ///< status: a job does not move
  kNotStarted = 10,       ///< status: a job waits for its start
  kWeightsDisagree = 11,  ///< status: a worker's weights are not those of the others
  kDoesNotBalance = 12,   ///< status: a job's audit finds something missing, or too much
  kUnfit = 13,            ///< doctor: a check found a problem
  kEndedBySigint = 130,   ///< serve: a second signal, SIGINT, did not wait for rounds in flight
  kEndedBySigterm = 143,  ///< the same, SIGTERM
};

/// Says where the cause of an error is. The error's code alone does not: `malformed` is a damaged file, or a message of
/// a server that cannot be read.
enum class ErrorPlace : uint8_t {
  kOwn = 0,      ///< flags, files and data of this process (millrace, millrace-peer)
  kJoining = 1,  ///< the servers, before this worker is in the job
  kRunning = 2,  ///< the servers and the other workers of a job that runs
  kRanks = 3,    ///< another rank of millrace-peer
  kShard = 4,    ///< anything, in millrace-server
  kSwitch = 5,   ///< anything, in millrace-switch
};
inline constexpr uint8_t kErrorPlaces = 6;

/// Returns the exit code for an error of that code at that place; kInternal for a number that is no ErrorCode.
ExitCode exit_code_of(ErrorCode code, ErrorPlace place);

}  // namespace millrace::monitoring
