#include "worker/peer/transport/mpi_communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <set>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/base/random.h"

/// The communicator over MPI; started by mpirun, every test on every rank. Needs three ranks or more.
namespace millrace::peer::testing {
namespace {

MpiJob* job = nullptr;

ByteBuffer mpi_communicator_body_of(uint32_t from, uint32_t tag, size_t bytes) {
  ByteBuffer body(bytes);
  for (size_t i = 0; i < bytes; ++i) body[i] = static_cast<uint8_t>(from * 31 + tag * 7 + i);
  return body;
}

PeerMessage message_of(uint32_t from, uint32_t tag, size_t bytes) {
  PeerMessage message;
  message.form = BodyForm::kNumbers;
  message.collective = from;
  message.tag = tag;
  message.signature = 0x1122334455667788;
  message.body = SharedBytes::from(mpi_communicator_body_of(from, tag, bytes));
  return message;
}

/// Around where a body gets a message of its own, and MPI's own borders.
constexpr size_t kLengths[] = {0, 1, 7, 4064, 8191, 8192, 8193, 65'536, 3'000'001};

/// Every rank sends all lengths to every other, again and again; each message has a tag of its own.
void exchange_mpi_communicator(Communicator& communicator, uint32_t rounds) {
  const uint32_t tags = rounds * static_cast<uint32_t>(std::size(kLengths));
  const auto length_of = [](uint32_t tag) { return kLengths[tag % std::size(kLengths)]; };
  for (uint32_t tag = 0; tag < tags; ++tag) {
    for (uint32_t to = 0; to < communicator.size(); ++to) {
      if (to == communicator.rank()) continue;
      ASSERT_TRUE(communicator.send(to, message_of(communicator.rank(), tag, length_of(tag))).has_value());
    }
  }
  std::vector<std::set<uint32_t>> seen(communicator.size());
  for (uint32_t left = (communicator.size() - 1) * tags; left > 0;) {
    auto received = communicator.receive();
    ASSERT_TRUE(received.has_value()) << received.error().message;
    if (!*received) {
      communicator.wait(kNsPerS, WaitAs::kIdle);
      continue;
    }
    const auto& [from, message] = **received;
    ASSERT_LT(message.tag, tags);
    EXPECT_TRUE(seen[from].insert(message.tag).second);
    EXPECT_EQ(message.collective, from);
    EXPECT_EQ(message.signature, 0x1122334455667788u);
    const ByteBuffer expected = mpi_communicator_body_of(from, message.tag, length_of(message.tag));
    EXPECT_TRUE(std::ranges::equal(message.body.bytes, expected)) << "tag " << message.tag;
    EXPECT_EQ(std::bit_cast<uintptr_t>(message.body.bytes.data()) % 8, 0u);
    --left;
  }
}

/// Of the memory that ranks share: as much as they have by themselves, none, and too little for the longest body.
constexpr uint64_t kSharedBytes[] = {MpiOptions{}.shared_bytes_max, 0, SharedSegment::kPieceBytes};

TEST(MpiCommunicatorTest, MessagesOfAllLengthsArriveOnceAndWhole) {
  for (const uint64_t shared_bytes : kSharedBytes) {
    auto communicator = MpiCommunicator::over_world({.shared_bytes_max = shared_bytes});
    ASSERT_TRUE(communicator.has_value());
    constexpr uint32_t kRounds = 20;
    exchange_mpi_communicator(**communicator, kRounds);
    const Traffic traffic = (*communicator)->traffic();
    EXPECT_EQ(traffic.messages_sent, kRounds * std::size(kLengths) * (job->size() - 1));
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
  exchange_mpi_communicator(**communicator, 2);
  EXPECT_EQ((*communicator)->counters().copied, 0u);
}

ReceivedMessage next_message(Communicator& communicator) {
  for (;;) {
    auto received = communicator.receive();
    if (!received) return {};
    if (*received) return std::move(**received);
    communicator.wait(kNsPerS, WaitAs::kIdle);
  }
}

TEST(MpiCommunicatorTest, ABodyThatGoesAroundIsWrittenOnce) {
  auto communicator = MpiCommunicator::over_world();
  ASSERT_TRUE(communicator.has_value());
  const uint32_t rank = job->rank(), next = (rank + 1) % job->size(), previous = (rank + job->size() - 1) % job->size();
  constexpr size_t kBytes = 1'000'000;
  PeerMessage own = message_of(rank, 0, kBytes);
  WritableBody body = (*communicator)->take_body(kBytes);
  std::ranges::copy(own.body.bytes, body.bytes.begin());
  own.body = std::move(body).share();
  ASSERT_TRUE((*communicator)->send(next, std::move(own)).has_value());
  for (uint32_t step = 1; step < job->size(); ++step) {
    ReceivedMessage received = next_message(**communicator);
    ASSERT_EQ(received.from, previous);
    const uint32_t origin = (rank + job->size() - step) % job->size();
    ASSERT_EQ(received.message.collective, origin);
    EXPECT_TRUE(std::ranges::equal(received.message.body.bytes, mpi_communicator_body_of(origin, 0, kBytes)));
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
    ASSERT_TRUE((*communicator)->send(to, message_of(job->rank(), 3, kBytes)).has_value());
  }
  std::vector<ReceivedMessage> received;
  for (uint32_t left = job->size() - 1; left > 0; --left) received.push_back(next_message(**communicator));
  communicator->reset();
  for (const ReceivedMessage& one : received) {
    EXPECT_TRUE(std::ranges::equal(one.message.body.bytes, mpi_communicator_body_of(one.from, 3, kBytes)));
  }
}

TEST(MpiCommunicatorTest, TwoCommunicatorsDoNotHearEachOther) {
  auto first = MpiCommunicator::over_world();
  auto second = MpiCommunicator::over_world();
  ASSERT_TRUE(first.has_value() && second.has_value());
  exchange_mpi_communicator(**second, 1);
  exchange_mpi_communicator(**first, 1);
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

TEST(MpiCommunicatorTest, SendsThatNobodyTakesDoNotHoldUpTheEnd) {
  auto communicator = MpiCommunicator::over_world({.shared_bytes_max = 0});
  ASSERT_TRUE(communicator.has_value());
  const TimeNs begin = monotonic_now_ns();
  if (job->rank() == 0) {
    // More than any transport takes in advance; rank 1 never asks for it, and is in MPI all the same.
    ASSERT_TRUE((*communicator)->send(1, message_of(0, 1, size_t{16} << 20)).has_value());
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
