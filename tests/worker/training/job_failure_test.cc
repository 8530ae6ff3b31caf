#include <gtest/gtest.h>

#include "worker/training/job_failure.h"

namespace millrace::training {

using program::ExitCode;

namespace {

ExitCode code_of(JobErrorCode code, JobStage stage) {
  const program::Failure failure = failure_of(JobError(code, "why"), stage);
  EXPECT_EQ(failure.message, "why");
  return failure.code;
}

TEST(JobFailure, ShardNotReached_UnreachableWhileJoiningAndLaterEndsTheJob) {
  EXPECT_EQ(code_of(JobErrorCode::kUnavailable, JobStage::kJoining), ExitCode::kUnreachable);
  EXPECT_EQ(code_of(JobErrorCode::kUnavailable, JobStage::kRunning), ExitCode::kJobEnded);
  EXPECT_EQ(code_of(JobErrorCode::kMalformed, JobStage::kJoining), ExitCode::kUnreachable);
  EXPECT_EQ(code_of(JobErrorCode::kMalformed, JobStage::kRunning), ExitCode::kJobEnded);
}

TEST(JobFailure, TheOthersMeanTheSameAtAnyTime) {
  for (const JobStage stage : {JobStage::kJoining, JobStage::kRunning}) {
    EXPECT_EQ(code_of(JobErrorCode::kInvalidArgument, stage), ExitCode::kUsage);
    EXPECT_EQ(code_of(JobErrorCode::kNonFinite, stage), ExitCode::kBadData);
    for (const JobErrorCode refused :
         {JobErrorCode::kUnsupported, JobErrorCode::kLimitExceeded, JobErrorCode::kVersionMismatch,
          JobErrorCode::kJobMismatch, JobErrorCode::kIdentityInUse, JobErrorCode::kNotAMember,
          JobErrorCode::kShardMapMismatch}) {
      EXPECT_EQ(code_of(refused, stage), ExitCode::kRefused);
    }
    EXPECT_EQ(code_of(JobErrorCode::kIo, stage), ExitCode::kIo);
    EXPECT_EQ(code_of(JobErrorCode::kTimeout, stage), ExitCode::kJobEnded);
    EXPECT_EQ(code_of(JobErrorCode::kShardLost, stage), ExitCode::kJobEnded);
    EXPECT_EQ(code_of(JobErrorCode::kInternal, stage), ExitCode::kInternal);
  }
}

// Of the same code: the errors after which a restart script may try again, and those after which it must not.
TEST(JobFailure, AFileOfThisWorkerIsBadDataWhereAServersBytesAreNot) {
  for (const JobStage stage : {JobStage::kJoining, JobStage::kRunning}) {
    for (const JobErrorCode code : {JobErrorCode::kMalformed, JobErrorCode::kUnsupported, JobErrorCode::kLimitExceeded,
                                    JobErrorCode::kNonFinite}) {
      const JobError own(code, "why", JobErrorOrigin::kWorker);
      EXPECT_EQ(failure_of(own, stage).code, ExitCode::kBadData) << job_error_name(code);
    }
    const JobError unreadable(JobErrorCode::kIo, "why", JobErrorOrigin::kWorker);
    EXPECT_EQ(failure_of(unreadable, stage).code, ExitCode::kIo);
  }
}

}  // namespace
}  // namespace millrace::training
