// Full blocks of the gap code with Highway: compiled once per instruction set, chosen at run time. The format is in
// protocol/wire/index_codecs.md, "gap"; gap_scalar.cc is the same bit by bit, and the tests' oracle.
#include "kernels/codec/index/gap_blocks.h"

#include <bit>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec/index/gap_blocks.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "kernels/codec/bits/bit_positions-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR  // one lane: nothing to interleave

GapEncoded encode_blocks(const uint32_t* indices, size_t blocks, uint64_t next, uint8_t* out, size_t capacity) {
  return gap_encode_blocks_scalar(indices, blocks, next, out, capacity);
}

GapDecoded decode_blocks(const uint8_t* begin, const uint8_t* end, size_t blocks, uint64_t next, uint64_t dimension,
                         uint32_t* out) {
  return gap_decode_blocks_scalar(begin, end, blocks, next, dimension, out);
}

#else

namespace hn = hwy::HWY_NAMESPACE;

using D32 = hn::CappedTag<uint32_t, kGapLanes>;
using D8 = hn::Repartition<uint8_t, D32>;
using D64 = hn::Repartition<uint64_t, D32>;
using V32 = hn::Vec<D32>;

constexpr size_t kRows = kGapBlock / kGapLanes;

HWY_INLINE V32 load_row(const uint8_t* at) { return hn::BitCast(D32(), hn::LoadU(D8(), at)); }
HWY_INLINE void store_row(V32 row, uint8_t* at) { hn::StoreU(hn::BitCast(D8(), row), D8(), at); }

// ---------------------------------------------------------------------------------------------------------- encoding

/// gaps[j] = index_j - index_(j-1) - 1, of one block.
HWY_INLINE void take_gaps(const uint32_t* indices, uint64_t next, uint32_t* gaps) {
  const D32 d;
  const auto one = hn::Set(d, 1);
  gaps[0] = indices[0] - static_cast<uint32_t>(next);
  for (size_t j = 1; j < kGapLanes; ++j) gaps[j] = indices[j] - indices[j - 1] - 1;
  for (size_t j = kGapLanes; j < kGapBlock; j += hn::Lanes(d)) {
    const auto gap = hn::Sub(hn::Sub(hn::LoadU(d, indices + j), hn::LoadU(d, indices + j - 1)), one);
    hn::Store(gap, d, gaps + j);
  }
}

/// Bits of the block under parameter `shift`, without the terminators that every parameter needs. The gaps add up to
/// less than 2^32, so that u32 lanes hold every sum.
HWY_INLINE uint64_t block_cost(const uint32_t* gaps, uint32_t shift) {
  const D32 d;
  auto sum = hn::Zero(d);
  for (size_t j = 0; j < kGapBlock; j += hn::Lanes(d)) {
    sum = hn::Add(sum, hn::ShiftRightSame(hn::Load(d, gaps + j), static_cast<int>(shift)));
  }
  return hn::GetLane(hn::SumOfLanes(d, sum)) + uint64_t{kGapBlock} * shift;
}

/// Returns the parameter with the least cost. The cost is convex in it: cost(b) - cost(b+1) = sum of ceil((gap >> b) /
/// 2) - 256, falling in b. So walking downhill from a guess ends at the minimum.
HWY_INLINE uint32_t best_shift(const uint32_t* gaps, uint64_t gap_sum) {
  const uint64_t mean_ln2 = (gap_sum * 177) >> 16;  // ln 2 = 177 / 256, mean = sum / 256
  uint32_t shift = mean_ln2 == 0 ? 0 : static_cast<uint32_t>(std::bit_width(mean_ln2)) - 1;
  uint64_t cost = block_cost(gaps, shift);
  const uint32_t guess = shift;
  while (shift > 0) {
    const uint64_t below = block_cost(gaps, shift - 1);
    if (below > cost) break;
    cost = below;
    --shift;
  }
  if (shift != guess) return shift;
  while (shift < kGapShiftMax) {
    const uint64_t above = block_cost(gaps, shift + 1);
    if (above >= cost) break;
    cost = above;
    ++shift;
  }
  return shift;
}

/// Packs the low `shift` bits of gap (row, lane) into lane's own bit stream of u32 words, the 8 lanes' words
/// interleaved.
HWY_INLINE void pack_low(const uint32_t* gaps, uint32_t shift, uint8_t* out) {
  const D32 d;
  const auto mask = hn::Set(d, (uint32_t{1} << shift) - 1);
  for (size_t lane = 0; lane < kGapLanes; lane += hn::Lanes(d)) {
    uint8_t* to = out + lane * sizeof(uint32_t);
    auto word = hn::Zero(d);
    uint32_t filled = 0;
    for (size_t row = 0; row < kRows; ++row) {
      const auto low = hn::And(hn::Load(d, gaps + row * kGapLanes + lane), mask);
      word = hn::Or(word, hn::ShiftLeftSame(low, static_cast<int>(filled)));
      filled += shift;
      if (filled < 32) continue;
      store_row(word, to);
      to += kGapLanes * sizeof(uint32_t);
      filled -= 32;
      word = filled == 0 ? hn::Zero(d) : hn::ShiftRightSame(low, static_cast<int>(shift - filled));
    }
  }
}

/// Appends bits, low first, to memory that is written 8 bytes at a time.
struct BitAppender {
  uint8_t* at;
  uint64_t pending = 0;
  uint32_t filled = 0;  // < 8 between calls

  HWY_INLINE void put(uint64_t bits, uint32_t count) {  // count <= 56
    pending |= bits << filled;
    filled += count;
    std::memcpy(at, &pending, sizeof(pending));
    at += filled >> 3;
    pending >>= filled & ~7u;
    filled &= 7;
  }
  HWY_INLINE void put_unary(uint32_t quotient) {
    for (; quotient > 55; quotient -= 55) put(0, 55);
    put(uint64_t{1} << quotient, quotient + 1);
  }
};

/// Unary codes of the quotients: pairs are joined in u64 lanes, two pairs at a time are appended.
HWY_INLINE uint8_t* put_quotients(const uint32_t* gaps, uint32_t shift, uint8_t* out) {
  const D32 d;
  const D64 d64;
  alignas(64) uint64_t codes[kGapBlock / 2];
  alignas(64) uint64_t lengths[kGapBlock / 2];
  const auto one = hn::Set(d64, 1);
  const auto two = hn::Set(d64, 2);
  const auto low_half = hn::Set(d64, 0xffffffffu);
  // A pair that needs a longer shift is written bit by bit below; not every target shifts so far.
  const auto shift_max = hn::Set(d64, 63);
  for (size_t j = 0; j < kGapBlock; j += hn::Lanes(d)) {
    const auto quotients = hn::BitCast(d64, hn::ShiftRightSame(hn::Load(d, gaps + j), static_cast<int>(shift)));
    const auto first = hn::And(quotients, low_half);
    const auto both = hn::Add(first, hn::ShiftRight<32>(quotients));
    const auto codes_of_pair = hn::Or(hn::Shl(one, hn::And(first, shift_max)), hn::Shl(two, hn::And(both, shift_max)));
    hn::Store(codes_of_pair, d64, codes + j / 2);
    hn::Store(hn::Add(both, two), d64, lengths + j / 2);
  }
  BitAppender bits{out};
  for (size_t pair = 0; pair < kGapBlock / 2; pair += 2) {
    const uint64_t length = lengths[pair] + lengths[pair + 1];
    if (length <= 56) [[likely]] {
      bits.put(codes[pair] | codes[pair + 1] << lengths[pair], static_cast<uint32_t>(length));
    } else {
      for (size_t j = 2 * pair; j < 2 * pair + 4; ++j) bits.put_unary(gaps[j] >> shift);
    }
  }
  return bits.at + (bits.filled > 0 ? 1 : 0);
}

GapEncoded encode_blocks(const uint32_t* indices, size_t blocks, uint64_t next, uint8_t* out, size_t capacity) {
  alignas(64) uint32_t gaps[kGapBlock];
  uint8_t* at = out;
  for (size_t block = 0; block < blocks; ++block) {
    if (capacity - static_cast<size_t>(at - out) < kGapBlockBytesMax + 8) return {static_cast<size_t>(at - out), block};
    const uint32_t last = indices[kGapBlock - 1];
    take_gaps(indices, next, gaps);
    const uint32_t shift = best_shift(gaps, last - next - (kGapBlock - 1));
    *at++ = static_cast<uint8_t>(shift);
    pack_low(gaps, shift, at);
    at = put_quotients(gaps, shift, at + kGapBlock / 8 * shift);
    next = uint64_t{last} + 1;
    indices += kGapBlock;
  }
  return {static_cast<size_t>(at - out), blocks};
}

// ---------------------------------------------------------------------------------------------------------- decoding

constexpr size_t kPositionsPadded = kGapBlock + 64 + kPositionsSlack;
constexpr uint32_t kExactShiftMax = 24;  // 256 such numbers add up to less than 2^32

HWY_INLINE uint64_t load_word(const uint8_t* at, const uint8_t* end) {
  uint64_t word = 0;
  if (end - at >= 8) [[likely]] {
    std::memcpy(&word, at, 8);
  } else {
    std::memcpy(&word, at, static_cast<size_t>(end - at));
  }
  return word;
}

/// Finds the first 256 set bits of [at, end). Returns the byte behind the last of them; null: too few within the bound,
/// or a set bit behind it in its byte.
HWY_INLINE const uint8_t* find_terminators(const uint8_t* at, const uint8_t* end, uint32_t* positions) {
  size_t found = 0;
  uint32_t bit = 0;
  const uint8_t* word_at = at;
  while (found < kGapBlock) {
    if (word_at >= end || bit >= kGapUnaryBitsMax) return nullptr;
    found += store_positions(load_word(word_at, end), bit, positions + found);
    word_at += 8;
    bit += 64;
  }
  const uint32_t bits = positions[kGapBlock - 1] + 1;
  const uint8_t* last = at + (bits - 1) / 8;
  if (bits % 8 != 0 && (*last >> (bits % 8)) != 0) return nullptr;
  return last + 1;
}

/// Inclusive prefix sum of one row of N <= 8 lanes.
HWY_INLINE V32 prefix_sum(V32 row) {
  const D32 d;
  row = hn::Add(row, hn::ShiftLeftLanes<1>(d, row));
  row = hn::Add(row, hn::ShiftLeftLanes<2>(d, row));
  if (hn::Lanes(d) > 4) {  // the shifts stay within 128 bits: add the lower half's sum to the upper half
    const auto lower = hn::TableLookupLanes(row, hn::IndicesFromVec(d, hn::Set(d, 3)));
    row = hn::Add(row, hn::IfThenElseZero(hn::Gt(hn::Iota(d, 0), hn::Set(d, 3)), lower));
  }
  return row;
}

HWY_INLINE V32 unpack_row(const uint8_t* low, size_t row, uint32_t shift, V32 mask) {
  const size_t bit = row * shift;
  const uint32_t from = bit % 32;
  const size_t first = bit / 32;
  const size_t last =
      (bit + shift - 1) / 32;  // == first where the row does not cross a word: the shift below is masked off
  const size_t word_bytes = kGapLanes * sizeof(uint32_t);
  const auto a = hn::ShiftRightSame(load_row(low + first * word_bytes), static_cast<int>(from));
  const auto b = hn::ShiftLeftSame(load_row(low + last * word_bytes), static_cast<int>((32 - from) % 32));
  return hn::And(hn::Or(a, b), mask);
}

/// Returns the sum of all lows, for any shift.
HWY_INLINE uint64_t sum_of_lows(const uint8_t* low, uint32_t shift) {
  const D32 d;
  const auto mask = hn::Set(d, (uint32_t{1} << shift) - 1);
  const auto low_half = hn::Set(d, 0xffff);
  auto lower = hn::Zero(d);
  auto upper = hn::Zero(d);
  for (size_t j = 0; j < kGapBlock; j += hn::Lanes(d)) {
    const auto row = unpack_row(low + j % kGapLanes * sizeof(uint32_t), j / kGapLanes, shift, mask);
    lower = hn::Add(lower, hn::And(row, low_half));
    upper = hn::Add(upper, hn::ShiftRight<16>(row));
  }
  return hn::GetLane(hn::SumOfLanes(d, lower)) + (uint64_t{hn::GetLane(hn::SumOfLanes(d, upper))} << 16);
}

/// index_j = next + sum of lows up to j + ((terminator_j - j) << shift) + j, modulo 2^32. Returns the sum of all lows
/// modulo 2^32.
HWY_INLINE uint64_t join(const uint8_t* low, uint32_t shift, const uint32_t* terminators, uint64_t next,
                         uint32_t* out) {
  const D32 d;
  const size_t lanes = hn::Lanes(d);
  const auto mask = hn::Set(d, (uint32_t{1} << shift) - 1);
  const auto start = hn::Set(d, static_cast<uint32_t>(next));
  const auto step = hn::Set(d, static_cast<uint32_t>(lanes));
  const auto last_lane = hn::IndicesFromVec(d, hn::Set(d, static_cast<uint32_t>(lanes - 1)));
  auto numbers = hn::Iota(d, 0);
  auto carry = hn::Zero(d);
  for (size_t j = 0; j < kGapBlock; j += lanes) {
    auto sums = carry;
    if (shift > 0) {
      const size_t lane = j % kGapLanes;
      sums = hn::Add(prefix_sum(unpack_row(low + lane * sizeof(uint32_t), j / kGapLanes, shift, mask)), carry);
    }
    const auto quotients = hn::Sub(hn::LoadU(d, terminators + j), numbers);
    const auto high = hn::ShiftLeftSame(quotients, static_cast<int>(shift));
    hn::StoreU(hn::Add(hn::Add(sums, high), hn::Add(start, numbers)), d, out + j);
    carry = hn::TableLookupLanes(sums, last_lane);
    numbers = hn::Add(numbers, step);
  }
  return hn::GetLane(carry);
}

GapDecoded decode_blocks(const uint8_t* begin, const uint8_t* end, size_t blocks, uint64_t next, uint64_t dimension,
                         uint32_t* out) {
  alignas(64) uint32_t terminators[kPositionsPadded];
  GapDecoded run{begin, next};
  for (size_t block = 0; block < blocks; ++block, out += kGapBlock) {
    if (run.at == end) return {};
    const uint32_t shift = *run.at;
    if (shift > kGapShiftMax) return {};
    const uint8_t* low = run.at + 1;
    if (static_cast<size_t>(end - low) < kGapBlock / 8 * shift) return {};
    run.at = find_terminators(low + kGapBlock / 8 * shift, end, terminators);
    if (run.at == nullptr) return {};
    const uint64_t joined = join(low, shift, terminators, run.next, out);
    const uint64_t lows = shift <= kExactShiftMax ? joined : sum_of_lows(low, shift);
    const uint64_t quotients = terminators[kGapBlock - 1] - (kGapBlock - 1);
    run.next += lows + (quotients << shift) + kGapBlock;  // each term is below 2^45; nothing wraps if the sum does not
    if (run.next > dimension) return {};
  }
  return run;
}

#endif  // HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(encode_blocks);
HWY_EXPORT(decode_blocks);

GapEncoded gap_encode_blocks(const uint32_t* indices, size_t blocks, uint64_t next, uint8_t* out, size_t capacity) {
  return HWY_DYNAMIC_DISPATCH(encode_blocks)(indices, blocks, next, out, capacity);
}

GapDecoded gap_decode_blocks(const uint8_t* begin, const uint8_t* end, size_t blocks, uint64_t next, uint64_t dimension,
                             uint32_t* out) {
  return HWY_DYNAMIC_DISPATCH(decode_blocks)(begin, end, blocks, next, dimension, out);
}

}  // namespace millrace
#endif  // HWY_ONCE
