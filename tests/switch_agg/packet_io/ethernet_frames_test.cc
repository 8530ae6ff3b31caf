#include "switch_agg/packet_io/dpdk/ethernet_frames.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/base/random.h"

namespace millrace::switch_agg {
namespace {

using Bytes = std::vector<uint8_t>;

const WireAddress kSwitch = {{0x02, 0, 0, 0, 0, 0x01}, {10, 0, 0, 1}};
const WireAddress kEthernetFramesWorker = {{0x02, 0, 0, 0, 0, 0x77}, {10, 0, 0, 7}};

/// [RFC1071], a byte at a time.
uint16_t slow_checksum(ByteSpan bytes) {
  uint32_t sum = 0;
  for (size_t at = 0; at < bytes.size(); ++at) sum += at % 2 == 0 ? bytes[at] << 8 : bytes[at];
  while (sum > 0xFFFF) sum = (sum & 0xFFFF) + (sum >> 16);
  return static_cast<uint16_t>(~sum);
}

Bytes payload_of(size_t bytes) {
  Bytes payload(bytes);
  std::iota(payload.begin(), payload.end(), uint8_t{1});
  return payload;
}

Bytes ethernet_frames_udp_frame(const Bytes& payload, const WireAddress& from = kEthernetFramesWorker,
                                const WireAddress& to = kSwitch) {
  Bytes frame(kUdpHeadersBytes + payload.size());
  std::ranges::copy(payload, frame.begin() + kUdpHeadersBytes);
  build_udp_headers({from, to, 4000, 7700}, frame);
  return frame;
}

/// An echo request of `data` bytes, built by hand.
Bytes echo_request(size_t data) {
  Bytes frame = ethernet_frames_udp_frame(payload_of(data));
  frame[kEthernetBytes + 9] = 1;
  const std::span<uint8_t> icmp = std::span(frame).subspan(kEthernetBytes + kIpv4Bytes);
  std::ranges::copy(Bytes{8, 0, 0, 0, 0x12, 0x34, 0, 9}, icmp.begin());
  const uint16_t sum = slow_checksum(icmp);
  icmp[2] = static_cast<uint8_t>(sum >> 8);
  icmp[3] = static_cast<uint8_t>(sum);
  const std::span<uint8_t> header = std::span(frame).subspan(kEthernetBytes, kIpv4Bytes);
  header[10] = header[11] = 0;
  const uint16_t header_sum = slow_checksum(header);
  header[10] = static_cast<uint8_t>(header_sum >> 8);
  header[11] = static_cast<uint8_t>(header_sum);
  return frame;
}

/// An ARP request for 10.0.0.1 from 10.0.0.7.
const Bytes kArpQuestion = {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x02, 0, 0, 0, 0, 0x77, 0x08, 0x06,  //
                            0,    1,    8,    0,    6,    4,    0,    1,                             //
                            0x02, 0,    0,    0,    0,    0x77, 10,   0, 0, 7, 0, 0,    0,    0,    0, 0, 10, 0, 0, 1};

TEST(InternetChecksum, IsTheSlowOneAtEveryLength) {
  RandomSequence random(RandomKey::from(1));
  for (size_t bytes = 0; bytes < 200; ++bytes) {
    Bytes data(bytes);
    for (uint8_t& byte : data) byte = static_cast<uint8_t>(random.next_u32());
    // 0 and 0xFFFF are the same number in one's complement; both mean that all words are 0 or add up to it.
    EXPECT_EQ(internet_checksum(internet_sum(data)), slow_checksum(data)) << bytes;
  }
}

TEST(InternetChecksum, KeepsEveryCarry) {
  const Bytes all_ones(65'535, 0xFF);
  EXPECT_EQ(internet_checksum(internet_sum(all_ones)), slow_checksum(all_ones));
}

TEST(UdpFrame, IsReadAsItWasBuilt) {
  for (const size_t bytes : {0, 1, 2, 63, 64, 1472}) {
    const Bytes payload = payload_of(bytes);
    const Bytes frame = ethernet_frames_udp_frame(payload);
    const auto parsed = parse_udp_frame(frame);
    ASSERT_TRUE(parsed) << bytes;
    EXPECT_EQ(parsed->from, kEthernetFramesWorker);
    EXPECT_EQ(parsed->to, kSwitch);
    EXPECT_EQ(parsed->from_port, 4000);
    EXPECT_EQ(parsed->to_port, 7700);
    EXPECT_THAT(parsed->payload, ::testing::ElementsAreArray(payload));
  }
}

TEST(UdpFrame, HasTheseBytes) {
  const Bytes frame = ethernet_frames_udp_frame({'h', 'i'});
  const Bytes golden = {0x02, 0,    0,    0,    0, 0x01, 0x02, 0,    0,   0,  0,    0x77, 0x08, 0,  //
                        0x45, 2,    0,    30,   0, 0,    0x40, 0,    64,  17, 0x26, 0xC6, 10,   0,
                        0,    7,    10,   0,    0, 1,  //
                        0x0F, 0xA0, 0x1E, 0x14, 0, 10,   0x55, 0xB5, 'h', 'i'};
  EXPECT_EQ(frame, golden);
}

TEST(UdpFrame, ChecksumsAreRight) {
  for (const size_t bytes : {0, 1, 7, 1400}) {
    const Bytes frame = ethernet_frames_udp_frame(payload_of(bytes));
    const ByteSpan packet = ByteSpan(frame).subspan(kEthernetBytes);
    EXPECT_EQ(slow_checksum(packet.first(kIpv4Bytes)), 0);
    Bytes pseudo(packet.begin() + 12, packet.begin() + 20);  // addresses, then 0, protocol, length, then all of UDP
    pseudo.insert(pseudo.end(), {0, 17, packet[24], packet[25]});
    pseudo.insert(pseudo.end(), packet.begin() + kIpv4Bytes, packet.end());
    EXPECT_EQ(slow_checksum(pseudo), 0) << bytes;
  }
}

TEST(UdpFrame, SaysThatItMayBeMarkedAndWhetherItWas) {
  using protocol::Ecn;
  EXPECT_EQ(ethernet_frames_udp_frame({1, 2, 3})[kEthernetBytes + 1], 2) << "ECT(0), no class of service";
  for (const Ecn ecn : {Ecn::kNotEct, Ecn::kEct1, Ecn::kEct0, Ecn::kCe}) {
    Bytes frame(kUdpHeadersBytes + 3);
    build_udp_headers({kEthernetFramesWorker, kSwitch, 4000, 7700, ecn}, frame);
    const std::span<uint8_t> header = std::span(frame).subspan(kEthernetBytes, kIpv4Bytes);
    EXPECT_EQ(slow_checksum(header), 0);
    ASSERT_TRUE(parse_udp_frame(frame));
    EXPECT_EQ(parse_udp_frame(frame)->ecn, ecn);
    // A class of service beside it, as a network's border may set one [RFC2474].
    header[1] |= 0xB8;
    header[10] = header[11] = 0;
    const uint16_t sum = slow_checksum(header);
    header[10] = static_cast<uint8_t>(sum >> 8);
    header[11] = static_cast<uint8_t>(sum);
    ASSERT_TRUE(parse_udp_frame(frame));
    EXPECT_EQ(parse_udp_frame(frame)->ecn, ecn);
  }
}

TEST(UdpFrame, PaddingIsNoPayload) {
  Bytes frame = ethernet_frames_udp_frame({1, 2, 3});
  frame.resize(60);
  const auto parsed = parse_udp_frame(frame);
  ASSERT_TRUE(parsed);
  EXPECT_THAT(parsed->payload, ::testing::ElementsAre(1, 2, 3));
}

TEST(UdpFrame, EveryTruncationIsRefused) {
  const Bytes frame = ethernet_frames_udp_frame(payload_of(100));
  for (size_t bytes = 0; bytes < frame.size(); ++bytes) {
    const auto parsed = parse_udp_frame(ByteSpan(frame).first(bytes));
    ASSERT_FALSE(parsed) << bytes;
    EXPECT_EQ(parsed.error(), FrameFault::kMalformed) << bytes;
  }
}

TEST(UdpFrame, EveryCorruptionOfTheHeadersStaysInsideTheFrame) {
  const Bytes whole = ethernet_frames_udp_frame(payload_of(100));
  for (size_t at = 0; at < kUdpHeadersBytes; ++at) {
    for (int value = 0; value < 256; ++value) {
      Bytes frame = whole;
      frame[at] = static_cast<uint8_t>(value);
      const auto parsed = parse_udp_frame(frame);
      if (!parsed) continue;
      EXPECT_GE(parsed->payload.data(), frame.data() + kUdpHeadersBytes);
      EXPECT_LE(parsed->payload.data() + parsed->payload.size(), frame.data() + frame.size());
      // The IPv4 header has a sum of its own: none of its bytes can change alone.
      if (at >= kEthernetBytes && at < kEthernetBytes + kIpv4Bytes) {
        EXPECT_EQ(frame, whole) << at;
      }
    }
  }
}

TEST(UdpFrame, OptionsOfIpv4AreSkipped) {
  Bytes frame = ethernet_frames_udp_frame({5, 6});
  frame.insert(frame.begin() + kEthernetBytes + kIpv4Bytes, {1, 1, 1, 0});
  const std::span<uint8_t> header = std::span(frame).subspan(kEthernetBytes, kIpv4Bytes + 4);
  header[0] = 0x46;
  header[3] = static_cast<uint8_t>(header[3] + 4);
  header[10] = header[11] = 0;
  const uint16_t sum = slow_checksum(header);
  header[10] = static_cast<uint8_t>(sum >> 8);
  header[11] = static_cast<uint8_t>(sum);
  const auto parsed = parse_udp_frame(frame);
  ASSERT_TRUE(parsed);
  EXPECT_THAT(parsed->payload, ::testing::ElementsAre(5, 6));
}

TEST(UdpFrame, OtherProtocolsAreDistinguishedFromMalformedFrames) {
  const auto fault_with = [](size_t at, std::initializer_list<uint8_t> bytes) {
    Bytes frame = ethernet_frames_udp_frame(payload_of(10));
    std::ranges::copy(bytes, frame.begin() + static_cast<ptrdiff_t>(at));
    const std::span<uint8_t> header = std::span(frame).subspan(kEthernetBytes, kIpv4Bytes);
    header[10] = header[11] = 0;
    const uint16_t sum = slow_checksum(header);
    header[10] = static_cast<uint8_t>(sum >> 8);
    header[11] = static_cast<uint8_t>(sum);
    const auto parsed = parse_udp_frame(frame);
    EXPECT_FALSE(parsed);
    return parsed ? FrameFault{99} : parsed.error();
  };
  EXPECT_EQ(fault_with(12, {0x86, 0xDD}), FrameFault::kOtherProtocol);               // IPv6
  EXPECT_EQ(fault_with(12, {0x81, 0x00}), FrameFault::kOtherProtocol);               // a VLAN's tag
  EXPECT_EQ(fault_with(kEthernetBytes + 9, {6}), FrameFault::kOtherProtocol);        // TCP
  EXPECT_EQ(fault_with(kEthernetBytes + 6, {0x20, 0}), FrameFault::kOtherProtocol);  // a first fragment
  EXPECT_EQ(fault_with(kEthernetBytes + 6, {0, 1}), FrameFault::kOtherProtocol);     // a later one
  EXPECT_EQ(fault_with(kEthernetBytes, {0x55}), FrameFault::kMalformed);             // version 5
  EXPECT_EQ(fault_with(kEthernetBytes, {0x44}), FrameFault::kMalformed);             // a header of 16 bytes
  EXPECT_EQ(fault_with(kEthernetBytes + 2, {0, 19}), FrameFault::kMalformed);        // shorter than its header
  EXPECT_EQ(fault_with(kEthernetBytes + 2, {0xFF, 0xFF}), FrameFault::kMalformed);   // longer than the frame
  EXPECT_EQ(fault_with(kEthernetBytes + 24, {0, 7}), FrameFault::kMalformed);        // UDP shorter than its header
  EXPECT_EQ(fault_with(kEthernetBytes + 24, {0, 19}), FrameFault::kMalformed);       // longer than the packet
}

TEST(Arp, QuestionForSelfIsAnswered) {
  const auto seen = read_arp(kArpQuestion, kSwitch);
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->sender, kEthernetFramesWorker);
  EXPECT_TRUE(seen->asks_for_self);
  Bytes answer(kArpFrameBytes);
  build_arp_answer(kSwitch, seen->sender, answer);
  const Bytes golden = {0x02, 0, 0, 0, 0, 0x77, 0x02, 0, 0, 0, 0,    0x01, 0x08, 0x06,  //
                        0,    1, 8, 0, 6, 4,    0,    2,                                //
                        0x02, 0, 0, 0, 0, 0x01, 10,   0, 0, 1, 0x02, 0,    0,    0,    0, 0x77, 10, 0, 0, 7};
  EXPECT_EQ(answer, golden);
  const auto learned = read_arp(answer, kEthernetFramesWorker);
  ASSERT_TRUE(learned);
  EXPECT_EQ(learned->sender, kSwitch);
  EXPECT_FALSE(learned->asks_for_self);
}

TEST(Arp, OwnQuestionIsTheSameAsAnybodys) {
  Bytes question(kArpFrameBytes);
  build_arp_question(kEthernetFramesWorker, kSwitch.ip, question);
  EXPECT_EQ(question, kArpQuestion);
}

TEST(Arp, QuestionForAnotherHostOnlyTeachesItsSender) {
  Bytes question = kArpQuestion;
  question.back() = 2;
  const auto seen = read_arp(question, kSwitch);
  ASSERT_TRUE(seen);
  EXPECT_FALSE(seen->asks_for_self);
}

TEST(Arp, ImpossibleSenderAddressesAreNotLearned) {
  const auto with = [](size_t at, uint8_t value) {
    Bytes question = kArpQuestion;
    question[at] = value;
    return question;
  };
  EXPECT_FALSE(read_arp(with(kEthernetBytes + 8, 0x01), kSwitch));  // a multicast hardware address
  EXPECT_FALSE(read_arp(with(kEthernetBytes + 14, 224), kSwitch));  // a multicast address
  EXPECT_FALSE(read_arp(with(kEthernetBytes + 17, 1), kSwitch));    // our own address
  Bytes probe = kArpQuestion;                                       // 0.0.0.0: whether an address is free
  std::fill_n(probe.begin() + kEthernetBytes + 14, 4, uint8_t{0});
  EXPECT_FALSE(read_arp(probe, kSwitch));
}

TEST(Arp, EveryTruncationAndOtherKindsAreNoArp) {
  for (size_t bytes = 0; bytes < kArpQuestion.size(); ++bytes)
    EXPECT_FALSE(read_arp(ByteSpan(kArpQuestion).first(bytes), kSwitch)) << bytes;
  for (const size_t at : {12, 13, 14, 15, 16, 17, 18, 19, 20}) {
    Bytes question = kArpQuestion;
    question[at] ^= 0x40;
    EXPECT_FALSE(read_arp(question, kSwitch)) << at;
  }
  Bytes operation = kArpQuestion;
  operation[kEthernetBytes + 7] = 3;
  EXPECT_FALSE(read_arp(operation, kSwitch));
}

TEST(Echo, IsAnsweredWithItsOwnData) {
  for (const size_t data : {8, 9, 64, 1400}) {
    const Bytes request = echo_request(data);
    Bytes answer(2000);
    const auto bytes = answer_echo(request, kSwitch, answer);
    ASSERT_TRUE(bytes) << data;
    ASSERT_EQ(*bytes, request.size());
    answer.resize(*bytes);
    EXPECT_TRUE(std::ranges::equal(std::span(answer).first(6), kEthernetFramesWorker.mac));
    EXPECT_TRUE(std::ranges::equal(std::span(answer).subspan(6, 6), kSwitch.mac));
    const ByteSpan packet = ByteSpan(answer).subspan(kEthernetBytes);
    EXPECT_EQ(slow_checksum(packet.first(kIpv4Bytes)), 0);
    EXPECT_TRUE(std::ranges::equal(packet.subspan(12, 4), kSwitch.ip));
    EXPECT_TRUE(std::ranges::equal(packet.subspan(16, 4), kEthernetFramesWorker.ip));
    const ByteSpan icmp = packet.subspan(kIpv4Bytes);
    EXPECT_EQ(icmp[0], 0);
    EXPECT_EQ(slow_checksum(icmp), 0);
    EXPECT_TRUE(std::ranges::equal(icmp.subspan(4), ByteSpan(request).subspan(kEthernetBytes + kIpv4Bytes + 4)));
  }
}

TEST(Echo, NothingElseIsAnswered) {
  const Bytes request = echo_request(56);
  Bytes out(2000);
  ASSERT_TRUE(answer_echo(request, kSwitch, out));
  for (size_t bytes = 0; bytes < request.size(); ++bytes)
    EXPECT_FALSE(answer_echo(ByteSpan(request).first(bytes), kSwitch, out)) << bytes;
  EXPECT_FALSE(answer_echo(request, kEthernetFramesWorker, out)) << "sent to another host";
  EXPECT_FALSE(answer_echo(request, kSwitch, std::span(out).first(request.size() - 1))) << "no room";
  EXPECT_FALSE(answer_echo(ethernet_frames_udp_frame(payload_of(56)), kSwitch, out)) << "UDP";
  for (size_t at = kEthernetBytes + kIpv4Bytes; at < request.size(); ++at) {
    Bytes broken = request;
    broken[at] ^= 0x10;
    EXPECT_FALSE(answer_echo(broken, kSwitch, out)) << at;
  }
}

TEST(Echo, ItsOwnAnswerIsNotAnswered) {
  const Bytes request = echo_request(56);
  Bytes answer(2000);
  answer.resize(answer_echo(request, kSwitch, answer).value());
  Bytes out(2000);
  EXPECT_FALSE(answer_echo(answer, kEthernetFramesWorker, out));
}

}  // namespace
}  // namespace millrace::switch_agg
