#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>

#include "worker/peer/transport/shared_bodies.h"

namespace millrace::peer {

/// The memory that the ranks of this machine share; null where there is none: a rank alone on its machine, or one rank
/// of it that cannot, or was asked not to. Then bodies are sent. Collective over `comm`, whose ranks have the numbers
/// of the segments.
///
/// bytes   of each rank's segment, at most; 0: none. Another on every rank is allowed.
std::unique_ptr<SharedBodies> share_bodies(MPI_Comm comm, uint64_t bytes);

}  // namespace millrace::peer
