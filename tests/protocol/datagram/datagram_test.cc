// Header and extensions of datagrams.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

#include "protocol/datagram/extensions.h"
#include "protocol/datagram/header.h"
#include "protocol/datagram/job_numbers.h"
#include "tests/protocol/document.h"
#include "tests/support/format_versions.h"

namespace millrace::protocol {
namespace {

/// Every field another number, each byte of each field too.
DatagramHeader datagram_example_header() {
  DatagramHeader header;
  header.type = DatagramType::kContribution;
  header.flags = datagram_flag::kLast | datagram_flag::kFin;
  header.fragment = 15;
  header.job = 0x04050607;
  header.incarnation = 0x08090a0b0c0d0e0f;
  header.sequence = 0x1011121314151617;
  header.turn = 0x18191a1b1c1d1e1f;
  header.epoch = 0x20212223;
  header.step = 0x24252627;
  header.window = 0x28292a2b;
  header.next = 0x2c2d2e2f;
  header.worker = 0x3031;
  header.slot = 127;
  header.entries = 0x3435;
  header.payload_bytes = 5;
  header.index_codec = 0x38;
  header.value_codec = 0x39;
  header.exponent = -3;
  header.extension_words = 2;
  return header;
}

ByteBuffer example_datagram(const DatagramHeader& header) {
  ByteBuffer packet(datagram_bytes(header));
  std::iota(packet.begin(), packet.end(), uint8_t{0x80});
  put_header(header, packet);
  return packet;
}

TEST(DatagramHeader, ItsBytesAreThoseOfTheFormat) {
  const ByteBuffer packet = example_datagram(datagram_example_header());
  const std::vector<uint8_t> expected = {0xa1, 7,    17,   15,   0x07, 0x06, 0x05, 0x04, 0x0f, 0x0e, 0x0d, 0x0c, 0x0b,
                                         0x0a, 0x09, 0x08, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, 0x10, 0x1f, 0x1e,
                                         0x1d, 0x1c, 0x1b, 0x1a, 0x19, 0x18, 0x23, 0x22, 0x21, 0x20, 0x27, 0x26, 0x25,
                                         0x24, 0x2b, 0x2a, 0x29, 0x28, 0x2f, 0x2e, 0x2d, 0x2c, 0x31, 0x30, 127,  0,
                                         0x35, 0x34, 5,    0,    0x38, 0x39, 0xfd, 2,    0,    0,    0,    0};
  EXPECT_EQ(std::vector<uint8_t>(packet.begin(), packet.begin() + 64), expected);
}

TEST(JobNumbers, AreOneForEachLaneUpToTheLast) {
  const JobNumbers numbers{.job = 40, .lanes = 3};
  EXPECT_EQ(numbers.lane_of(40), 0u);
  EXPECT_EQ(numbers.lane_of(42), 2u);
  for (const uint32_t other : {0u, 39u, 43u, UINT32_MAX}) EXPECT_FALSE(numbers.lane_of(other)) << other;
  EXPECT_TRUE(numbers.overlap({42, 1}) && JobNumbers({42, 1}).overlap(numbers) && numbers.overlap({38, 3}));
  EXPECT_FALSE(numbers.overlap({43, 2}) || numbers.overlap({38, 2}));
  const JobNumbers last{.job = UINT32_MAX - 1, .lanes = 2};
  EXPECT_EQ(last.lane_of(UINT32_MAX), 1u);
  EXPECT_FALSE(last.lane_of(0) || last.overlap({0, 16}));
}

TEST(DatagramHeader, IsTakenApartWhereItLies) {
  const ByteBuffer packet = example_datagram(datagram_example_header());
  const auto datagram = parse_datagram(packet);
  ASSERT_TRUE(datagram);
  EXPECT_EQ(datagram->header, datagram_example_header());
  EXPECT_EQ(datagram->extension.data(), packet.data() + 64);
  EXPECT_EQ(datagram->extension.size(), 16u);
  EXPECT_EQ(datagram->payload.data(), packet.data() + 80);
  EXPECT_EQ(datagram->payload.size(), 5u);
  EXPECT_EQ(datagram->signed_bytes.size(), 85u);
  EXPECT_EQ(datagram->mac.data(), packet.data() + 85);
  EXPECT_EQ(datagram->mac.size(), 16u);
}

TEST(DatagramHeader, EveryShorterLengthIsRefused) {
  const ByteBuffer packet = example_datagram(datagram_example_header());
  for (size_t length = 0; length < packet.size(); ++length) {
    const ByteBuffer cut(packet.begin(), packet.begin() + static_cast<std::ptrdiff_t>(length));
    const auto datagram = parse_datagram(cut);
    ASSERT_FALSE(datagram) << length;
    EXPECT_EQ(datagram.error(), length < 80 ? DatagramFault::kTooShort : DatagramFault::kWrongLength) << length;
  }
}

TEST(DatagramHeader, BytesBehindADatagramAreNotPartOfIt) {
  const ByteBuffer packet = example_datagram(datagram_example_header());
  ByteBuffer longer = packet;
  longer.insert(longer.end(), {7, 0, 9});
  const auto alone = parse_datagram(packet);
  const auto followed = parse_datagram(longer);
  ASSERT_TRUE(alone && followed);
  EXPECT_TRUE(std::ranges::equal(followed->signed_bytes, alone->signed_bytes));
  EXPECT_TRUE(std::ranges::equal(followed->mac, alone->mac));
  EXPECT_TRUE(std::ranges::equal(followed->payload, alone->payload));
}

TEST(DatagramHeader, TheLongestDatagramIsReadAndOneByteMoreIsNot) {
  DatagramHeader header = datagram_example_header();
  header.payload_bytes = static_cast<uint16_t>(kDatagramBytesMax - 64 - 16 - 16);
  EXPECT_TRUE(parse_datagram(example_datagram(header)));
  ++header.payload_bytes;
  EXPECT_EQ(parse_datagram(example_datagram(header)).error(), DatagramFault::kWrongLength);
}

TEST(DatagramHeader, FieldsBeyondTheirBoundsAreRefused) {
  const auto fault_of = [](const std::function<void(DatagramHeader&)>& change) {
    DatagramHeader header = datagram_example_header();
    change(header);
    const auto datagram = parse_datagram(example_datagram(header));
    return datagram ? -1 : static_cast<int>(datagram.error());
  };
  const int bounds = static_cast<int>(DatagramFault::kOutOfBounds);
  EXPECT_EQ(fault_of([](auto&) {}), -1);
  EXPECT_EQ(fault_of([](auto& h) { h.fragment = 16; }), bounds);
  EXPECT_EQ(fault_of([](auto& h) { h.slot = 128; }), bounds);
  EXPECT_EQ(fault_of([](auto& h) { h.flags = 128; }), bounds);
  EXPECT_EQ(fault_of([](auto& h) { h.reserved = 1u << 31; }), bounds);
  EXPECT_EQ(fault_of([](auto& h) { h.magic = 0xa2; }), static_cast<int>(DatagramFault::kWrongMagic));
  for (const int type : {0, 12, 255}) {
    EXPECT_EQ(fault_of([&](auto& h) { h.type = static_cast<DatagramType>(type); }),
              static_cast<int>(DatagramFault::kUnknownType));
  }
  for (int type = 1; type <= 11; ++type) {
    EXPECT_EQ(fault_of([&](auto& h) { h.type = static_cast<DatagramType>(type); }), -1) << type;
  }
}

TEST(DatagramHeader, EveryChangedByteGivesAFaultOrADatagramWithinItsBytes) {
  const ByteBuffer packet = example_datagram(datagram_example_header());
  size_t refused = 0;
  size_t shorter = 0;
  for (size_t at = 0; at < packet.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      ByteBuffer changed = packet;
      changed[at] = static_cast<uint8_t>(value);
      const auto datagram = parse_datagram(changed);
      if (!datagram) {
        ++refused;
        continue;
      }
      const size_t bytes = datagram->extension.size() + datagram->payload.size() + 80;
      EXPECT_LE(bytes, changed.size());
      EXPECT_EQ(datagram->mac.data() + 16, changed.data() + bytes);
      shorter += bytes < changed.size() ? 1 : 0;
    }
  }
  // Magic 255, types 245, flags 128, fragments 240, slots 128 + 255, lengths 3 x 255, reserved 4 x 255. Of the lengths
  // some say that the datagram ends earlier: 5 bytes of payload and 2 words of extension can be fewer.
  EXPECT_EQ(shorter, 5u + 2);
  EXPECT_EQ(refused, 255u + 245 + 128 + 240 + 128 + 255 + 3 * 255 + 4 * 255 - shorter);
}

Nonce datagram_nonce_of(uint8_t first) {
  Nonce nonce;
  std::iota(nonce.begin(), nonce.end(), first);
  return nonce;
}

HelloTerms example_hello(uint32_t slots) {
  HelloTerms hello{.membership_hash = 0x1111, .live = 7, .worker_nonce = datagram_nonce_of(1), .slots = slots};
  for (uint32_t s = 0; s < slots; ++s) hello.positions[s] = 1000 + s;
  return hello;
}

WelcomeTerms example_welcome(uint32_t slots) {
  WelcomeTerms welcome{.slots = slots, .window_indices = 4096};
  for (uint32_t s = 0; s < slots; ++s) welcome.turns[s] = (uint64_t{1} << 40) + s;
  return welcome;
}

/// Writes, reads back, and tries every other length and a room that is too small by nothing.
template <typename Extension, typename Read>
ByteBuffer check(const Extension& extension, size_t (*put)(const Extension&, std::span<uint8_t>), Read read) {
  ByteBuffer room(kExtensionBytesMax);
  const size_t bytes = put(extension, room);
  EXPECT_EQ(bytes % 8, 0u);
  room.resize(bytes);
  ByteBuffer exact(bytes);
  EXPECT_EQ(put(extension, exact), bytes);
  EXPECT_EQ(room, exact);
  EXPECT_EQ(read(room), extension);
  return exact;
}

TEST(Extensions, EachIsReadAsItWasWritten) {
  check(ChallengeRequest{datagram_nonce_of(1)}, put_challenge_request, read_challenge_request);
  check(Challenge{datagram_nonce_of(1), datagram_nonce_of(100)}, put_challenge, read_challenge);
  for (const uint32_t slots : {0u, 1u, 5u, kSlotsMax}) {
    check(example_hello(slots), put_hello, read_hello);
    check(example_welcome(slots), put_welcome, read_welcome);
  }
  check(ResultTerms{~uint64_t{0}, 0, 9}, put_result_terms, read_result_terms);
  check(PartialTerms{7, 5, 3}, put_partial_terms, read_partial_terms);
  for (uint32_t code = 1; code <= 7; ++code) {
    check(Notice{static_cast<NoticeCode>(code), 4, 5, datagram_nonce_of(6)}, put_notice, read_notice);
  }
}

TEST(Extensions, LostSequencesAreReadFromTheNoticeTheyWerePutIn) {
  for (const LostSequences lost :
       {LostSequences{1, 0}, LostSequences{~uint64_t{0}, 5}, LostSequences{77, ~uint64_t{0}}}) {
    const Notice said{NoticeCode::kLost, 4, 5, put_lost(lost)};
    const auto read = read_notice(check(said, put_notice, read_notice));
    ASSERT_TRUE(read);
    EXPECT_EQ(lost_of(*read), lost);
  }
}

TEST(Extensions, EveryOtherLengthIsRefused) {
  const auto lengths = [](const ByteBuffer& bytes, const auto& read) {
    std::vector<size_t> accepted;
    ByteBuffer longer = bytes;
    longer.resize(kExtensionBytesMax);
    std::fill(longer.begin() + static_cast<std::ptrdiff_t>(bytes.size()), longer.end(), uint8_t{0});
    for (size_t length = 0; length <= longer.size(); ++length) {
      const ByteBuffer cut(longer.begin(), longer.begin() + static_cast<std::ptrdiff_t>(length));
      if (read(cut)) accepted.push_back(length);
    }
    return accepted;
  };
  const auto only = [](size_t length) { return std::vector<size_t>{length}; };
  EXPECT_EQ(lengths(check(ChallengeRequest{datagram_nonce_of(1)}, put_challenge_request, read_challenge_request),
                    read_challenge_request),
            only(32));
  EXPECT_EQ(lengths(check(Challenge{datagram_nonce_of(1), datagram_nonce_of(2)}, put_challenge, read_challenge),
                    read_challenge),
            only(32));
  EXPECT_EQ(lengths(check(example_welcome(5), put_welcome, read_welcome), read_welcome), only(8 + 5 * 8));
  EXPECT_EQ(lengths(check(ResultTerms{1, 0, 3}, put_result_terms, read_result_terms), read_result_terms), only(24));
  EXPECT_EQ(lengths(check(PartialTerms{7, 5, 3}, put_partial_terms, read_partial_terms), read_partial_terms), only(24));
  EXPECT_EQ(lengths(check(Notice{NoticeCode::kNoSlots, 4, 5, {}}, put_notice, read_notice), read_notice), only(32));
  std::vector<size_t> hello_lengths;  // a HELLO has as many slots as there are words
  for (size_t slots = 0; slots <= kSlotsMax; ++slots) hello_lengths.push_back(32 + 8 * slots);
  EXPECT_EQ(lengths(check(example_hello(5), put_hello, read_hello), read_hello), hello_lengths);
}

TEST(Extensions, WhatCannotBeIsRefused) {
  ByteBuffer request = check(ChallengeRequest{datagram_nonce_of(1)}, put_challenge_request, read_challenge_request);
  request[31] = 1;
  EXPECT_FALSE(read_challenge_request(request)) << "what fills it up must be 0";
  ByteBuffer welcome = check(example_welcome(5), put_welcome, read_welcome);
  welcome[0] = 4;
  EXPECT_FALSE(read_welcome(welcome)) << "another number of slots than there are";
  ByteBuffer result = check(ResultTerms{1, 0, 3}, put_result_terms, read_result_terms);
  result[20] = 1;
  EXPECT_FALSE(read_result_terms(result)) << "reserved";
  ByteBuffer partial = check(PartialTerms{7, 5, 3}, put_partial_terms, read_partial_terms);
  partial[8] = 8;
  EXPECT_FALSE(read_partial_terms(partial)) << "last of a worker that is not in";
  ByteBuffer notice = check(Notice{NoticeCode::kNoSlots, 4, 5, {}}, put_notice, read_notice);
  for (const uint8_t code : std::initializer_list<uint8_t>{0, 8, 255}) {
    notice[0] = code;
    EXPECT_FALSE(read_notice(notice)) << int{code};
  }
}

TEST(Extensions, AHelloOfAllSlotsFitsInADatagramOfAnEthernetFrame) {
  DatagramHeader header;
  header.type = DatagramType::kHello;
  ByteBuffer room(kExtensionBytesMax);
  header.extension_words = static_cast<uint8_t>(put_hello(example_hello(kSlotsMax), room) / 8);
  EXPECT_LE(datagram_bytes(header), 1472u);
}

/// The bytes of an extension.
template <typename Extension>
ByteBuffer bytes_of(size_t (*put)(const Extension&, std::span<uint8_t>), const Extension& extension) {
  ByteBuffer room(kExtensionBytesMax);
  room.resize(put(extension, room));
  return room;
}

TEST(DatagramBytes, AreThoseOfTheirVersion) {
  millrace::testing::Fingerprint now;
  now.add(example_datagram(datagram_example_header()));
  now.add(bytes_of(put_challenge_request, ChallengeRequest{datagram_nonce_of(1)}));
  now.add(bytes_of(put_challenge, Challenge{datagram_nonce_of(1), datagram_nonce_of(100)}));
  now.add(bytes_of(put_hello, example_hello(5)));
  now.add(bytes_of(put_welcome, example_welcome(5)));
  now.add(bytes_of(put_result_terms, ResultTerms{.contributors = 7, .selected = 3, .decided_epoch = 9}));
  now.add(bytes_of(put_partial_terms, PartialTerms{.have = 7, .last = 3, .hash = 9}));
  now.add(bytes_of(put_notice, Notice{NoticeCode::kOldEpoch, 4, 5, datagram_nonce_of(6)}));
  // The payload's codes and the MAC.
  for (const char* block : {"datagram-example", "challenge-example", "handshake-mac-example"})
    now.add(documented_bytes(block));
  millrace::testing::expect_format_version("datagrams", kDatagramMagic & 0x0f, now,
                                           "the low half of kDatagramMagic in protocol/datagram/header.h");
}

}  // namespace
}  // namespace millrace::protocol
