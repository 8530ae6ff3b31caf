#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/clock.h"
#include "worker/peer/transport/communicator.h"

/// What every communicator must do, for the tests of each. Each rank calls these functions.
namespace millrace::peer::testing {

inline constexpr uint64_t kCaseSignature = 0x1122334455667788;

inline ByteBuffer case_body_of(uint32_t from, uint32_t tag, size_t bytes) {
  ByteBuffer body(bytes);
  for (size_t i = 0; i < bytes; ++i) body[i] = static_cast<uint8_t>(from * 31 + tag * 7 + i);
  return body;
}

inline PeerMessage case_message_of(uint32_t from, uint32_t tag, size_t bytes) {
  PeerMessage message;
  message.form = BodyForm::kNumbers;
  message.collective = from;
  message.tag = tag;
  message.signature = kCaseSignature;
  message.body = SharedBytes::from(case_body_of(from, tag, bytes));
  return message;
}

/// Around where a body gets a message of its own over MPI, and the borders of buffers.
inline constexpr size_t kCaseLengths[] = {0, 1, 7, 4064, 8191, 8192, 8193, 65'536, 3'000'001};

/// Returns the number of messages from one rank to another in exchange_all_lengths().
inline uint32_t messages_of_exchange(uint32_t rounds) {
  return rounds * static_cast<uint32_t>(std::size(kCaseLengths)) + 1;
}

/// Sends an empty message to every other rank, and receives theirs. Until then a rank's own bytes may be on their way:
/// they go in its calls.
///
/// done  the others' empty messages that have arrived before.
inline void end_exchange(Communicator& communicator, uint32_t last_tag, uint32_t done) {
  for (uint32_t to = 0; to < communicator.size(); ++to) {
    if (to == communicator.rank()) continue;
    ASSERT_TRUE(communicator.send(to, case_message_of(communicator.rank(), last_tag, 0)).has_value());
  }
  while (done + 1 < communicator.size()) {
    auto received = communicator.receive();
    ASSERT_TRUE(received.has_value()) << received.error().message;
    if (!*received) {
      communicator.wait(kNsPerS, WaitAs::kIdle);
      continue;
    }
    EXPECT_EQ((*received)->message.tag, last_tag);
    ++done;
  }
}

/// Every rank sends all lengths to every other, again and again; each message has a tag of its own.
inline void exchange_all_lengths(Communicator& communicator, uint32_t rounds) {
  const uint32_t tags = messages_of_exchange(rounds) - 1;
  const auto length_of = [](uint32_t tag) { return kCaseLengths[tag % std::size(kCaseLengths)]; };
  for (uint32_t tag = 0; tag < tags; ++tag) {
    for (uint32_t to = 0; to < communicator.size(); ++to) {
      if (to == communicator.rank()) continue;
      ASSERT_TRUE(communicator.send(to, case_message_of(communicator.rank(), tag, length_of(tag))).has_value());
    }
  }
  std::vector<std::set<uint32_t>> seen(communicator.size());
  uint32_t done = 0;
  for (uint32_t left = (communicator.size() - 1) * tags; left > 0;) {
    auto received = communicator.receive();
    ASSERT_TRUE(received.has_value()) << received.error().message;
    if (!*received) {
      communicator.wait(kNsPerS, WaitAs::kIdle);
      continue;
    }
    const auto& [from, message] = **received;
    if (message.tag == tags) {
      ++done;
      continue;
    }
    ASSERT_LT(message.tag, tags);
    EXPECT_TRUE(seen[from].insert(message.tag).second);
    EXPECT_EQ(message.collective, from);
    EXPECT_EQ(message.signature, kCaseSignature);
    const ByteBuffer expected = case_body_of(from, message.tag, length_of(message.tag));
    EXPECT_TRUE(std::ranges::equal(message.body.bytes, expected)) << "tag " << message.tag;
    EXPECT_EQ(std::bit_cast<uintptr_t>(message.body.bytes.data()) % 8, 0u);
    --left;
  }
  end_exchange(communicator, tags, done);
}

/// Waits for a message; an empty one after an error.
inline ReceivedMessage next_message(Communicator& communicator) {
  for (;;) {
    auto received = communicator.receive();
    if (!received) return {};
    if (*received) return std::move(**received);
    communicator.wait(kNsPerS, WaitAs::kIdle);
  }
}

/// Sends a message of a kind that no rank knows.
inline void send_malformed_message(Communicator& communicator, uint32_t to) {
  PeerMessage message = case_message_of(communicator.rank(), 1, 10);
  message.kind = static_cast<MessageKind>(99);
  ASSERT_TRUE(communicator.send(to, std::move(message)).has_value());
}

/// Waits for the error of a malformed message, and expects that the error keeps no later wait() from sleeping.
inline void expect_one_error(Communicator& communicator) {
  auto received = communicator.receive();
  while (received) {
    ASSERT_FALSE(received->has_value());
    communicator.wait(kNsPerS, WaitAs::kIdle);
    received = communicator.receive();
  }
  EXPECT_EQ(received.error().code, ErrorCode::kMalformed);
  while (communicator.take_lost()) {
  }
  const auto after = communicator.receive();
  EXPECT_TRUE(after.has_value() && !after->has_value()) << "the error is reported once";
  constexpr TimeNs kWait = 50 * kNsPerMs;
  const TimeNs begin = communicator.now();
  communicator.wait(kWait, WaitAs::kIdle);
  EXPECT_GE(communicator.now() - begin, kWait);
}

}  // namespace millrace::peer::testing
