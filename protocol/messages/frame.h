#pragma once

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "protocol/messages/messages.h"

namespace millrace::protocol {

struct FrameLimits {
  uint64_t envelope_bytes_max = 4u << 20;
  uint64_t payload_bytes_max = uint64_t{1} << 30;
};

/// Encodes the envelope (Cap'n Proto, messages.capnp) of a message, without its payload frame. Equal messages give
/// equal bytes. Sentences are cut to kSentenceBytesMax and freed of control characters.
///
/// REQUIRES: lists within limits.h and in their order (members, contributors and summaries by worker, ascending).
/// Threads   reentrant.
ByteBuffer encode_envelope(const Message& message);

/// Reads and validates a whole message off hostile frames: sizes, enum values, counts, text, floats, payload presence.
/// Never throws; allocates at most a few times the envelope's size. The payload is not looked into.
///
/// envelope  any alignment (copied where it is not on a word boundary). Not kept.
/// payload   handed on into the message, shared.
/// Errors    malformed; limit_exceeded; non_finite. unsupported: a kind, error code, specification or enumerator of a
///           later version. version_mismatch: a Welcome in a version that this build does not speak.
/// Versions  a Hello or ShardHello without a version in common is returned with versions and software only. The rest is
///           at its default; negotiate() refuses it with its name.
/// Threads   reentrant.
Result<Message> decode_message(ByteSpan envelope, SharedBytes payload, const FrameLimits& limits);

}  // namespace millrace::protocol
