#include <array>
#include <cstring>

#include "kernels/codec/index/gap_blocks.h"

namespace millrace {
namespace {

using Gaps = std::array<uint32_t, kGapBlock>;

/// Bit `bit` of lane's stream of u32 words, the 8 lanes' words interleaved: its place in the low bits of a block.
size_t low_bit_place(size_t lane, size_t bit) { return (bit / 32 * kGapLanes + lane) * 32 + bit % 32; }

uint64_t gap_scalar_cost(const Gaps& gaps, uint32_t shift) {
  uint64_t bits = uint64_t{kGapBlock} * shift;
  for (const uint32_t gap : gaps) bits += gap >> shift;
  return bits;
}

/// The smallest parameter of the least cost.
uint32_t best_shift(const Gaps& gaps) {
  uint32_t best = 0;
  for (uint32_t shift = 1; shift <= kGapShiftMax; ++shift) {
    if (gap_scalar_cost(gaps, shift) < gap_scalar_cost(gaps, best)) best = shift;
  }
  return best;
}

void set_bit(uint8_t* bytes, size_t bit) { bytes[bit / 8] = static_cast<uint8_t>(bytes[bit / 8] | 1u << (bit % 8)); }
uint32_t get_bit(const uint8_t* bytes, size_t bit) { return bytes[bit / 8] >> (bit % 8) & 1u; }

uint8_t* encode_block(const Gaps& gaps, uint8_t* at) {
  std::memset(at, 0, kGapBlockBytesMax);
  const uint32_t shift = best_shift(gaps);
  *at++ = static_cast<uint8_t>(shift);
  for (size_t j = 0; j < kGapBlock; ++j) {
    for (size_t b = 0; b < shift; ++b) {
      if (gaps[j] >> b & 1) set_bit(at, low_bit_place(j % kGapLanes, j / kGapLanes * shift + b));
    }
  }
  at += kGapBlock / 8 * shift;
  size_t bit = 0;
  for (const uint32_t gap : gaps) {
    bit += gap >> shift;
    set_bit(at, bit++);
  }
  return at + (bit + 7) / 8;
}

}  // namespace

GapEncoded gap_encode_blocks_scalar(const uint32_t* indices, size_t blocks, uint64_t next, uint8_t* out,
                                    size_t capacity) {
  Gaps gaps;
  uint8_t* at = out;
  for (size_t block = 0; block < blocks; ++block) {
    if (capacity - static_cast<size_t>(at - out) < kGapBlockBytesMax + 8) return {static_cast<size_t>(at - out), block};
    for (uint32_t& gap : gaps) {
      gap = static_cast<uint32_t>(*indices - next);
      next = uint64_t{*indices++} + 1;
    }
    at = encode_block(gaps, at);
  }
  return {static_cast<size_t>(at - out), blocks};
}

GapDecoded gap_decode_blocks_scalar(const uint8_t* begin, const uint8_t* end, size_t blocks, uint64_t next,
                                    uint64_t dimension, uint32_t* out) {
  const uint8_t* at = begin;
  for (size_t block = 0; block < blocks; ++block) {
    if (at == end) return {};
    const uint32_t shift = *at++;
    if (shift > kGapShiftMax || static_cast<size_t>(end - at) < kGapBlock / 8 * shift) return {};
    const uint8_t* low = at;
    at += kGapBlock / 8 * shift;
    const size_t left = static_cast<size_t>(end - at);
    const size_t unary_bits = left < kGapUnaryBitsMax / 8 ? left * 8 : kGapUnaryBitsMax;
    size_t bit = 0;
    for (size_t j = 0; j < kGapBlock; ++j) {
      uint64_t gap = 0;
      for (size_t b = 0; b < shift; ++b) {
        gap |= uint64_t{get_bit(low, low_bit_place(j % kGapLanes, j / kGapLanes * shift + b))} << b;
      }
      for (; bit < unary_bits && get_bit(at, bit) == 0; ++bit) gap += uint64_t{1} << shift;
      if (bit++ >= unary_bits) return {};
      next += gap;
      if (next >= dimension) return {};
      *out++ = static_cast<uint32_t>(next++);
    }
    for (; bit % 8 != 0; ++bit) {
      if (get_bit(at, bit) != 0) return {};
    }
    at += bit / 8;
  }
  return {at, next};
}

}  // namespace millrace
