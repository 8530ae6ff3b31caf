#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "kernels/magnitude/magnitude_scan.h"
#include "kernels/stream/stream.h"

namespace millrace {

// Shared parts of the two codes of [GSpar18, 2.3]. A stream of the draws of Proposition 1 has entries g / p with p =
// min(lambda |g|, 1). Those with p < 1 all have the magnitude 1 / lambda (the paper's Q_B). The others (Q_A), larger
// ones, are unchanged.

inline constexpr uint32_t kSignBit = uint32_t{1} << 31;
/// Holds the magnitude of the sign part, as bits, and how many entries have it.
struct GsparScale {
  uint32_t bits = 0;
  uint64_t entries = 0;
};

/// Returns the more frequent of two magnitudes: the smallest, or the one of more than half of the entries. (A stream
/// that a Bloom policy filled up may have smaller ones.)
///
/// values  [n]; none: 0 entries.
/// Errors  non_finite.
Result<GsparScale> find_gspar_scale(std::span<const float> values);

/// Appends the exact entries of `values`, as they are.
void append_exact(std::span<const float> values, const GsparScale& scale, ByteBuffer& out);

/// Takes a scale from hostile bytes: finite, its sign bit 0.
inline std::optional<uint32_t> take_scale(const uint8_t* bytes) {
  uint32_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  if (bits >= kInfinityKey) return std::nullopt;
  return bits;
}

}  // namespace millrace
