// Feeds hostile bytes to the Ethernet frame code, with corrected checksums so that they pass the first check. A parsed
// packet lies inside the frame. Answers fit and can be parsed. A frame is never an answer to itself.
#include <array>
#include <span>
#include <vector>

#include "kernels/base/check.h"
#include "switch_agg/packet_io/dpdk/ethernet_frames.h"

namespace {

using millrace::switch_agg::kEthernetBytes;
using millrace::switch_agg::kIpv4Bytes;

/// Of [from, to), into its bytes `at` and `at` + 1.
void put_checksum(std::vector<uint8_t>& frame, size_t from, size_t to, size_t at) {
  if (frame.size() < to || to < from + at + 2) return;
  const std::span<uint8_t> bytes = std::span(frame).subspan(from, to - from);
  bytes[at] = bytes[at + 1] = 0;
  const uint16_t sum = millrace::switch_agg::internet_checksum(millrace::switch_agg::internet_sum(bytes));
  bytes[at] = static_cast<uint8_t>(sum >> 8);
  bytes[at + 1] = static_cast<uint8_t>(sum);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using millrace::switch_agg::kArpFrameBytes;
  using millrace::switch_agg::kUdpHeadersBytes;
  using millrace::switch_agg::WireAddress;
  std::vector<uint8_t> mended(data, data + size);
  put_checksum(mended, kEthernetBytes, kEthernetBytes + kIpv4Bytes, 10);
  if (size > kEthernetBytes + 9 && data[kEthernetBytes + 9] == 1)
    put_checksum(mended, kEthernetBytes + kIpv4Bytes, size, 2);
  const millrace::ByteSpan frame(mended);
  const WireAddress self = {{0x02, 0, 0, 0, 0, 0x01}, {10, 0, 0, 1}};
  if (const auto udp = millrace::switch_agg::parse_udp_frame(frame)) {
    MILLRACE_CHECK(udp->payload.data() >= frame.data() + kUdpHeadersBytes);
    MILLRACE_CHECK(udp->payload.data() + udp->payload.size() <= frame.data() + size);
  }
  if (const auto arp = read_arp(frame, self)) {
    std::array<uint8_t, kArpFrameBytes> answer;
    build_arp_answer(self, arp->sender, answer);
    const auto back = read_arp(answer, arp->sender);
    MILLRACE_CHECK(back.has_value() && back->sender == self);
    MILLRACE_CHECK(!back->asks_for_self);
  }
  std::array<uint8_t, 2048> out;
  if (const auto bytes = answer_echo(frame, self, out)) {
    MILLRACE_CHECK(*bytes <= size && *bytes <= out.size());
    std::array<uint8_t, 2048> again;
    MILLRACE_CHECK(!answer_echo(millrace::ByteSpan(out).first(*bytes), self, again));
  }
  return 0;
}
