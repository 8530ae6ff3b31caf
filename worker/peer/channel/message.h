#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"

namespace millrace::peer {

enum class MessageKind : uint8_t {
  kData = 1,     ///< of an algorithm
  kAsk = 2,      ///< "are you there, and where is this collective?"; no body
  kAnswer = 3,   ///< to kAsk; body: not started (1), running (2) or done (3), one byte
  kDiffers = 4,  ///< "this collective is another one here"; body: its description
  kAbort = 5,    ///< the group has ended; body: error code (2), the rank at fault + 1 or 0 (4), a sentence
};

/// Says which form the body of kData has.
enum class BodyForm : uint8_t {
  kNone = 0,       ///< empty
  kPairs = 1,      ///< values, then indices: as many as fit
  kDense = 2,      ///< values: all of the slice
  kContainer = 3,  ///< a codec container (protocol/wire/container.md)
  kNumbers = 4,    ///< the algorithm's own: counts, boundaries, histograms
};

/// Holds one message between two ranks.
struct PeerMessage {
  MessageKind kind = MessageKind::kData;
  BodyForm form = BodyForm::kNone;
  uint32_t collective = 0;  ///< its number in the group: the same on all ranks, which start them in one order
  uint32_t tag = 0;         ///< the algorithm's: at most one message of a collective from one rank to another has it
  uint64_t signature = 0;   ///< of the collective, as the sender has it
  SharedBytes body;
};

/// The header as bytes, for communicators that carry bytes (DESIGN.md, "Bytes").
inline constexpr size_t kMessageHeaderBytes = 32;
using MessageHeader = std::array<uint8_t, kMessageHeaderBytes>;

MessageHeader encode_header(const PeerMessage& message);

/// Holds a message without its body, and the body's length. Errors  malformed: magic, version, kind, form, reserved
/// bytes.
struct DecodedHeader {
  PeerMessage message;
  uint64_t body_bytes = 0;
};
Result<DecodedHeader> decode_header(std::span<const uint8_t, kMessageHeaderBytes> bytes);

}  // namespace millrace::peer
