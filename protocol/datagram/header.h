#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <span>

#include "kernels/base/buffer.h"

/// The datagram of the switch protocol (S2; bytes in protocol/wire/datagrams.md):
///
///     header 64 | extension 8 x n | payload | MAC 16        little-endian, one UDP datagram
///
/// Parsing looks at lengths before any field, copies nothing and allocates nothing. key.h decides whether a datagram is
/// authentic, window_code.h decodes its payload.
namespace millrace::protocol {

/// High half: Millrace; low half: the version (protocol/wire/versions.md).
inline constexpr uint8_t kDatagramMagic = 0xA1;
inline constexpr size_t kDatagramHeaderBytes = 64;
inline constexpr size_t kDatagramMacBytes = 16;
inline constexpr size_t kFragmentsMax = 16;
inline constexpr uint32_t kSlotsMax = 128;
/// The most lanes of a job at its aggregator: each lane has a job number of its own.
inline constexpr uint32_t kLanesMax = 16;
inline constexpr uint32_t kSwitchWorkersMax = 64;  ///< live workers of an epoch: one bit each of a u64
inline constexpr uint32_t kNoWindow = 0xFFFFFFFF;
inline constexpr uint16_t kAllWorkers = 0xFFFF;   ///< header.worker of datagrams to all workers of a job
inline constexpr uint16_t kRackWorkers = 0x8000;  ///< rack r speaks to the shard as worker kRackWorkers | r
/// The longest datagram: a payload of 9,000 bytes of IP, less IPv4's and UDP's headers.
inline constexpr size_t kDatagramBytesMax = 8972;

enum class DatagramType : uint8_t {
  kChallengeRequest = 1,
  kChallenge = 2,
  kHello = 3,
  kWelcome = 4,
  kFetch = 5,
  kKept = 6,
  kContribution = 7,
  kResult = 8,
  kPartial = 9,
  kReceipt = 10,  ///< not used (S2.7)
  kNotice = 11,
};

namespace datagram_flag {
inline constexpr uint8_t kLast = 1;
inline constexpr uint8_t kEmpty = 2;
inline constexpr uint8_t kDense = 4;
inline constexpr uint8_t kFlush = 8;
inline constexpr uint8_t kFin = 16;
inline constexpr uint8_t kVoid = 32;
inline constexpr uint8_t kReselected = 64;
inline constexpr uint8_t kUnknown = 128;  ///< of no version yet: refused
}  // namespace datagram_flag

/// The fixed part of a datagram, in the order of its bytes.
struct DatagramHeader {
  uint8_t magic = kDatagramMagic;
  DatagramType type = DatagramType::kNotice;
  uint8_t flags = 0;
  uint8_t fragment = 0;
  uint32_t job = 0;
  uint64_t incarnation = 0;
  uint64_t sequence = 0;  ///< fresh for every transmission under a key, from 1; 0: signed with the handshake key
  uint64_t turn = 0;
  uint32_t epoch = 0;
  uint32_t step = 0;
  uint32_t window = 0;
  uint32_t next = kNoWindow;
  uint16_t worker = 0;
  uint16_t slot = 0;
  uint16_t entries = 0;
  uint16_t payload_bytes = 0;
  uint8_t index_codec = 0;
  uint8_t value_codec = 0;
  int8_t exponent = 0;
  uint8_t extension_words = 0;  ///< bytes / 8
  uint32_t reserved = 0;        ///< must be 0

  bool operator==(const DatagramHeader&) const = default;
};
static_assert(sizeof(DatagramHeader) == kDatagramHeaderBytes);

/// Why bytes are no valid datagram. Each fault has its own counter at the process that drops it.
enum class DatagramFault : uint8_t {
  kTooShort,
  kWrongMagic,
  kUnknownType,
  kWrongLength,  ///< header, extension, payload and MAC do not add up to the datagram, or to too much
  kOutOfBounds,  ///< a field beyond its limit (flags, fragment, slot, reserved)
};

/// A datagram taken apart; its spans point into the packet.
struct Datagram {
  DatagramHeader header;
  ByteSpan extension;
  ByteSpan payload;
  ByteSpan signed_bytes;  ///< everything before the MAC
  ByteSpan mac;
};

/// Reads a packet that may be hostile.
/// Threads  reentrant.
std::expected<Datagram, DatagramFault> parse_datagram(ByteSpan packet);

/// Where the job's number lies in a datagram, as u32, little-endian.
inline constexpr size_t kJobNumberAt = 4;

/// Returns the job number in a packet; the rest of the packet is not looked at.
std::optional<uint32_t> job_number_of(ByteSpan packet);

/// Writes the header into the first 64 bytes of `packet`.
/// REQUIRES: packet.size() >= 64.
void put_header(const DatagramHeader& header, std::span<uint8_t> packet);

/// Returns the bytes of the whole datagram that a header describes.
constexpr size_t datagram_bytes(const DatagramHeader& header) {
  return kDatagramHeaderBytes + size_t{header.extension_words} * 8 + header.payload_bytes + kDatagramMacBytes;
}

}  // namespace millrace::protocol
