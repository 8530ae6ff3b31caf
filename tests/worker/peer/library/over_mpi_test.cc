#include <gtest/gtest.h>
#include <millrace/peer.h>
#include <mpi.h>

#include <cstdint>
#include <optional>
#include <vector>

/// The installed communicator over the MPI of a program that has started it itself; every test on every rank.
namespace millrace::peers::testing {
namespace {

void expect_sum_over_mpi(const MpiOptions& options) {
  constexpr uint64_t kDimension = 50'000;  // bodies that ranks of one machine share, or send as messages of their own
  Group group(Communicator::over_mpi(options));
  Allreduce allreduce(group, {.dimension = kDimension, .algorithm = Algorithm::dense_rabenseifner()});
  const auto own = static_cast<float>(group.rank() + 1);
  const auto size = static_cast<float>(group.size());
  for (int step = 0; step < 3; ++step) {
    std::vector<float> sum(kDimension, 0.0F);
    allreduce.start(std::vector<float>(kDimension, own)).wait().sum.add_to(sum);
    EXPECT_EQ(sum, std::vector<float>(kDimension, size * (size + 1) / 2));
  }
  group.barrier();
  EXPECT_FALSE(group.failure().has_value());
}

TEST(PeersOverMpi, SumsOverTheProgramsOwnMpi) { expect_sum_over_mpi({}); }

TEST(PeersOverMpi, SumsOverACommunicatorOfTheProgramWithoutSharedMemory) {
  expect_sum_over_mpi({.shared_bytes_max = 0, .fortran_handle = MPI_Comm_c2f(MPI_COMM_WORLD)});
}

}  // namespace
}  // namespace millrace::peers::testing
