#include "worker/peer/mpi_communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <set>
#include <thread>
#include <vector>

#include "kernels/base/random.h"

/// The communicator over MPI; started by mpirun, every test on every rank. Needs three ranks or more.
namespace millrace::peer::testing {
namespace {

MpiJob* job = nullptr;

ByteBuffer body_of(uint32_t from, uint32_t tag, size_t bytes) {
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
  message.body = SharedBytes::from(body_of(from, tag, bytes));
  return message;
}

/// Around where a body gets a message of its own, and MPI's own borders.
constexpr size_t kLengths[] = {0, 1, 7, 4064, 8191, 8192, 8193, 65'536, 3'000'001};

/// Every rank sends all lengths to every other, again and again; each message has a tag of its own.
void exchange(Communicator& communicator, uint32_t rounds) {
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
      communicator.wait(kNsPerS);
      continue;
    }
    const auto& [from, message] = **received;
    ASSERT_LT(message.tag, tags);
    EXPECT_TRUE(seen[from].insert(message.tag).second);
    EXPECT_EQ(message.collective, from);
    EXPECT_EQ(message.signature, 0x1122334455667788u);
    const ByteBuffer expected = body_of(from, message.tag, length_of(message.tag));
    EXPECT_TRUE(std::ranges::equal(message.body.bytes, expected)) << "tag " << message.tag;
    EXPECT_EQ(std::bit_cast<uintptr_t>(message.body.bytes.data()) % 8, 0u);
    --left;
  }
}

TEST(MpiCommunicatorTest, MessagesOfAllLengthsArriveOnceAndWhole) {
  auto communicator = MpiCommunicator::over_world();
  ASSERT_TRUE(communicator.has_value());
  constexpr uint32_t kRounds = 20;
  exchange(**communicator, kRounds);
  const Traffic traffic = (*communicator)->traffic();
  EXPECT_EQ(traffic.messages_sent, kRounds * std::size(kLengths) * (job->size() - 1));
  EXPECT_EQ(traffic.bytes_sent, traffic.bytes_received);
}

TEST(MpiCommunicatorTest, TwoCommunicatorsDoNotHearEachOther) {
  auto first = MpiCommunicator::over_world();
  auto second = MpiCommunicator::over_world();
  ASSERT_TRUE(first.has_value() && second.has_value());
  exchange(**second, 1);
  exchange(**first, 1);
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

TEST(MpiCommunicatorTest, WakeEndsAWaitOfAnotherThread) {
  auto communicator = MpiCommunicator::over_world();
  ASSERT_TRUE(communicator.has_value());
  const TimeNs begin = monotonic_now_ns();
  std::jthread waiting([&] { (*communicator)->wait(60 * kNsPerS); });
  (*communicator)->wake();
  waiting.join();
  EXPECT_LT(monotonic_now_ns() - begin, 30 * kNsPerS);
}

TEST(MpiCommunicatorTest, SendsThatNobodyTakesDoNotHoldUpTheEnd) {
  auto communicator = MpiCommunicator::over_world();
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
