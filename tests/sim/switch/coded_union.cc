#include "tests/sim/switch/coded_union.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <vector>

#include "protocol/datagram/header.h"
#include "protocol/datagram/window/window_code.h"

namespace millrace::testing {
namespace {

constexpr size_t kPartialHeaderBytes = protocol::kDatagramHeaderBytes + 24 + protocol::kDatagramMacBytes;

struct Coded {
  uint64_t codes = 0;
  uint64_t packets = 0;
};

Coded code(const std::map<uint16_t, int64_t>& sum, uint32_t window_indices, size_t room) {
  std::vector<uint16_t> indices;
  std::vector<int32_t> values;
  bool fits = true;
  for (const auto& [index, value] : sum) {
    // A sum of 0 is sent too: an index that is not in the result goes back to its workers.
    indices.push_back(index);
    values.push_back(static_cast<int32_t>(value));
    fits = fits && std::abs(value) <= std::numeric_limits<int16_t>::max();
  }
  const protocol::WindowCodecs codecs{
      .index = protocol::WindowIndexCodec::kGap,
      .value = fits ? protocol::WindowValueCodec::kFixed16 : protocol::WindowValueCodec::kFixed32};
  std::vector<uint8_t> payload(room);
  std::vector<int32_t> decoded(indices.size());
  Coded all;
  for (size_t at = 0; at < indices.size(); ++all.packets) {
    protocol::DatagramHeader header;
    at += encode_window({std::span(indices).subspan(at), std::span(values).subspan(at)}, codecs, window_indices, header,
                        payload, decoded);
    all.codes += header.payload_bytes;
  }
  all.packets = std::max<uint64_t>(all.packets, 1);
  return all;
}

}  // namespace

void CodedUnion::take(uint32_t rack, ByteSpan packet, uint32_t window_indices) {
  const auto datagram = protocol::parse_datagram(packet);
  if (!datagram || datagram->header.type != protocol::DatagramType::kContribution) return;
  const protocol::DatagramHeader& header = datagram->header;
  const Turn turn{rack, header.slot, header.turn};
  if (!seen_.insert({turn, {header.worker, header.fragment}}).second) return;
  std::map<uint16_t, int64_t>& sum = sums_[turn];
  std::vector<uint16_t> indices(protocol::kFragmentEntriesMax);
  std::vector<int32_t> values(protocol::kFragmentEntriesMax);
  const auto count = decode_window(header, datagram->payload, window_indices, {indices, values});
  for (uint32_t i = 0; count && i < *count; ++i) sum[indices[i]] += values[i];
}

CodedUnion::Bytes CodedUnion::bytes(uint32_t window_indices, uint32_t packet_bytes) const {
  Bytes all;
  for (const auto& [turn, sum] : sums_) {
    const Coded whole = code(sum, window_indices, protocol::kDatagramBytesMax);
    const Coded packed = code(sum, window_indices, packet_bytes - kPartialHeaderBytes);
    ++all.sums;
    all.entries += sum.size();
    all.codes += whole.codes;
    all.packets += packed.codes + packed.packets * kPartialHeaderBytes;
  }
  return all;
}

}  // namespace millrace::testing
