#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/base/buffer.h"

namespace millrace {

/// Bits that any number below `count` takes: ceil(log2(count)), 0 where there is one number at most.
constexpr uint32_t number_bits(uint64_t count) {
  return count <= 1 ? 0 : static_cast<uint32_t>(std::bit_width(count - 1));
}

/// Appends bits to a buffer, from the lowest bit of each byte. finish() ends the code; nothing else may touch the
/// buffer before. The calls of each entry are marked always_inline: in large compilation units GCC does not inline them
/// by itself.
class BitWriter {
 public:
  explicit BitWriter(ByteBuffer& out) : out_(out), used_(out.size()) {}

  /// Appends the lowest `count` <= 56 bits; those above must be 0.
  [[gnu::always_inline]] void put(uint64_t bits, uint32_t count) {
    if (out_.size() - used_ < sizeof(uint64_t)) out_.resize(used_ + used_ / 2 + kRoom);
    pending_ |= bits << filled_;
    filled_ += count;
    std::memcpy(out_.data() + used_, &pending_, sizeof(pending_));
    used_ += filled_ / 8;
    pending_ >>= filled_ & ~7u;
    filled_ &= 7;
  }

  /// Appends `zeros` bits 0 and a bit 1.
  void put_unary(uint64_t zeros) {
    for (; zeros > 55; zeros -= 55) put(0, 55);
    put(uint64_t{1} << zeros, static_cast<uint32_t>(zeros) + 1);
  }

  /// Cuts the buffer behind the last byte with a bit; the rest of that byte is 0.
  void finish() {
    used_ += filled_ > 0 ? 1 : 0;
    out_.resize(used_);
    filled_ = 0;
    pending_ = 0;
  }

 private:
  static constexpr size_t kRoom = 256;
  ByteBuffer& out_;
  size_t used_;           // whole bytes
  uint64_t pending_ = 0;  // the bits behind them
  uint32_t filled_ = 0;   // < 8 between calls
};

/// Reads the bits of BitWriter from hostile bytes. Behind the end there are zeros; a caller that has read a whole code
/// asks at_end(). Its calls are inlined like BitWriter's.
class BitReader {
 public:
  explicit BitReader(ByteSpan bytes) : bytes_(bytes), bits_(uint64_t{bytes.size()} * 8) {}

  /// Returns the next bits, the first one lowest: 57 at least.
  [[gnu::always_inline]] uint64_t window() const {
    const uint64_t byte = at_ / 8;
    uint64_t word = 0;
    if (byte + sizeof(word) <= bytes_.size()) [[likely]] {
      std::memcpy(&word, bytes_.data() + byte, sizeof(word));
    } else if (byte < bytes_.size()) {
      std::memcpy(&word, bytes_.data() + byte, bytes_.size() - byte);
    }
    return word >> (at_ % 8);
  }
  void skip(uint32_t count) { at_ += count; }

  /// Takes the next `count` <= 56 bits.
  [[gnu::always_inline]] uint64_t take(uint32_t count) {
    const uint64_t bits = window() & ((uint64_t{1} << count) - 1);
    at_ += count;
    return bits;
  }

  /// Zeros before the next bit 1, which is read too. There is none: a number over `limit`, as for all that are longer.
  uint64_t take_unary(uint64_t limit) {
    uint64_t zeros = 0;
    while (true) {
      const uint64_t bits = window();
      if (bits != 0) [[likely]] {
        const auto run = static_cast<uint32_t>(std::countr_zero(bits));
        at_ += run + 1;
        return zeros + run;
      }
      zeros += kWindowBits;
      at_ += kWindowBits;
      if (at_ >= bits_ || zeros > limit) return limit + 1;
    }
  }

  /// Returns whether nothing was read behind the end, and nothing is left but the zeros that fill the last byte.
  bool at_end() const { return at_ <= bits_ && bits_ - at_ < 8 && window() == 0; }
  bool overrun() const { return at_ > bits_; }

 private:
  static constexpr uint32_t kWindowBits = 57;
  ByteSpan bytes_;
  uint64_t bits_;
  uint64_t at_ = 0;  // in bits
};

}  // namespace millrace
