#include "switch_agg/slot/kept_result.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/check.h"

namespace millrace::switch_agg {

using protocol::DatagramHeader;
using protocol::kDatagramHeaderBytes;
using protocol::kDatagramMacBytes;
using protocol::kFragmentsMax;
namespace flag = protocol::datagram_flag;

namespace {

/// Bytes that an extension (of a RESULT, of a group's part) shares with other fragments'.
constexpr size_t kSharedExtensionBytes = protocol::kResultTermsBytes;

/// Bytes of an entry under the codes that entries mostly take.
constexpr size_t kEntryBytes = 3;

/// The least payload that encode_window() takes.
constexpr size_t kPayloadBytesMin = 64;
/// Marks of the least number of entries: each rack's workers and one word.
constexpr size_t kMarkBytesMin = protocol::RetainedMarks::record_bytes(1);
static_assert(kDatagramHeaderBytes + protocol::kResultTermsBytes + protocol::kSwitchWorkersMax * kMarkBytesMin +
                      kPayloadBytesMin + kDatagramMacBytes <=
                  kFragmentBytesMin,
              "the shortest fragments have room for the marks of all racks");

/// Says how many entries a fragment of these bytes (extension and payload) is offered, and the bytes reserved for their
/// marks.
struct Share {
  size_t entries = SIZE_MAX;
  size_t mark_bytes = 0;
};

Share share_for(size_t bytes, size_t racks) {
  if (racks == 0) return {};
  // An extension has 255 words.
  const size_t words_most = (255 - protocol::kResultTermsBytes / 8) / racks - 1;
  const size_t wanted = (bytes - protocol::kResultTermsBytes - 8 * racks) / (64 * kEntryBytes + 8 * racks) + 1;
  const size_t words_fit = (bytes - protocol::kResultTermsBytes - kPayloadBytesMin) / (8 * racks) - 1;
  const auto entries = static_cast<uint32_t>(64 * std::min({words_most, wanted, words_fit}));
  const Share share{.entries = entries, .mark_bytes = racks * protocol::RetainedMarks::record_bytes(entries)};
  MILLRACE_CHECK(entries > 0 && protocol::kResultTermsBytes + share.mark_bytes + kPayloadBytesMin <= bytes, bytes,
                 racks);
  return share;
}

/// Writes what racks kept of these entries; returns the bytes.
size_t put_marks(std::span<const RackEntries> racks, std::span<const uint16_t> indices, std::span<uint8_t> room) {
  size_t at = 0;
  const auto put = [&](uint64_t word) {
    std::memcpy(room.subspan(at).first<sizeof(word)>().data(), &word, sizeof(word));
    at += sizeof(word);
  };
  for (const RackEntries& rack : racks) {
    put(rack.workers);
    for (size_t entry = 0; entry < indices.size();) {
      uint64_t word = 0;
      for (size_t bit = 0; bit < 64 && entry < indices.size(); ++bit, ++entry) {
        word |= (rack.indices[indices[entry] / 64] >> (indices[entry] % 64) & 1) << bit;
      }
      put(word);
    }
  }
  return at;
}

}  // namespace

void KeptResult::begin(uint64_t turn) {
  turn_ = turn;
  have_ = 0;
  count_ = 0;
  whole_ = false;
}

DatagramHeader KeptResult::header(uint32_t fragment) const {
  DatagramHeader header;
  std::memcpy(&header, memory_.data() + fragment * fragment_bytes_max_, sizeof(header));
  return header;
}

std::span<const uint8_t> KeptResult::body(uint32_t fragment) const {
  const size_t bytes = datagram_bytes(header(fragment)) - kDatagramHeaderBytes - kDatagramMacBytes;
  return std::span<const uint8_t>(memory_).subspan(fragment * fragment_bytes_max_ + kDatagramHeaderBytes, bytes);
}

uint32_t KeptResult::encode(const DatagramHeader& header, const protocol::ResultTerms& terms,
                            const protocol::WindowCodecs& codecs, uint32_t window_indices, const Sums& sums) {
  const uint32_t left_out = encode_from(0, header, terms, codecs, window_indices, sums);
  if (left_out == 0) return 0;
  // Multiples of the golden ratio spread evenly for any number of entries [Knuth98, 6.4].
  const uint64_t place = uint64_t{header.step} * 0x9E37'79B9 % 0x1'0000'0000;
  return encode_from(place * sums.indices.size() >> 32, header, terms, codecs, window_indices, sums);
}

uint32_t KeptResult::encode_from(size_t first, const DatagramHeader& header, const protocol::ResultTerms& terms,
                                 const protocol::WindowCodecs& codecs, uint32_t window_indices, const Sums& sums) {
  begin(header.turn);
  const size_t bytes = fragment_bytes_max_ - kDatagramHeaderBytes - kDatagramMacBytes;
  const Share share = share_for(bytes, sums.racks.size());
  const size_t room = bytes - protocol::kResultTermsBytes - share.mark_bytes;
  const size_t even = std::min<size_t>(share.entries, protocol::even_share(sums.indices, codecs, room));
  const size_t all = sums.indices.size();
  size_t at = first;
  size_t end = all;  // of this lap: a fragment does not go round the window's end
  size_t done = 0;
  uint32_t fragment = 0;
  DatagramHeader written;
  do {
    std::span<uint8_t> packet = this->packet(fragment);
    size_t begins = kDatagramHeaderBytes + put_result_terms(terms, packet.subspan(kDatagramHeaderBytes));
    written = header;
    written.fragment = static_cast<uint8_t>(fragment);
    if (done < all) {
      const size_t offered = std::min(end - at, even);
      const protocol::WindowEntries rest{sums.indices.subspan(at, offered), sums.values.subspan(at, offered)};
      const std::span<uint8_t> payload = packet.subspan(
          begins + share.mark_bytes, fragment_bytes_max_ - begins - share.mark_bytes - kDatagramMacBytes);
      const uint32_t taken = encode_window(rest, codecs, window_indices, written, payload, sums.decoded);
      MILLRACE_CHECK(taken > 0, at, end, fragment_bytes_max_);
      const size_t marks = put_marks(sums.racks, sums.indices.subspan(at, taken), packet.subspan(begins));
      if (marks != share.mark_bytes)
        std::memmove(packet.data() + begins + marks, payload.data(), written.payload_bytes);
      begins += marks;
      at += taken;
      done += taken;
      if (at == all && done < all) {
        at = 0;
        end = first;
      }
    } else {
      begins += put_marks(sums.racks, {}, packet.subspan(begins));
    }
    written.extension_words = static_cast<uint8_t>((begins - kDatagramHeaderBytes) / 8);
    put_header(written, packet);
    ++fragment;
  } while (done < all && fragment < kFragmentsMax);
  written.flags |= flag::kLast;
  put_header(written, packet(fragment - 1));
  count_ = fragment;
  have_ = (uint32_t{1} << fragment) - 1;
  whole_ = true;
  return static_cast<uint32_t>(all - done);
}

KeptResult::Kept KeptResult::keep(const DatagramHeader& header, ByteSpan extension, ByteSpan payload) {
  const uint32_t fragment = header.fragment;
  if (header.turn != turn_ || whole_ || (have_ >> fragment & 1) != 0) return Kept::kRefused;
  if (datagram_bytes(header) > fragment_bytes_max_) return Kept::kRefused;
  const bool last = (header.flags & flag::kLast) != 0;
  if (last ? (count_ != 0 || have_ >> fragment != 0) : (count_ != 0 && fragment >= count_)) return Kept::kRefused;
  if (have_ != 0) {
    const auto other_at = static_cast<uint32_t>(__builtin_ctz(have_));
    const DatagramHeader other = this->header(other_at);
    const uint8_t shared = flag::kFin | flag::kVoid | flag::kReselected | flag::kEmpty;
    if (other.step != header.step || other.window != header.window || other.next != header.next ||
        other.exponent != header.exponent || ((other.flags ^ header.flags) & shared) != 0 ||
        !std::ranges::equal(body(other_at).first(kSharedExtensionBytes), extension.first(kSharedExtensionBytes))) {
      return Kept::kRefused;
    }
  }
  const std::span<uint8_t> packet = this->packet(fragment);
  put_header(header, packet);
  std::memcpy(packet.data() + kDatagramHeaderBytes, extension.data(), extension.size());
  if (!payload.empty())
    std::memcpy(packet.data() + kDatagramHeaderBytes + extension.size(), payload.data(), payload.size());
  have_ |= uint32_t{1} << fragment;
  if (last) count_ = fragment + 1;
  whole_ = count_ != 0 && have_ == (uint32_t{1} << count_) - 1;
  return whole_ ? Kept::kWhole : Kept::kTaken;
}

}  // namespace millrace::switch_agg
