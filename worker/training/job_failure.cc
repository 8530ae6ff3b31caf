#include "worker/training/job_failure.h"

namespace millrace::training {

using program::ErrorPlace;

namespace {

ErrorPlace place_of(const JobError& error, JobStage stage) {
  if (error.origin() == JobErrorOrigin::kWorker) return ErrorPlace::kOwn;
  return stage == JobStage::kJoining ? ErrorPlace::kJoining : ErrorPlace::kRunning;
}

}  // namespace

program::Failure failure_of(const JobError& error, JobStage stage) {
  return program::failure_of(Error{static_cast<ErrorCode>(error.code()), error.what()}, place_of(error, stage));
}

}  // namespace millrace::training
