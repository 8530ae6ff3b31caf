#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/base/buffer.h"

namespace millrace {

// The numbers of the adaptive code that both sides must agree on: protocol/wire/adaptive_codec.md.

inline constexpr uint32_t kAdaptiveStateBits = 10;
inline constexpr uint32_t kAdaptiveStates = 1u << kAdaptiveStateBits;
inline constexpr size_t kAdaptiveContexts = 65;
inline constexpr size_t kAdaptiveBins = 64;
inline constexpr size_t kAdaptiveShapes = 8;

/// Returns the bin of a value v = gap + 1 in [1, 2^32]: bins of half an octave. 1 | 2 | 3 | 4 5 | 6 7 | 8 to 11 | 12 to
/// 15 | ...
inline uint32_t adaptive_bin(uint64_t value) {
  const auto octave = static_cast<uint32_t>(std::bit_width(value)) - 1;
  return octave == 0 ? 0 : 2 * octave - 1 + static_cast<uint32_t>(value >> (octave - 1) & 1);
}

/// Returns the smallest value of a bin.
inline uint64_t adaptive_bin_low(uint32_t bin) {
  return bin == 0 ? 1 : uint64_t{2 + (bin + 1) % 2} << ((bin + 1) / 2 - 1);
}

/// 256 log2(1 + i / 32).
inline constexpr std::array<uint8_t, 32> kAdaptiveLog = {0,   11,  22,  33,  44,  54,  63,  73,  82,  92,  100,
                                                         109, 118, 126, 134, 142, 150, 157, 165, 172, 179, 186,
                                                         193, 200, 207, 213, 220, 226, 232, 238, 244, 250};

/// Returns about 256 log2(value): the level of a gap, value = gap + 1.
inline int32_t adaptive_level(uint64_t value) {
  const auto zeros = static_cast<uint32_t>(std::countl_zero(value));
  const uint64_t below = value << zeros << 1;  // the bits behind the highest, at the top
  return static_cast<int32_t>((63 - zeros) << 8) + kAdaptiveLog[below >> 59];
}

/// Holds the expectation of the next gap, at the sender and at the receiver: two averages of the levels before it.
struct AdaptiveLevels {
  int32_t fast = 0;
  int32_t slow = 0;

  static AdaptiveLevels from(uint64_t count, uint64_t dimension);
  uint32_t context() const { return static_cast<uint32_t>(fast + slow + 128) >> 8; }
  void see(int32_t level) {
    fast += (level - fast) >> 2;
    slow += (level - slow) >> 5;
  }
};

/// Describes a symbol of the code in one context: gaps gap_low + [0, 2^raw_bits), and its bins [first_bin, last_bin].
struct AdaptiveSymbol {
  uint32_t frequency = 0;  ///< of kAdaptiveStates
  uint32_t gap_low = 0;
  uint32_t raw_bits = 0;
  uint32_t first_bin = 0;
  uint32_t last_bin = 0;
};

/// Holds the alphabet of a context under a shape, in the order of its bins; their frequencies add up to
/// kAdaptiveStates.
struct AdaptiveAlphabet {
  std::array<AdaptiveSymbol, kAdaptiveBins> symbols{};
  size_t count = 0;
};
AdaptiveAlphabet adaptive_alphabet(uint32_t shape, uint32_t context);

/// Returns the symbol of each state of a context's decoder: the spread of FSE [FSE13].
std::array<uint8_t, kAdaptiveStates> adaptive_spread(const AdaptiveAlphabet& alphabet);

/// Describes a state of the decoder: its gap, and the next state.
struct AdaptiveDecoderState {
  uint32_t gap_low = 0;
  uint16_t next = 0;  ///< the next state is next + the lowest state_bits of the input
  uint8_t state_bits = 0;
  uint8_t total_bits = 0;  ///< state_bits and, above them, those of gap - gap_low
};

/// Tells the encoder how to write the symbol of a bin. In state x (from kAdaptiveStates) it writes the lowest n = (x +
/// bits_bias) >> 16 bits. It continues in state next[(x >> n) + next_bias] of its context.
struct AdaptiveEncoderSymbol {
  uint32_t bits_bias = 0;
  int32_t next_bias = 0;
  uint32_t gap_low = 0;
  uint32_t raw_bits = 0;
};

/// Tables of one shape. [context][state] and [context][bin].
struct AdaptiveTables {
  Buffer<AdaptiveDecoderState> decoder;
  Buffer<uint16_t> encoder_next;
  Buffer<AdaptiveEncoderSymbol> encoder;
};

/// Returns the tables of shape < kAdaptiveShapes. Made when first asked for, 0.7 MiB, and kept.
/// Threads  any.
const AdaptiveTables& adaptive_tables(uint32_t shape);

/// Bits of a gap in 1/256, by context, bin and shape; made when first asked for.
using AdaptiveCosts = std::array<std::array<std::array<uint16_t, kAdaptiveShapes>, kAdaptiveBins>, kAdaptiveContexts>;
const AdaptiveCosts& adaptive_costs();

}  // namespace millrace
