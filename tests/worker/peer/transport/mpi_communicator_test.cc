#include "worker/peer/transport/mpi_communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/base/random.h"
#include "tests/worker/peer/transport/communicator_cases.h"

/// The communicator over MPI; started by mpirun, every test on every rank. Needs three ranks or more.
namespace millrace::peer::testing {
namespace {

MpiJob* job = nullptr;

/// Of the memory that ranks share: as much as they have by themselves, none, and too little for the longest body.
constexpr uint64_t kSharedBytes[] = {MpiOptions{}.shared_bytes_max, 0, SharedSegment::kPieceBytes};

TEST(MpiCommunicatorTest, MessagesOfAllLengthsArriveOnceAndWhole) {
  for (const uint64_t shared_bytes : kSharedBytes) {
    auto communicator = MpiCommunicator::over_world({.shared_bytes_max = shared_bytes});
    ASSERT_TRUE(communicator.has_value());
    constexpr uint32_t kRounds = 20;
    exchange_all_lengths(**communicator, kRounds);
    const Traffic traffic = (*communicator)->traffic();
    EXPECT_EQ(traffic.messages_sent, messages_of_exchange(kRounds) * (job->size() - 1));
    EXPECT_EQ(traffic.bytes_sent, traffic.bytes_received);
    const SharedBodiesCounters shared = (*communicator)->counters();
    EXPECT_EQ(shared.copied > 0, shared_bytes > 0);
    if (shared_bytes != kSharedBytes[0]) {
      EXPECT_EQ(shared.full > 0, shared_bytes > 0) << "a body of 3 MB has no room in 2 MiB";
    }
  }
}

TEST(MpiCommunicatorTest, WhereOneRankSharesNoMemoryNoneDoes) {
  auto communicator = MpiCommunicator::over_world({.shared_bytes_max = job->rank() == 1 ? 0 : kSharedBytes[0]});
  ASSERT_TRUE(communicator.has_value());
  exchange_all_lengths(**communicator, 2);
  EXPECT_EQ((*communicator)->counters().copied, 0u);
}

TEST(MpiCommunicatorTest, ABodyThatGoesAroundIsWrittenOnce) {
  auto communicator = MpiCommunicator::over_world();
  ASSERT_TRUE(communicator.has_value());
  const uint32_t rank = job->rank(), next = (rank + 1) % job->size(), previous = (rank + job->size() - 1) % job->size();
  constexpr size_t kBytes = 1'000'000;
  PeerMessage own = case_message_of(rank, 0, kBytes);
  WritableBody body = (*communicator)->take_body(kBytes);
  std::ranges::copy(own.body.bytes, body.bytes.begin());
  own.body = std::move(body).share();
  ASSERT_TRUE((*communicator)->send(next, std::move(own)).has_value());
  for (uint32_t step = 1; step < job->size(); ++step) {
    ReceivedMessage received = next_message(**communicator);
    ASSERT_EQ(received.from, previous);
    const uint32_t origin = (rank + job->size() - step) % job->size();
    ASSERT_EQ(received.message.collective, origin);
    EXPECT_TRUE(std::ranges::equal(received.message.body.bytes, case_body_of(origin, 0, kBytes)));
    if (step + 1 == job->size()) break;
    ASSERT_TRUE((*communicator)->send(next, std::move(received.message)).has_value());
  }
  EXPECT_EQ((*communicator)->counters().copied, 0u);
  EXPECT_EQ((*communicator)->counters().in_place, job->size() - 1);
}

TEST(MpiCommunicatorTest, BodiesAreReadAfterTheCommunicatorOfTheirSenderHasEnded) {
  auto communicator = MpiCommunicator::over_world();
  ASSERT_TRUE(communicator.has_value());
  constexpr size_t kBytes = 500'000;
  for (uint32_t to = 0; to < job->size(); ++to) {
    if (to == job->rank()) continue;
    ASSERT_TRUE((*communicator)->send(to, case_message_of(job->rank(), 3, kBytes)).has_value());
  }
  std::vector<ReceivedMessage> received;
  for (uint32_t left = job->size() - 1; left > 0; --left) received.push_back(next_message(**communicator));
  communicator->reset();
  for (const ReceivedMessage& one : received) {
    EXPECT_TRUE(std::ranges::equal(one.message.body.bytes, case_body_of(one.from, 3, kBytes)));
  }
}

TEST(MpiCommunicatorTest, TwoCommunicatorsDoNotHearEachOther) {
  auto first = MpiCommunicator::over_world();
  auto second = MpiCommunicator::over_world();
  ASSERT_TRUE(first.has_value() && second.has_value());
  exchange_all_lengths(**second, 1);
  exchange_all_lengths(**first, 1);
}

TEST(MpiCommunicatorTest, ABodyThatMpiCannotCarryIsRefused) {
  auto communicator = MpiCommunicator::over_world();
  ASSERT_TRUE(communicator.has_value());
  PeerMessage message;
  const uint8_t byte = 0;
  message.body.bytes = {&byte, size_t{1} << 31};  // refused before it is looked at
  const Status sent = (*communicator)->send((job->rank() + 1) % job->size(), std::move(message));
  ASSERT_FALSE(sent.has_value());
  EXPECT_EQ(sent.error().code, ErrorCode::kLimitExceeded);
}

TEST(MpiCommunicatorTest, AnErrorIsReportedOnceAndWaitsSleepAfterIt) {
  auto communicator = MpiCommunicator::over_world();
  ASSERT_TRUE(communicator.has_value());
  send_malformed_message(**communicator, (job->rank() + 1) % job->size());
  expect_one_error(**communicator);
  EXPECT_TRUE((*communicator)->culprit().has_value());
}

TEST(MpiCommunicatorTest, SaysWhetherMpiYields) {
  // Where Open MPI was configured to yield. Other MPIs have no such setting.
  const char* told = std::getenv("OMPI_MCA_mpi_yield_when_idle");
  if (told == nullptr) GTEST_SKIP() << "not started with --mca mpi_yield_when_idle";
  auto communicator = MpiCommunicator::over_world();
  ASSERT_TRUE(communicator.has_value());
  EXPECT_EQ((*communicator)->yields(), std::string_view(told) == "1");
}

TEST(MpiCommunicatorTest, WakeEndsAWaitOfAnotherThread) {
  auto communicator = MpiCommunicator::over_world();
  ASSERT_TRUE(communicator.has_value());
  const TimeNs begin = monotonic_now_ns();
  std::jthread waiting([&] { (*communicator)->wait(60 * kNsPerS, WaitAs::kIdle); });
  (*communicator)->wake();
  waiting.join();
  EXPECT_LT(monotonic_now_ns() - begin, 30 * kNsPerS);
}

TEST(MpiCommunicatorTest, AnUnreceivedSendDoesNotDelayShutdown) {
  auto communicator = MpiCommunicator::over_world({.shared_bytes_max = 0});
  ASSERT_TRUE(communicator.has_value());
  const TimeNs begin = monotonic_now_ns();
  if (job->rank() == 0) {
    // More than any transport takes in advance; rank 1 never asks for it, and is in MPI all the same.
    ASSERT_TRUE((*communicator)->send(1, case_message_of(0, 1, size_t{16} << 20)).has_value());
    communicator->reset();
    EXPECT_LT(monotonic_now_ns() - begin, 20 * kNsPerS);
  }
}

}  // namespace
}  // namespace millrace::peer::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  auto begun = millrace::peer::MpiJob::begin(millrace::peer::MpiThreads::kSerialized);
  if (!begun) return 1;
  millrace::peer::testing::job = begun->get();
  return RUN_ALL_TESTS();
}
