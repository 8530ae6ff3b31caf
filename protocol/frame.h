#pragma once

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "protocol/messages.h"

namespace millrace::protocol {

struct FrameLimits {
  uint64_t envelope_bytes_max = 4u << 20;
  uint64_t payload_bytes_max = uint64_t{1} << 30;
};

/// The envelope (Cap'n Proto, messages.capnp) of a message, without its payload frame.
ByteBuffer encode_envelope(const Message& message);

/// Reads and validates a whole message off hostile frames: sizes, enum values, counts, text lengths, payload presence.
///
/// Errors   malformed, limit_exceeded, version_mismatch.
Result<Message> decode_message(ByteSpan envelope, SharedBytes payload, const FrameLimits& limits);

}  // namespace millrace::protocol
