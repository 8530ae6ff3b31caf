#pragma once

namespace millrace::peer {

/// Returns whether every call of MPI that finds nothing to do yields the core. Open MPI does so where its launcher
/// starts more ranks than cores (mpi_yield_when_idle). False where an MPI does not report it. MPI must have been
/// started.
bool mpi_yields();

}  // namespace millrace::peer
