#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/codec/bits/bit_stream.h"

namespace millrace {

inline constexpr size_t kHuffmanSymbolsMax = 256;
inline constexpr uint32_t kHuffmanLengthMax = 32;

/// Computes the code lengths of Huffman's algorithm for symbols by their frequencies; 0: does not occur. Of equal
/// weights, the earlier one goes first; symbols are ordered by number. A single symbol has length 1: a code of no bits
/// would not say how often.
///
/// lengths   out: [counts.size()], at most kHuffmanSymbolsMax.
void huffman_lengths(std::span<const uint64_t> counts, std::span<uint8_t> lengths);

/// Returns whether hostile lengths are those of a code that leaves no bits over, or of a single symbol of one bit.
bool huffman_lengths_hold(std::span<const uint8_t> lengths);

/// Holds the canonical code of lengths: shorter codes first, of one length by symbol; the first bit of a code is its
/// highest.
struct HuffmanCode {
  std::array<uint8_t, kHuffmanSymbolsMax> lengths{};
  std::array<uint32_t, kHuffmanSymbolsMax> codes{};  ///< as they are written: first bit lowest
  uint32_t symbols = 0;
  uint32_t longest = 0;

  HuffmanCode() = default;
  /// REQUIRES: they hold; none is over kHuffmanLengthMax.
  explicit HuffmanCode(std::span<const uint8_t> of_symbols);

  void put(BitWriter& writer, uint32_t symbol) const { writer.put(codes[symbol], lengths[symbol]); }
};

/// Reads a code by its next bits.
class HuffmanTable {
 public:
  explicit HuffmanTable(const HuffmanCode& code);

  /// Takes the next symbol; kHuffmanSymbolsMax: there is none.
  uint32_t take(BitReader& reader) const {
    const uint64_t window = reader.window();
    const uint32_t found = table_[window & (table_.size() - 1)];
    if (found != 0) [[likely]] {
      reader.skip(found >> 8);
      return found & 0xff;
    }
    return take_long(reader, window);
  }

 private:
  static constexpr uint32_t kTableBits = 14;
  uint32_t take_long(BitReader& reader, uint64_t window) const;

  HuffmanCode code_;
  uint32_t bits_ = 0;
  Buffer<uint16_t> table_;  // symbol, and its length from bit 8 on; 0: no code, or a longer one
};

}  // namespace millrace
