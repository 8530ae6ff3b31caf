#pragma once

#include <algorithm>
#include <cstdint>

#include "protocol/datagram/header.h"
#include "protocol/datagram/window/window_code.h"
#include "tests/fuzz/byte_source.h"
#include "tests/switch_agg/made_up_worker.h"

/// What fuzzers of the switch's packets draw: payloads that decode, in any codec, and headers that are nearly right.
namespace millrace::testing {

/// Returns any codecs that encode_window() accepts, except Bloom without values, which no peer may send.
inline protocol::WindowCodecs drawn_codecs(ByteSource& source) {
  protocol::WindowCodecs codecs;
  codecs.index = static_cast<protocol::WindowIndexCodec>(1 + source.below(5));
  codecs.value = static_cast<protocol::WindowValueCodec>(1 + source.below(4));
  return codecs;
}

/// Up to 12 of a window, now and then such as no sum of several fits i32 with.
inline Entries drawn_entries(ByteSource& source, uint32_t window_indices) {
  Entries entries;
  for (uint32_t count = 1 + source.below(12); count > 0; --count) {
    const int32_t magnitude = static_cast<int32_t>(source.byte() & 63) << (source.one_in(8) ? 24 : 0);
    const auto index = static_cast<uint16_t>((source.byte() * 5u) % window_indices);
    entries[index] = source.one_in(4) ? -magnitude : magnitude;
  }
  return entries;
}

/// Changes one field of an otherwise valid header. Leaves the lengths alone: the code that seals the packet sets them.
inline void change_field(ByteSource& source, protocol::DatagramHeader& header) {
  switch (source.below(14)) {
    case 0: header.flags ^= static_cast<uint8_t>(1u << source.below(8)); return;
    case 1: header.fragment = source.byte() % 17; return;
    case 2: header.turn += source.number(4); return;
    case 3: header.epoch = static_cast<uint32_t>(source.number(4)); return;
    case 4: header.step = static_cast<uint32_t>(source.number(4)); return;
    case 5: header.window = static_cast<uint32_t>(source.number(8)); return;
    case 6: header.next = static_cast<uint32_t>(source.number(8)); return;
    case 7: header.slot = static_cast<uint16_t>(source.number(4)); return;
    case 8: header.entries = static_cast<uint16_t>(header.entries + source.byte() - 128); return;
    case 9: header.index_codec = source.byte() % 7; return;
    case 10: header.value_codec = source.byte() % 7; return;
    case 11: header.exponent = static_cast<int8_t>(source.byte()); return;
    case 12: header.worker = static_cast<uint16_t>(source.number(4)); return;
    default: header.turn -= 1 + source.below(2); return;
  }
}

/// Bits of a payload that decoded.
inline void change_bytes(ByteSource& source, std::span<uint8_t> bytes) {
  if (bytes.empty()) return;
  bytes[source.byte() % bytes.size()] ^= source.byte();
}

}  // namespace millrace::testing
