// Feeds hostile bytes to the datagram code: header, extension, payload. Decoded entries are within their bounds.
// Encoded again, they decode to the values that the sender announced.
#include <algorithm>
#include <array>

#include "kernels/base/check.h"
#include "protocol/datagram/extensions.h"
#include "protocol/datagram/window/window_code.h"

namespace millrace::protocol {
namespace {

struct Room {
  std::array<uint16_t, kFragmentEntriesMax> indices;
  std::array<int32_t, kFragmentEntriesMax> values;
  std::array<int32_t, kFragmentEntriesMax> decoded;
  WindowRoom view() { return {indices, values}; }
};

/// Only a result's terms have something behind them: what racks kept, which read_marks() reads.
template <typename Terms>
bool may_have_rest(const Terms&) {
  return false;
}
bool may_have_rest(const ResultTerms& terms) { return terms.selected != 0; }

/// Gives the extension to each reader, regardless of the type in the header.
void read_extensions(ByteSpan extension) {
  std::array<uint8_t, kExtensionBytesMax> room;
  const auto check = [&](const auto& read, const auto& put) {
    if (!read) return;
    const size_t bytes = put(*read, room);
    const ByteSpan rest = extension.subspan(bytes);
    MILLRACE_CHECK(std::equal(extension.begin(), rest.begin(), room.begin(), room.begin() + bytes), bytes);
    MILLRACE_CHECK(rest.empty() || may_have_rest(*read), rest.size());
  };
  check(read_challenge_request(extension), put_challenge_request);
  check(read_challenge(extension), put_challenge);
  check(read_hello(extension), put_hello);
  check(read_welcome(extension), put_welcome);
  check(read_result_terms(extension), put_result_terms);
  check(read_partial_terms(extension), put_partial_terms);
  check(read_notice(extension), put_notice);
}

/// What racks kept: of as many entries as a header may claim.
void read_marks(ByteSpan extension, uint32_t entries) {
  const auto marks = RetainedMarks::read(extension, entries);
  if (!marks) return;
  uint64_t named = 0;
  for (size_t rack = 0; rack < marks->racks(); ++rack) {
    named |= marks->workers(rack);
    for (uint32_t entry = 0; entry < entries; ++entry) (void)marks->is_retained(rack, entry);
  }
  MILLRACE_CHECK(named == read_result_terms(extension)->selected, named);
}

void check_bounds(const Room& room, uint32_t count, uint32_t window) {
  for (uint32_t i = 0; i < count; ++i) {
    MILLRACE_CHECK(room.indices[i] < window, i, room.indices[i], window);
    MILLRACE_CHECK(i == 0 || room.indices[i - 1] < room.indices[i], i, room.indices[i]);
  }
}

/// Sends the decoded entries under another pair of codecs, into as much room as there was.
void send_again(const Room& sent, uint32_t count, const DatagramHeader& from, uint32_t window) {
  static Room back;
  static std::array<uint8_t, kDatagramBytesMax> payload;
  const WindowCodecs codecs{static_cast<WindowIndexCodec>(1 + from.step % 5),
                            static_cast<WindowValueCodec>(1 + from.epoch % 4),
                            static_cast<WindowRounding>(1 + from.turn % 2), RandomKey::from(from.incarnation)};
  const auto room = std::span(payload).first(64 + from.window % (payload.size() - 64));
  for (uint32_t begin = 0; begin < count;) {
    DatagramHeader header;
    const WindowEntries rest{std::span(sent.indices).subspan(begin, count - begin),
                             std::span(sent.values).subspan(begin, count - begin)};
    const uint32_t taken = encode_window(rest, codecs, window, header, room, back.decoded);
    MILLRACE_CHECK(taken >= 1 && taken <= count - begin && header.payload_bytes <= room.size(), taken);
    const auto decoded = decode_window(header, room.first(header.payload_bytes), window, back.view());
    MILLRACE_CHECK(decoded && *decoded == taken, taken);
    for (uint32_t i = 0; i < taken; ++i) {
      MILLRACE_CHECK(back.indices[i] == rest.indices[i], i);
      MILLRACE_CHECK(back.values[i] == back.decoded[i], i, back.values[i], back.decoded[i]);
    }
    begin += taken;
  }
}

void fuzz(ByteSpan bytes) {
  const ByteBuffer exact(bytes.begin(), bytes.end());  // the sanitizer sees a read behind the end
  const auto datagram = parse_datagram(exact);
  if (!datagram) return;
  // Bytes may follow the datagram and are ignored: the datagrams of one sending have one length.
  const size_t said = datagram_bytes(datagram->header);
  MILLRACE_CHECK(said <= exact.size(), said, exact.size());
  const auto alone = parse_datagram(ByteSpan(exact).first(said));
  MILLRACE_CHECK(alone && std::ranges::equal(alone->signed_bytes, datagram->signed_bytes), said);
  MILLRACE_CHECK(std::ranges::equal(alone->payload, datagram->payload) &&
                 std::ranges::equal(alone->mac, datagram->mac));
  read_extensions(datagram->extension);
  read_marks(datagram->extension, datagram->header.entries);
  static Room room;
  for (const uint32_t window : {kWindowIndicesMax, 4096u, 64u}) {
    const ByteBuffer payload(datagram->payload.begin(), datagram->payload.end());
    const auto count = decode_window(datagram->header, payload, window, room.view());
    if (!count) continue;
    MILLRACE_CHECK(*count <= datagram->header.entries, *count);
    check_bounds(room, *count, window);
    send_again(room, *count, datagram->header, window);
  }
}

}  // namespace
}  // namespace millrace::protocol

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  millrace::protocol::fuzz({data, size});
  return 0;
}
