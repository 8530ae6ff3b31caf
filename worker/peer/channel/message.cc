#include "worker/peer/channel/message.h"

#include <algorithm>
#include <string>

#include "kernels/base/bytes.h"

namespace millrace::peer {
namespace {

constexpr uint16_t kMagic = 0x504d;  // "MP"
constexpr uint8_t kVersion = 1;      ///< raised with every change of the bytes: protocol/wire/versions.md

/// The layout is DESIGN.md's, "Bytes".
struct Header {
  uint16_t magic = kMagic;
  uint8_t version = kVersion;
  uint8_t kind = 0;
  uint8_t form = 0;
  std::array<uint8_t, 3> reserved{};
  uint32_t collective = 0;
  uint32_t tag = 0;
  uint64_t signature = 0;
  uint64_t body_bytes = 0;
};
static_assert(sizeof(Header) == kMessageHeaderBytes);

}  // namespace

MessageHeader encode_header(const PeerMessage& message) {
  Header header;
  header.kind = static_cast<uint8_t>(message.kind);
  header.form = static_cast<uint8_t>(message.form);
  header.collective = message.collective;
  header.tag = message.tag;
  header.signature = message.signature;
  header.body_bytes = message.body.bytes.size();
  return std::bit_cast<MessageHeader>(header);
}

Result<DecodedHeader> decode_header(std::span<const uint8_t, kMessageHeaderBytes> bytes) {
  MessageHeader copy;
  std::ranges::copy(bytes, copy.begin());
  const auto header = std::bit_cast<Header>(copy);
  if (header.magic != kMagic) return fail(ErrorCode::kMalformed, "not a message of a peer");
  if (header.version != kVersion) {
    return fail(ErrorCode::kVersionMismatch, "a peer speaks version " + std::to_string(header.version) +
                                                 " of the protocol, this one version " + std::to_string(kVersion) +
                                                 ": run the same build on all ranks");
  }
  const bool known_kind = header.kind >= static_cast<uint8_t>(MessageKind::kData) &&
                          header.kind <= static_cast<uint8_t>(MessageKind::kAbort);
  const bool known_form = header.form <= static_cast<uint8_t>(BodyForm::kNumbers);
  if (!known_kind || !known_form || header.reserved != std::array<uint8_t, 3>{}) {
    return fail(ErrorCode::kMalformed, "a peer's message has a bad header");
  }
  DecodedHeader decoded;
  decoded.message.kind = static_cast<MessageKind>(header.kind);
  decoded.message.form = static_cast<BodyForm>(header.form);
  decoded.message.collective = header.collective;
  decoded.message.tag = header.tag;
  decoded.message.signature = header.signature;
  decoded.body_bytes = header.body_bytes;
  return decoded;
}

}  // namespace millrace::peer
