#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>

#include "worker/peer/transport/shared_bodies.h"

namespace millrace::peer {

/// Returns the memory that the ranks of this machine share. Null where there is none, and bodies are sent. That is so
/// for a rank alone on its machine, or where one rank of it cannot share, or has settings that forbid it. Collective
/// over `comm`, whose ranks have the numbers of the segments.
///
/// bytes   of each rank's segment, at most; 0: none. Another on every rank is allowed.
std::unique_ptr<SharedBodies> share_bodies(MPI_Comm comm, uint64_t bytes);

}  // namespace millrace::peer
