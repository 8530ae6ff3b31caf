#include "worker/peer/transport/tcp_frame.h"

#include <algorithm>
#include <bit>

namespace millrace::peer {
namespace {

constexpr std::array<uint8_t, 8> kTcpMagic{'M', 'I', 'L', 'L', 'P', 'E', 'E', 'R'};
constexpr uint16_t kTcpVersion = 3;  ///< raised with every change of the bytes: protocol/wire/versions.md

/// The layout is DESIGN.md's, "TCP".
struct TcpFrameLayout {
  std::array<uint8_t, 8> magic = kTcpMagic;
  uint16_t version = kTcpVersion;
  uint8_t kind = 0;
  uint8_t refusal = 0;
  uint32_t size = 0;
  uint64_t group = 0;
  uint32_t from = 0;
  uint32_t to = 0;
};
static_assert(sizeof(TcpFrameLayout) == kTcpFrameBytes);

}  // namespace

TcpFrameBytes encode_tcp_frame(const TcpFrame& frame) {
  TcpFrameLayout layout;
  layout.kind = static_cast<uint8_t>(frame.kind);
  layout.refusal = static_cast<uint8_t>(frame.refusal);
  layout.size = frame.size;
  layout.group = frame.group;
  layout.from = frame.from;
  layout.to = frame.to;
  return std::bit_cast<TcpFrameBytes>(layout);
}

std::expected<TcpFrame, TcpFrameFault> decode_tcp_frame(std::span<const uint8_t, kTcpFrameBytes> bytes) {
  TcpFrameBytes copy;
  std::ranges::copy(bytes, copy.begin());
  const auto layout = std::bit_cast<TcpFrameLayout>(copy);
  if (layout.magic != kTcpMagic) return std::unexpected(TcpFrameFault::kMagic);
  if (layout.version != kTcpVersion) return std::unexpected(TcpFrameFault::kVersion);
  const bool known_kind = layout.kind >= static_cast<uint8_t>(TcpFrameKind::kHello) &&
                          layout.kind <= static_cast<uint8_t>(TcpFrameKind::kMet);
  if (!known_kind || layout.refusal > static_cast<uint8_t>(TcpRefusal::kOtherKey)) {
    return std::unexpected(TcpFrameFault::kMalformed);
  }
  return TcpFrame{.kind = static_cast<TcpFrameKind>(layout.kind),
                  .refusal = static_cast<TcpRefusal>(layout.refusal),
                  .size = layout.size,
                  .group = layout.group,
                  .from = layout.from,
                  .to = layout.to};
}

Error error_of(TcpRefusal refusal, const std::string& refuser, const std::string& self) {
  switch (refusal) {
    case TcpRefusal::kVersion:
      return {ErrorCode::kVersionMismatch, refuser + "is another version: run the same build on all ranks"};
    case TcpRefusal::kRank:
      return {ErrorCode::kJobMismatch, refuser + "has another number, or does not await " + self +
                                           ": give all ranks one list of addresses, and each its own place in it"};
    case TcpRefusal::kTaken:
      return {ErrorCode::kJobMismatch,
              refuser + "is connected to a " + self + " already: two processes have this number"};
    case TcpRefusal::kNeedsKey:
      return {ErrorCode::kUnauthenticated,
              refuser + "takes ranks with the group's key alone, and " + self + " has none: give it key_file, too"};
    case TcpRefusal::kHasNoKey:
      return {ErrorCode::kUnauthenticated,
              refuser + "has no key, and " + self + " has one: give all ranks the same key_file, or none"};
    case TcpRefusal::kOtherKey:
      return {ErrorCode::kUnauthenticated,
              refuser + "has another key than " + self + ": give all ranks of the group the same key_file"};
    case TcpRefusal::kGroup:
    case TcpRefusal::kNone: break;
  }
  return {ErrorCode::kJobMismatch,
          refuser + "belongs to another group, or has another list of addresses: both are equal on all ranks"};
}

TcpRefusal judge_hello(const TcpFrame& hello, const TcpIdentity& self) {
  if (hello.group != self.group || hello.size != self.size) return TcpRefusal::kGroup;
  if (hello.to != self.rank || hello.from <= self.rank || hello.from >= self.size) return TcpRefusal::kRank;
  return TcpRefusal::kNone;
}

}  // namespace millrace::peer
