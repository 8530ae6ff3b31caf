// Runs peers.cc with ranks that are processes of an MPI job. The library starts MPI, and ends it at the end.

#include <cstdio>
#include <exception>

#include "worker/examples/peers.h"

int main() {
  try {
    train(millrace::peers::Communicator::over_mpi());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
