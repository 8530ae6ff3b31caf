// With Highway: compiled once per instruction set, chosen at run time. The format is in
// protocol/wire/datagram_payload.md, "Datagrams"; the tests have it bit by bit.
#include "kernels/packet/rice_gaps.h"

#include <array>
#include <cstring>

#include "kernels/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/packet/rice_gaps.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "kernels/codec/bits/bit_positions-inl.h"

#ifndef MILLRACE_RICE_GAPS_TABLES_
#define MILLRACE_RICE_GAPS_TABLES_
namespace millrace {

/// Bytes behind the code that the kernels may read: zeros.
constexpr size_t kRicePadding = 64;

/// Eight numbers of `shift` bits are `shift` bytes: where each of the eight begins in them.
struct RiceUnpack {
  std::array<uint8_t, 32> bytes;    // for each number the four bytes that it lies in
  std::array<uint32_t, 8> offsets;  // and the bit of them where it begins
};

constexpr std::array<RiceUnpack, kRiceShiftMax + 1> make_rice_unpack() {
  std::array<RiceUnpack, kRiceShiftMax + 1> tables{};
  for (uint32_t shift = 0; shift <= kRiceShiftMax; ++shift) {
    for (uint32_t i = 0; i < 8; ++i) {
      const uint32_t bit = i * shift;
      tables[shift].offsets[i] = bit % 8;
      for (uint32_t b = 0; b < 4; ++b) {  // the 16th byte and those behind it are masked off
        tables[shift].bytes[4 * i + b] = static_cast<uint8_t>(bit / 8 + b < 15 ? bit / 8 + b : 15);
      }
    }
  }
  return tables;
}

inline constexpr std::array<RiceUnpack, kRiceShiftMax + 1> kRiceUnpack = make_rice_unpack();

}  // namespace millrace
#endif

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Finds the set bits of the quotients, which must be `count`, the last of them in the last byte.
/// bytes: kRicePadding zeros behind them. positions: [count + 64].
bool find_terminators(const uint8_t* bytes, size_t length, uint32_t count, uint32_t* positions) {
  if (length == 0 || bytes[length - 1] == 0) return false;
  size_t found = 0;
  for (size_t at = 0; at < length; at += 8) {
    uint64_t word;
    std::memcpy(&word, bytes + at, sizeof(word));
    if (found + hwy::PopCount(word) > count) return false;
    found += store_positions(word, static_cast<uint32_t>(at * 8), positions + found);
  }
  return found == count;
}

/// Of indices [begin, count), each after the one before it.
void add_quotients(const uint16_t* indices, size_t begin, size_t count, const std::array<uint32_t, 3>& shifts,
                   std::array<uint64_t, 3>& sums) {
  for (size_t j = begin; j < count; ++j) {
    for (size_t i = 0; i < 3; ++i) sums[i] += (indices[j] - indices[j - 1] - 1u) >> shifts[i];
  }
}

#if HWY_TARGET == HWY_SCALAR

uint32_t join(const RiceGaps& code, const uint8_t* lows, const uint32_t* terminators, uint16_t* out) {
  const uint32_t mask = (uint32_t{1} << code.shift) - 1;
  uint32_t sum = code.first;
  uint32_t index = 0;
  for (uint32_t j = 0; j < code.count; ++j) {
    const size_t bit = size_t{j} * code.shift;
    uint32_t word;
    std::memcpy(&word, lows + bit / 8, sizeof(word));
    sum += word >> (bit % 8) & mask;
    index = sum + ((terminators[j] - j) << code.shift) + j;
    out[j] = static_cast<uint16_t>(index);
  }
  return index;
}

std::array<uint64_t, 3> quotient_sums(const uint16_t* indices, size_t count, const std::array<uint32_t, 3>& shifts) {
  std::array<uint64_t, 3> sums{};
  add_quotients(indices, 1, count, shifts, sums);
  return sums;
}

#else

using D32 = hn::CappedTag<uint32_t, 8>;
using D16 = hn::Rebind<uint16_t, D32>;
using D8 = hn::Repartition<uint8_t, D32>;
using V32 = hn::Vec<D32>;

/// Inclusive prefix sum of 4 or 8 lanes.
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

/// index_j = first + sum of lows up to j + ((terminator_j - j) << shift) + j. Nothing wraps: 18,000 lows below 2^15,
/// and a terminator below 72,000 shifted by 15, add up to less than 2^32. Returns the last index.
uint32_t join(const RiceGaps& code, const uint8_t* lows, const uint32_t* terminators, uint16_t* out) {
  const D32 d;
  const D16 d16;
  const D8 d8;
  const hn::RebindToSigned<D32> di;
  const size_t lanes = hn::Lanes(d);
  const RiceUnpack& table = kRiceUnpack[code.shift];
  const int shift = static_cast<int>(code.shift);
  const auto mask = hn::Set(d, (uint32_t{1} << code.shift) - 1);
  const auto last_lane = hn::IndicesFromVec(d, hn::Set(d, static_cast<uint32_t>(lanes - 1)));
  const auto step = hn::Set(d, static_cast<uint32_t>(lanes));
  auto carry = hn::Set(d, code.first);
  auto numbers = hn::Iota(d, 0);
  auto indices = carry;
  for (size_t j = 0; j < code.count; j += lanes) {
    const size_t part = j % 8;  // of eight numbers
    const auto bytes = hn::LoadDup128(d8, lows + j / 8 * code.shift);
    const auto spread = hn::BitCast(d, hn::TableLookupBytes(bytes, hn::LoadU(d8, table.bytes.data() + 4 * part)));
    const auto low = hn::And(hn::Shr(spread, hn::LoadU(d, table.offsets.data() + part)), mask);
    const auto sums = hn::Add(prefix_sum(low), carry);
    const auto quotients = hn::Sub(hn::LoadU(d, terminators + j), numbers);
    indices = hn::Add(hn::Add(sums, numbers), hn::ShiftLeftSame(quotients, shift));
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, indices)), d16, out + j);
    carry = hn::TableLookupLanes(sums, last_lane);
    numbers = hn::Add(numbers, step);
  }
  alignas(64) uint32_t last[8];
  hn::Store(indices, d, last);
  return last[(code.count - 1) % lanes];
}

/// Each lane adds at most 18,000 / lanes quotients below 2^16.
std::array<uint64_t, 3> quotient_sums(const uint16_t* indices, size_t count, const std::array<uint32_t, 3>& shifts) {
  const hn::CappedTag<uint32_t, 16> d;
  const hn::Rebind<uint16_t, decltype(d)> d16;
  const size_t lanes = hn::Lanes(d);
  const auto one = hn::Set(d16, 1);
  auto a = hn::Zero(d);
  auto b = a;
  auto c = a;
  size_t j = 1;
  for (; j + lanes <= count; j += lanes) {
    const auto gaps16 = hn::Sub(hn::Sub(hn::LoadU(d16, indices + j), hn::LoadU(d16, indices + j - 1)), one);
    const auto gaps = hn::PromoteTo(d, gaps16);
    a = hn::Add(a, hn::ShiftRightSame(gaps, static_cast<int>(shifts[0])));
    b = hn::Add(b, hn::ShiftRightSame(gaps, static_cast<int>(shifts[1])));
    c = hn::Add(c, hn::ShiftRightSame(gaps, static_cast<int>(shifts[2])));
  }
  std::array<uint64_t, 3> sums = {hn::GetLane(hn::SumOfLanes(d, a)), hn::GetLane(hn::SumOfLanes(d, b)),
                                  hn::GetLane(hn::SumOfLanes(d, c))};
  add_quotients(indices, j, count, shifts, sums);
  return sums;
}

#endif  // HWY_SCALAR

std::optional<uint32_t> decode(const RiceGaps& code, ByteSpan bytes, uint16_t* out) {
  alignas(64) std::array<uint8_t, kRiceBytesMax + kRicePadding> padded;
  alignas(64) std::array<uint32_t, kRiceCountMax + 64 + kPositionsSlack> terminators;
  std::memcpy(padded.data(), bytes.data(), bytes.size());
  std::memset(padded.data() + bytes.size(), 0, kRicePadding);
  const size_t low_bytes = rice_low_bytes(code.count, code.shift);
  const uint8_t* quotients = padded.data() + low_bytes;
  const size_t low_bits = size_t{code.count} * code.shift;
  if (low_bits % 8 != 0 && quotients[-1] >> (low_bits % 8) != 0) return std::nullopt;
  if (!find_terminators(quotients, bytes.size() - low_bytes, code.count, terminators.data())) return std::nullopt;
  return join(code, padded.data(), terminators.data(), out);
}

/// Appends bits, low first, to memory that is written 8 bytes at a time.
struct BitAppender {
  uint8_t* at;
  uint64_t pending = 0;
  uint32_t filled = 0;  // < 8 between calls

  HWY_INLINE void put(uint64_t bits, uint32_t count) {  // count <= 56, or 60 where all counts are multiples of 4
    pending |= bits << filled;
    filled += count;
    std::memcpy(at, &pending, sizeof(pending));
    at += filled >> 3;
    pending = (filled & 64) != 0 ? 0 : pending >> (filled & ~7u);
    filled &= 7;
  }
  HWY_INLINE void put_unary(uint32_t quotient) {
    for (; quotient > 55; quotient -= 55) put(0, 55);
    put(uint64_t{1} << quotient, quotient + 1);
  }
};

/// Gaps that are coded at once: a block's arrays stay in the nearest cache.
constexpr size_t kEncodeBlock = 512;

/// Four low parts, and four unary codes: a u64 each, and the length of the latter; over kJoinedMax they are not right.
/// Gaps behind the last are 0, up to a whole eight.
struct JoinedCodes {
  alignas(64) std::array<uint64_t, kEncodeBlock / 4> lows;
  alignas(64) std::array<uint64_t, kEncodeBlock / 4> codes;
  alignas(64) std::array<uint64_t, kEncodeBlock / 4> lengths;
};
/// A pair has two bits at least: the other has 31 at most, so that no 32-bit lane overflowed.
constexpr uint64_t kJoinedMax = 33;

#if HWY_TARGET == HWY_SCALAR

void join_codes(const uint16_t* gaps, size_t count, uint32_t shift, JoinedCodes& to) {
  const uint32_t mask = (uint32_t{1} << shift) - 1;
  for (size_t j = 0; j < (count + 7) / 8 * 8; j += 4) {
    uint64_t lows = 0;
    uint64_t codes = 0;
    uint64_t length = 0;
    for (uint32_t i = 0; i < 4; ++i) {
      lows |= uint64_t{gaps[j + i] & mask} << (i * shift);
      length += gaps[j + i] >> shift;
      codes |= uint64_t{1} << (length++ & 63);
    }
    to.lows[j / 4] = lows;
    to.codes[j / 4] = codes;
    to.lengths[j / 4] = length;
  }
}

#else

/// Pairs are joined in 32-bit lanes, pairs of pairs in 64-bit lanes. gaps: [count rounded up to 32].
void join_codes(const uint16_t* gaps, size_t count, uint32_t shift, JoinedCodes& to) {
  const hn::CappedTag<uint32_t, 16> d;
  const hn::Repartition<uint16_t, decltype(d)> d16;
  const hn::Repartition<uint64_t, decltype(d)> d64;
  const int bits = static_cast<int>(shift);
  const auto mask = hn::Set(d16, static_cast<uint16_t>((uint32_t{1} << shift) - 1));
  const auto low16 = hn::Set(d, 0xffff);
  const auto low32 = hn::Set(d64, 0xffff'ffff);
  const auto shift_max = hn::Set(d, 31);  // not every target shifts farther
  const auto wide_shift_max = hn::Set(d64, 63);
  const auto one = hn::Set(d, 1);
  const auto two = hn::Set(d, 2);
  for (size_t j = 0; j < count; j += hn::Lanes(d16)) {
    const auto gap = hn::LoadU(d16, gaps + j);
    const auto low = hn::BitCast(d, hn::And(gap, mask));
    const auto pair = hn::BitCast(d64, hn::Or(hn::And(low, low16), hn::ShiftLeftSame(hn::ShiftRight<16>(low), bits)));
    const auto lows = hn::Or(hn::And(pair, low32), hn::ShiftLeftSame(hn::ShiftRight<32>(pair), 2 * bits));
    hn::StoreU(lows, d64, to.lows.data() + j / 4);

    const auto quotients = hn::BitCast(d, hn::ShiftRightSame(gap, bits));
    const auto first = hn::And(quotients, low16);
    const auto both = hn::Add(first, hn::ShiftRight<16>(quotients));
    const auto pair_codes =
        hn::BitCast(d64, hn::Or(hn::Shl(one, hn::Min(first, shift_max)), hn::Shl(two, hn::Min(both, shift_max))));
    const auto pair_lengths = hn::BitCast(d64, hn::Add(both, two));
    const auto length = hn::And(pair_lengths, low32);
    const auto codes =
        hn::Or(hn::And(pair_codes, low32), hn::Shl(hn::ShiftRight<32>(pair_codes), hn::And(length, wide_shift_max)));
    hn::StoreU(codes, d64, to.codes.data() + j / 4);
    hn::StoreU(hn::Add(length, hn::ShiftRight<32>(pair_lengths)), d64, to.lengths.data() + j / 4);
  }
}

#endif  // HWY_SCALAR

/// gap_j of a block, with zeros behind them up to whole vectors.
void take_gaps(const uint16_t* indices, size_t count, uint32_t next, uint16_t* gaps) {
  gaps[0] = static_cast<uint16_t>(indices[0] - next);
  size_t j = 1;
  const hn::CappedTag<uint16_t, 32> d;  // one lane with one lane's instruction set
  const auto one = hn::Set(d, 1);
  for (; j + hn::Lanes(d) <= count; j += hn::Lanes(d))
    hn::StoreU(hn::Sub(hn::Sub(hn::LoadU(d, indices + j), hn::LoadU(d, indices + j - 1)), one), d, gaps + j);
  for (; j < count; ++j) gaps[j] = static_cast<uint16_t>(indices[j] - indices[j - 1] - 1);
  for (; j % 32 != 0; ++j) gaps[j] = 0;
}

/// Eight low parts of `shift` bits are `shift` bytes: each eight is written over the zeros behind the one before it.
/// Up to 16 bytes are written from where the last eight begins.
void put_lows(const JoinedCodes& joined, size_t count, uint32_t shift, uint8_t* out) {
  const uint32_t half = 4 * shift;
  for (size_t j = 0; j < count; j += 8, out += shift) {
    const uint64_t four = joined.lows[j / 4];
    const uint64_t next_four = joined.lows[j / 4 + 1];
    const std::array<uint64_t, 2> eight = {four | next_four << half, next_four >> 1 >> (63 - half)};
    std::memcpy(out, eight.data(), sizeof(eight));
  }
}

/// The codes of 16 gaps, at once where they are short.
HWY_INLINE void put_sixteen(const JoinedCodes& joined, const uint16_t* gaps, size_t j, uint32_t shift,
                            BitAppender& to) {
  const uint64_t* const codes = joined.codes.data() + j / 4;
  const uint64_t* const lengths = joined.lengths.data() + j / 4;
  const uint64_t first = lengths[0] + lengths[1];
  const uint64_t second = lengths[2] + lengths[3];
  // Each of the four has 4 bits at least, so none is over kJoinedMax.
  constexpr uint64_t kPairMax = kJoinedMax + 4;
  if (first <= kPairMax && second <= kPairMax && first + second <= 56) [[likely]] {
    const uint64_t low = codes[0] | codes[1] << lengths[0];
    const uint64_t high = codes[2] | codes[3] << lengths[2];
    return to.put(low | high << first, static_cast<uint32_t>(first + second));
  }
  for (size_t part = 0; part < 4; ++part) {
    if (lengths[part] <= kJoinedMax) {
      to.put(codes[part], static_cast<uint32_t>(lengths[part]));
    } else {
      for (size_t i = j + 4 * part; i < j + 4 * part + 4; ++i) to.put_unary(gaps[i] >> shift);
    }
  }
}

/// The quotients begin where the lows end: their first bytes wait until the lows' last word, which reaches over them,
/// is written. So blocks are gone through twice, but codes of one block are joined once.
size_t encode(const RiceGaps& code, const uint16_t* indices, uint8_t* out) {
  alignas(64) std::array<uint16_t, kEncodeBlock> gaps;
  JoinedCodes joined;
  const uint32_t shift = code.shift;
  const size_t low_bytes = rice_low_bytes(code.count, shift);
  const size_t blocks = (code.count + kEncodeBlock - 1) / kEncodeBlock;
  const auto join_block = [&](size_t block) {
    const size_t begin = block * kEncodeBlock;
    const size_t count = std::min(kEncodeBlock, code.count - begin);
    take_gaps(indices + begin, count, begin == 0 ? code.first : indices[begin - 1] + 1u, gaps.data());
    join_codes(gaps.data(), count, shift, joined);
    return count;
  };
  size_t count = 0;
  for (size_t block = 0; block < blocks; ++block) {
    count = join_block(block);
    put_lows(joined, count, shift, out + block * (kEncodeBlock / 8) * shift);
  }
  BitAppender quotients{out + low_bytes};
  for (size_t block = 0; block < blocks; ++block) {
    if (blocks > 1) count = join_block(block);
    size_t j = 0;
    for (; j + 16 <= count; j += 16) put_sixteen(joined, gaps.data(), j, shift, quotients);
    for (; j < count; ++j) quotients.put_unary(gaps[j] >> shift);
  }
  return static_cast<size_t>(quotients.at - out) + (quotients.filled > 0 ? 1 : 0);
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(decode);
HWY_EXPORT(encode);
HWY_EXPORT(quotient_sums);

std::optional<uint32_t> rice_gaps_decode(const RiceGaps& code, ByteSpan bytes, uint16_t* out) {
  MILLRACE_CHECK(code.shift <= kRiceShiftMax && code.count >= 1 && code.count <= kRiceCountMax, code.shift, code.count);
  MILLRACE_CHECK(bytes.size() <= kRiceBytesMax, bytes.size());
  if (bytes.size() <= rice_low_bytes(code.count, code.shift)) return std::nullopt;
  return HWY_DYNAMIC_DISPATCH(decode)(code, bytes, out);
}

uint64_t rice_quotient_sum(std::span<const uint16_t> indices, uint32_t shift) {
  return rice_quotient_sums(indices, {shift, shift, shift})[0];
}

std::array<uint64_t, 3> rice_quotient_sums(std::span<const uint16_t> indices, const std::array<uint32_t, 3>& shifts) {
  return HWY_DYNAMIC_DISPATCH(quotient_sums)(indices.data(), indices.size(), shifts);
}

size_t rice_gaps_encode(const RiceGaps& code, std::span<const uint16_t> indices, uint8_t* out) {
  MILLRACE_CHECK(code.shift <= kRiceShiftMax && code.count == indices.size() && code.count >= 1, code.shift,
                 code.count);
  MILLRACE_CHECK(code.first == indices[0], code.first, indices[0]);
  return HWY_DYNAMIC_DISPATCH(encode)(code, indices.data(), out);
}

}  // namespace millrace
#endif  // HWY_ONCE
