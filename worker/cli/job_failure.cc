#include "worker/cli/job_failure.h"

namespace millrace::cli {

Failure failure_of(const JobError& error, JobStage stage) {
  switch (error.code()) {
    case JobErrorCode::kUnsupported:
    case JobErrorCode::kLimitExceeded: return {ExitCode::kRefused, error.what()};
    case JobErrorCode::kTimeout: return {ExitCode::kJobEnded, error.what()};
    case JobErrorCode::kUnavailable:
    case JobErrorCode::kMalformed:
      return {stage == JobStage::kJoining ? ExitCode::kUnreachable : ExitCode::kJobEnded, error.what()};
    default: return failure_of(Error{static_cast<ErrorCode>(error.code()), error.what()});
  }
}

}  // namespace millrace::cli
