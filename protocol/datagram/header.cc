#include "protocol/datagram/header.h"

#include <bit>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "kernels/base/check.h"

namespace millrace::protocol {

// The struct is the wire: its members lie as in protocol/wire/datagrams.md, and the machine is little-endian.
static_assert(std::endian::native == std::endian::little && std::is_trivially_copyable_v<DatagramHeader>);
static_assert(offsetof(DatagramHeader, job) == kJobNumberAt && offsetof(DatagramHeader, incarnation) == 8);
static_assert(offsetof(DatagramHeader, sequence) == 16 && offsetof(DatagramHeader, turn) == 24);
static_assert(offsetof(DatagramHeader, epoch) == 32 && offsetof(DatagramHeader, next) == 44);
static_assert(offsetof(DatagramHeader, worker) == 48 && offsetof(DatagramHeader, payload_bytes) == 54);
static_assert(offsetof(DatagramHeader, index_codec) == 56 && offsetof(DatagramHeader, exponent) == 58);
static_assert(offsetof(DatagramHeader, reserved) == 60);

namespace {

bool is_known(DatagramType type) { return type >= DatagramType::kChallengeRequest && type <= DatagramType::kNotice; }

bool is_within_bounds(const DatagramHeader& header) {
  return (header.flags & datagram_flag::kUnknown) == 0 && header.fragment < kFragmentsMax && header.slot < kSlotsMax &&
         header.reserved == 0;
}

}  // namespace

std::expected<Datagram, DatagramFault> parse_datagram(ByteSpan packet) {
  if (packet.size() < kDatagramHeaderBytes + kDatagramMacBytes) return std::unexpected(DatagramFault::kTooShort);
  DatagramHeader header;
  std::memcpy(&header, packet.data(), kDatagramHeaderBytes);
  if (header.magic != kDatagramMagic) return std::unexpected(DatagramFault::kWrongMagic);
  if (!is_known(header.type)) return std::unexpected(DatagramFault::kUnknownType);
  // Bytes may follow a datagram; they are ignored: all datagrams of one piece for the kernel have one length.
  const size_t bytes = datagram_bytes(header);
  if (packet.size() < bytes || bytes > kDatagramBytesMax) return std::unexpected(DatagramFault::kWrongLength);
  if (!is_within_bounds(header)) return std::unexpected(DatagramFault::kOutOfBounds);
  const size_t extension_bytes = size_t{header.extension_words} * 8;
  return std::expected<Datagram, DatagramFault>(
      std::in_place, header, packet.subspan(kDatagramHeaderBytes, extension_bytes),
      packet.subspan(kDatagramHeaderBytes + extension_bytes, header.payload_bytes),
      packet.first(bytes - kDatagramMacBytes), packet.subspan(bytes - kDatagramMacBytes, kDatagramMacBytes));
}

std::optional<uint32_t> job_number_of(ByteSpan packet) {
  uint32_t job = 0;
  if (packet.size() < kJobNumberAt + sizeof job) return std::nullopt;
  std::memcpy(&job, packet.data() + kJobNumberAt, sizeof job);
  return job;
}

void put_header(const DatagramHeader& header, std::span<uint8_t> packet) {
  MILLRACE_CHECK(packet.size() >= kDatagramHeaderBytes, packet.size());
  std::memcpy(packet.data(), &header, kDatagramHeaderBytes);
}

}  // namespace millrace::protocol
