#pragma once

#include <cstdint>

#include "kernels/base/buffer.h"
#include "protocol/messages/messages.h"

namespace millrace::protocol {

/// A number for all updates applied to one part, in order. Workers that began alike and applied the same updates have
/// the same number. It is a plain value: with (part, n) it goes into a saved state and into a snapshot. A worker that
/// takes over weights at step n takes over the digest at step n with them.
///
/// kLogDigestStart   of a part without applied updates, regardless of its first weights.
/// Cost     40 bytes hashed a part and step, 8 ns; nothing a value. 24 bytes a part in a heartbeat.
/// Blind    to the weights themselves. A worker that began with other weights, scales updates otherwise, or changes its
///          weights beside the job has the digest of the others.
inline constexpr uint64_t kLogDigestStart = 0;

/// Returns the digest after one more update.
///
/// digest   after the steps below update.step.
/// payload  the update's container, whose checksum holds: read here, not verified.
/// Bytes hashed (XXH3-64, seed 0): u64 digest, u32 part, u32 contributors (their number), u64 step, f64 weight sum, u64
/// checksum of the container; little-endian. Contributors and weights, because workers that apply a mean divide by
/// them. One of merged steps: the digest after all of them, as if each had come by itself; the payload is not read.
uint64_t extend_log_digest(uint64_t digest, const Update& update, ByteSpan payload);

}  // namespace millrace::protocol
