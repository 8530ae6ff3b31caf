#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "kernels/codec/codec.h"

/// Bytes that no honest sender would send, for decoders.
namespace millrace::bench {

struct HostileCode {
  std::string name;
  ByteBuffer bytes;
  uint64_t count = 0;  ///< that the sender says they code
};

using VisitHostile = std::function<void(const HostileCode&)>;

/// Makes hostile codes from a good code of any codec: truncated, with flipped bits, and with another count. Also
/// constant and random bytes behind 0 to 20 bytes of its beginning. None is longer than the good code.
///
/// count      of the good code.
/// count_max  the largest count that a receiver would accept.
void visit_hostile_codes(ByteSpan good, uint64_t count, uint64_t count_max, uint64_t seed, const VisitHostile& visit);

/// Makes the worst codes for this codec that are known: at most `bytes` long.
void visit_crafted_codes(const IndexCodec& codec, size_t bytes, uint64_t dimension, const VisitHostile& visit);

}  // namespace millrace::bench
