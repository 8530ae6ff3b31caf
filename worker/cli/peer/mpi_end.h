#pragma once

#include <string>

#include "worker/cli/outcome.h"
#include "worker/peer/mpi_communicator.h"

namespace millrace::cli {

/// MPI ends only with all ranks: one that has failed says why, leaves the others time to say the same, and ends them.
/// command  "millrace-peer bench".
[[noreturn]] void end_job(peer::MpiJob& job, const std::string& command, const Failure& failure);

/// The level of a name that name_of() gives; `single` for others.
peer::MpiThreads mpi_threads_of(const std::string& name);

}  // namespace millrace::cli
