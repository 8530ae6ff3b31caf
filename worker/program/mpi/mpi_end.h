#pragma once

#include <string>

#include "worker/peer/transport/mpi_communicator.h"
#include "worker/program/outcome.h"

namespace millrace::program {

/// Ends MPI, which ends only with all ranks. A rank that has failed reports why, leaves the others time to report the
/// same, and ends them.
/// command  "millrace-peer train".
[[noreturn]] void end_job(peer::MpiJob& job, const std::string& command, const Failure& failure);

}  // namespace millrace::program
