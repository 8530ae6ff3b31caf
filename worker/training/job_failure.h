#pragma once

#include <cstdint>

#include "millrace/millrace.h"
#include "worker/program/outcome.h"

namespace millrace::cli {

/// How far a session had come when it ended.
enum class JobStage : uint8_t {
  kJoining = 1,  ///< connect() had not returned
  kRunning = 2,
};

/// Returns the failure that the end of a session amounts to. A shard that cannot be reached is exit code 4 while the
/// worker joins, and 8 afterwards, as is a shard that sends what cannot be read. A file of this worker that is damaged
/// is 3.
Failure failure_of(const JobError& error, JobStage stage);

}  // namespace millrace::cli
