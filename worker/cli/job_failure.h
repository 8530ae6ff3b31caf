#pragma once

#include <cstdint>

#include "millrace/millrace.h"
#include "worker/cli/outcome.h"

namespace millrace::cli {

/// How far a session had come when it ended.
enum class JobStage : uint8_t {
  kJoining = 1,  ///< connect() had not returned
  kRunning = 2,
};

/// The failure that the end of a session amounts to. A shard that cannot be reached is that (4) while the job is joined, and
/// afterwards the early end of the job (8), as is a shard that sends what cannot be read.
Failure failure_of(const JobError& error, JobStage stage);

}  // namespace millrace::cli
