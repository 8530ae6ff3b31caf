#pragma once

#include <array>
#include <cstdint>
#include <expected>
#include <span>
#include <string>

#include "kernels/base/result.h"

namespace millrace::peer {

/// Says the purpose of a frame of the TCP transport. Frames are beside messages: 32 bytes, without a body.
enum class TcpFrameKind : uint8_t {
  kHello = 1,    ///< the first bytes of the rank that connects
  kWelcome = 2,  ///< the answer
  kRefusal = 3,  ///< the answer: the connection ends; the group is 0
  kGoodbye = 4,  ///< the last frame of a rank that leaves in good order
  kOpening = 5,  ///< the first bytes of a rank with a key that connects; a message of Noise follows (tcp_opening.h)
  kOpened = 6,   ///< the answer, in the same form
  kReady = 7,    ///< to rank 0: the sender has a connection to every rank
  kMet = 8,      ///< of rank 0, once all are ready: the meeting has ended
};

/// Says why a hello is refused.
enum class TcpRefusal : uint8_t {
  kNone = 0,
  kVersion = 1,   ///< another version of the frames
  kGroup = 2,     ///< another group, or another list of addresses
  kRank = 3,      ///< sent to another rank than this one, or by a rank that does not connect to this one
  kTaken = 4,     ///< this rank has a connection of that rank already
  kNeedsKey = 5,  ///< this rank has a key, and the caller used none
  kHasNoKey = 6,  ///< the caller used a key, and this rank has none
  kOtherKey = 7,  ///< the caller used another key
};

/// Holds a frame. The layout is in DESIGN.md, "TCP".
struct TcpFrame {
  TcpFrameKind kind = TcpFrameKind::kHello;
  TcpRefusal refusal = TcpRefusal::kNone;
  uint32_t size = 0;   ///< ranks of the group
  uint64_t group = 0;  ///< identifies the group: a hash of its name and of all addresses
  uint32_t from = 0;
  uint32_t to = 0;
  bool operator==(const TcpFrame&) const = default;
};

/// As many as a message's header has: a reader takes either.
inline constexpr size_t kTcpFrameBytes = 32;
using TcpFrameBytes = std::array<uint8_t, kTcpFrameBytes>;

TcpFrameBytes encode_tcp_frame(const TcpFrame& frame);

/// Says why 32 bytes are no frame.
enum class TcpFrameFault : uint8_t {
  kMagic = 1,      ///< another protocol, or a message's header
  kVersion = 2,    ///< another version of these frames
  kMalformed = 3,  ///< an unknown kind or refusal
};
std::expected<TcpFrame, TcpFrameFault> decode_tcp_frame(std::span<const uint8_t, kTcpFrameBytes> bytes);

/// Returns the error of a rank whose hello was refused.
///
/// refuser  names the rank that refused, at the begin of the sentence.
/// self     "rank 3": the refused one.
Error error_of(TcpRefusal refusal, const std::string& refuser, const std::string& self);

/// Identifies one rank of a group.
struct TcpIdentity {
  uint32_t rank = 0;
  uint32_t size = 1;
  uint64_t group = 0;
};

/// Returns the refusal of a hello that `self` has received; kNone: it is welcome, unless that rank is connected
/// already. A rank connects to those below it.
TcpRefusal judge_hello(const TcpFrame& hello, const TcpIdentity& self);

}  // namespace millrace::peer
