// The code writes and reads the worked example of protocol/wire/datagrams.md.
#include <gtest/gtest.h>

#include <numeric>

#include "protocol/datagram/key.h"
#include "tests/protocol/datagram/window_cases.h"
#include "tests/protocol/document.h"

namespace millrace::protocol {
namespace {

JobKey example_job_key() {
  JobKey key;
  std::iota(key.begin(), key.end(), uint8_t{0});
  return key;
}

Nonce window_format_nonce_of(uint8_t first) {
  Nonce nonce;
  std::iota(nonce.begin(), nonce.end(), first);
  return nonce;
}

KeyScope window_format_example_scope() {
  return {.use = KeyUse::kWorkerToAggregator,
          .job = 7,
          .incarnation = 0x1122334455667788,
          .worker = 3,
          .worker_nonce = window_format_nonce_of(0x20),
          .aggregator_nonce = window_format_nonce_of(0x40)};
}

DatagramHeader window_format_example_header() {
  DatagramHeader header;
  header.type = DatagramType::kContribution;
  header.flags = datagram_flag::kLast;
  header.fragment = 1;
  header.job = 7;
  header.incarnation = 0x1122334455667788;
  header.sequence = 9;
  header.turn = 5;
  header.epoch = 1;
  header.step = 4;
  header.window = 2;
  header.next = 6;
  header.worker = 3;
  header.slot = 2;
  header.exponent = -20;
  return header;
}

const Entries kExample{{100, 109, 300}, {5, -2, 7}};

TEST(WireFormatDocument, TheCodeWritesAndReadsTheWorkedDatagram) {
  const ByteBuffer documented = documented_bytes("datagram-example");
  DatagramHeader header = window_format_example_header();
  ByteBuffer packet(200);
  std::vector<int32_t> decoded(3);
  const uint32_t taken = encode_window(kExample.view(), {}, 1024, header, std::span(packet).subspan(64), decoded);
  ASSERT_EQ(taken, 3u);
  packet.resize(DatagramKey(example_job_key(), window_format_example_scope()).seal(header, packet));
  EXPECT_EQ(std::vector<int>(packet.begin(), packet.end()), std::vector<int>(documented.begin(), documented.end()));

  const auto datagram = parse_datagram(documented);
  ASSERT_TRUE(datagram);
  EXPECT_EQ(datagram->header, header);
  EXPECT_TRUE(DatagramKey(example_job_key(), window_format_example_scope()).verify(*datagram));
  EXPECT_EQ(Decoder().decode(datagram->header, datagram->payload, 1024), kExample);
}

TEST(WireFormatDocument, TheCodeComputesTheWorkedChallenge) {
  const ByteBuffer documented = documented_bytes("challenge-example");
  const Nonce nonce = challenge_nonce(example_job_key(), 7, 0x1122334455667788, 3, window_format_nonce_of(0x20), 1);
  EXPECT_EQ(std::vector<int>(nonce.begin(), nonce.end()), std::vector<int>(documented.begin(), documented.end()));
}

TEST(WireFormatDocument, TheCodeComputesTheWorkedHandshakeMac) {
  const ByteBuffer documented = documented_bytes("handshake-mac-example");
  const ByteBuffer bytes = {1, 2, 3};
  const Mac mac = DatagramKey(example_job_key(), KeyScope::handshake(7, 3)).sign(bytes, 0);
  EXPECT_EQ(std::vector<int>(mac.begin(), mac.end()), std::vector<int>(documented.begin(), documented.end()));
}

}  // namespace
}  // namespace millrace::protocol
