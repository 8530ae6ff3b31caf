#include "worker/cli/outcome.h"

namespace millrace::cli {

std::string exit_code_table() {
  return "Exit codes:\n"
         "  0  done\n"
         "  1  a fault of Millrace itself\n"
         "  2  usage: a flag is unknown, missing or out of range\n"
         "  3  bad data: a file is malformed, truncated or empty, or a gradient is not finite\n"
         "  4  a server cannot be reached\n"
         "  5  the servers refuse the job or this worker; the sentence says why\n"
         "  6  a file cannot be read or written\n"
         "  7  interrupted (SIGINT, SIGTERM)\n"
         "  8  the job ended early: a shard was lost, too few workers are left, a time ran out\n"
         "  9  status: a job stands still\n"
         "  10 status: a job waits for its start\n"
         "  11 status: the weights of a job's workers disagree\n"
         "  12 status: a job's audit does not balance\n"
         "  130, 143  serve: a second SIGINT, SIGTERM did not wait for rounds in flight\n";
}

Failure failure_of(const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalidArgument: return {ExitCode::kUsage, error.message};
    case ErrorCode::kMalformed:
    case ErrorCode::kNonFinite:
    case ErrorCode::kUnsupported:
    case ErrorCode::kLimitExceeded: return {ExitCode::kBadData, error.message};
    case ErrorCode::kIo: return {ExitCode::kIo, error.message};
    case ErrorCode::kUnavailable:
    case ErrorCode::kTimeout: return {ExitCode::kUnreachable, error.message};
    case ErrorCode::kVersionMismatch:
    case ErrorCode::kJobMismatch:
    case ErrorCode::kIdentityInUse:
    case ErrorCode::kNotAMember:
    case ErrorCode::kShardMapMismatch:
    case ErrorCode::kUnauthenticated: return {ExitCode::kRefused, error.message};
    case ErrorCode::kStale:
    case ErrorCode::kConflict:
    case ErrorCode::kShardLost: return {ExitCode::kJobEnded, error.message};
    case ErrorCode::kInternal: break;
  }
  return {ExitCode::kInternal, error.message};
}

}  // namespace millrace::cli
