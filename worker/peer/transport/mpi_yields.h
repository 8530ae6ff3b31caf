#pragma once

namespace millrace::peer {

/// Whether every call of MPI that finds nothing to do yields the core, as Open MPI is told to where there are more
/// ranks than cores (mpi_yield_when_idle). False where an MPI does not say. MPI must have been started.
bool mpi_yields();

}  // namespace millrace::peer
