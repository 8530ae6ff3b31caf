#include "worker/peer/transport/tcp_link.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "tests/worker/peer/transport/communicator_cases.h"
#include "tests/worker/peer/transport/tcp_ranks.h"

/// Bytes between two ranks over a link, plain and sealed, and their changes by a stranger on the way.
namespace millrace::peer::testing {
namespace {

using protocol::NoiseHandshake;

constexpr size_t kLengthBytes = 2;

/// Both ends of a link.
struct LinkEnds {
  std::unique_ptr<TcpLink> from, to;
};

LinkEnds ends_of(bool sealed) {
  auto [one, other] = connected_sockets();
  if (!sealed) return {plain_link(std::move(one)), plain_link(std::move(other))};
  const auto [connects, accepts] = ciphers_of_both();
  return {sealed_link(std::move(one), connects), sealed_link(std::move(other), accepts)};
}

iovec part_of(ByteSpan bytes) { return {.iov_base = const_cast<uint8_t*>(bytes.data()), .iov_len = bytes.size()}; }

/// Reads once into two parts, the first of which is small.
LinkResult read_once(TcpLink& link, ByteBuffer& into) {
  std::array<uint8_t, 100> small;
  std::vector<uint8_t> large(TcpLink::kRecordTextMax);
  const std::array parts{part_of(small), part_of(large)};
  const LinkResult found = link.read(parts);
  const size_t in_small = std::min(found.bytes, small.size());
  into.insert(into.end(), small.begin(), small.begin() + static_cast<ptrdiff_t>(in_small));
  into.insert(into.end(), large.begin(), large.begin() + static_cast<ptrdiff_t>(found.bytes - in_small));
  return found;
}

TEST(TcpLinks, CarryAllLengthsInOrderThroughASocketThatIsFull) {
  for (const bool is_sealed : {false, true}) {
    const LinkEnds ends = ends_of(is_sealed);
    for (const size_t bytes : {size_t{1}, size_t{99}, size_t{101}, TcpLink::kRecordTextMax - 1, TcpLink::kRecordTextMax,
                               TcpLink::kRecordTextMax + 1, size_t{700'001}}) {
      const ByteBuffer text = case_body_of(1, static_cast<uint32_t>(bytes), bytes);
      ByteBuffer arrived;
      size_t taken = 0;
      bool was_blocked = false;
      while (arrived.size() < bytes) {
        const ByteSpan rest = ByteSpan(text).subspan(taken);
        const size_t half = rest.size() / 2;
        const std::array parts{part_of(rest.first(half)), part_of(rest.subspan(half))};
        const LinkResult sent = ends.from->write(parts);
        taken += sent.bytes;
        if (sent.state == LinkState::kBlocked || taken == bytes) {
          was_blocked = was_blocked || sent.state == LinkState::kBlocked;
          read_once(*ends.to, arrived);
        }
      }
      EXPECT_EQ(arrived, text) << bytes;
      EXPECT_EQ(ends.from->output_bytes(), 0u);
      EXPECT_EQ(was_blocked, bytes > 500'000);
      EXPECT_EQ(read_once(*ends.to, arrived).state, LinkState::kBlocked);
    }
    ends.from->socket().close();
    ByteBuffer none;
    EXPECT_EQ(read_once(*ends.to, none).state, LinkState::kEnded);
    while (ends.to->write(std::array{part_of(ByteBuffer(10))}).state == LinkState::kOpen) {
    }
    EXPECT_EQ(ends.to->output_bytes(), 0u) << "a broken connection drops its bytes";
  }
}

/// A sealed link whose bytes pass through the test.
struct Tapped {
  Tapped() {
    auto [one, other] = connected_sockets();
    auto [three, four] = connected_sockets();
    const auto [connects, accepts] = ciphers_of_both();
    from = sealed_link(std::move(one), connects);
    to = sealed_link(std::move(four), accepts);
    tap = std::move(other);
    into = std::move(three);
  }
  /// Returns the bytes of a record on its way.
  ByteBuffer record_of(ByteSpan text) const {
    EXPECT_EQ(from->write(std::array{part_of(text)}).bytes, text.size());
    ByteBuffer record(2 * TcpLink::kRecordTextMax);
    const ssize_t found = ::recv(tap.number(), record.data(), record.size(), 0);
    record.resize(static_cast<size_t>(std::max<ssize_t>(found, 0)));
    return record;
  }
  void pass(ByteSpan bytes) const {
    EXPECT_EQ(::send(into.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }

  std::unique_ptr<TcpLink> from, to;
  Descriptor tap, into;
};

TEST(SealedLinks, TheTextIsNotOnTheWire) {
  const Tapped tapped;
  const ByteBuffer text(1'000, 0x5a);
  const ByteBuffer record = tapped.record_of(text);
  EXPECT_EQ(record.size(), kLengthBytes + text.size() + protocol::kNoiseTagBytes);
  EXPECT_EQ(std::ranges::search(record, ByteBuffer(8, 0x5a)).size(), 0U);
}

TEST(SealedLinks, EveryChangedByteIsForgedAndHandsOutNothing) {
  const ByteBuffer text = case_body_of(0, 1, 40);
  const size_t bytes = kLengthBytes + text.size() + protocol::kNoiseTagBytes;
  for (size_t at = 0; at < bytes; ++at) {
    const Tapped tapped;
    ByteBuffer record = tapped.record_of(text);
    ASSERT_EQ(record.size(), bytes);
    record[at] ^= 1;
    tapped.pass(record);
    // A larger length waits for bytes; those of the next record come.
    tapped.pass(tapped.record_of(case_body_of(0, 2, TcpLink::kRecordTextMax)));
    ByteBuffer arrived;
    EXPECT_EQ(read_once(*tapped.to, arrived).state, LinkState::kForged) << at;
    EXPECT_TRUE(arrived.empty()) << at;
  }
}

TEST(SealedLinks, ImpossibleLengthsAreForgedAtOnce) {
  for (const std::array<uint8_t, 2> length :
       {std::array<uint8_t, 2>{0, 0}, {16, 0}, {0x11, 0x40}, {0xff, 0xff}, {1, 0}}) {
    const Tapped tapped;
    ByteBuffer arrived;
    const ByteBuffer good = tapped.record_of(case_body_of(0, 1, 10));
    tapped.pass(good);
    tapped.pass(length);  // the first read finds it behind the good record
    EXPECT_EQ(read_once(*tapped.to, arrived).bytes, 10U);
    EXPECT_EQ(read_once(*tapped.to, arrived).state, LinkState::kForged) << int{length[0]} << ' ' << int{length[1]};
  }
}

TEST(SealedLinks, ARepeatedOrOmittedRecordIsForged) {
  for (const bool is_repeated : {true, false}) {
    const Tapped tapped;
    const ByteBuffer first = tapped.record_of(case_body_of(0, 1, 50)),
                     second = tapped.record_of(case_body_of(0, 2, 50));
    ByteBuffer arrived;
    if (is_repeated) {
      tapped.pass(first);
      EXPECT_EQ(read_once(*tapped.to, arrived).bytes, 50U);
    }
    tapped.pass(is_repeated ? first : second);
    EXPECT_EQ(read_once(*tapped.to, arrived).state, LinkState::kForged);
  }
}

TEST(SealedLinks, ARecordMayArriveByteByByteAndItsPartIsNotHandedOut) {
  const Tapped tapped;
  const ByteBuffer text = case_body_of(0, 3, 300), record = tapped.record_of(text);
  ByteBuffer arrived;
  for (const uint8_t& byte : record) {
    EXPECT_EQ(read_once(*tapped.to, arrived).state, LinkState::kBlocked);
    EXPECT_TRUE(arrived.empty());
    tapped.pass({&byte, 1});
  }
  EXPECT_EQ(read_once(*tapped.to, arrived).bytes, text.size());
  EXPECT_EQ(arrived, text);
}

TEST(SealedLinks, TheSocketIsReadableWhileAReadWouldFindText) {
  const Tapped tapped;
  for (uint32_t tag = 0; tag < 3; ++tag) tapped.pass(tapped.record_of(case_body_of(0, tag, 20 + tag)));
  for (uint32_t tag = 0; tag < 3; ++tag) {
    uint8_t byte = 0;
    EXPECT_EQ(::recv(tapped.to->socket().number(), &byte, 1, MSG_PEEK | MSG_DONTWAIT), 1) << tag;
    ByteBuffer arrived;
    EXPECT_EQ(read_once(*tapped.to, arrived).bytes, 20U + tag);
  }
}

}  // namespace
}  // namespace millrace::peer::testing
