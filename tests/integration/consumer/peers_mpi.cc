// Links the peers over MPI without a header of MPI. The test builds it; peer_mpi_test.py runs such a program.

#include <millrace/peer.h>

int main() {
  const millrace::peers::Group group(millrace::peers::Communicator::over_mpi());
  return group.rank() < group.size() ? 0 : 1;
}
