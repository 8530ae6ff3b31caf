#pragma once

#include <cstdint>

#include "millrace/millrace.h"
#include "worker/program/outcome.h"

namespace millrace::training {

/// Says how far a session had come when it ended.
enum class JobStage : uint8_t {
  kJoining = 1,  ///< connect() had not returned
  kRunning = 2,
};

/// Returns the failure that the end of a session amounts to. A shard that cannot be reached is exit code 4 while the
/// worker joins, and 8 afterwards. So is a shard that sends unreadable bytes. A damaged file of this worker is 3.
program::Failure failure_of(const JobError& error, JobStage stage);

}  // namespace millrace::training
