// Ranks of a history's entries: plain integers, and vectors to find the entries of a class in a block.
#include "kernels/codec/history/history_ranks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <span>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec/history/history_ranks.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "kernels/codec/bits/bit_positions-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {

using PerClass = std::array<uint32_t, kHistoryClasses>;

/// Of a group: how many entries of each class lie in the blocks before each block.
class GroupTable {
 public:
  HWY_INLINE void fill(const HistoryView& history, size_t group) {
    const size_t begin = group * kHistoryGroupBlocks;
    const size_t blocks = std::min<size_t>(kHistoryGroupBlocks, history.blocks - begin);
    HistoryLanes sum;
    for (size_t block = 0; block < blocks; ++block) {
      sum_[block] = sum;
      sum.add(history.counts[begin + block]);
    }
    for (size_t block = blocks; block < kHistoryGroupBlocks; ++block) sum_[block] = sum;
  }
  HWY_INLINE uint32_t before(size_t block, uint32_t c) const { return sum_[block].of(c); }

  /// The block that has the class's entry number `number` of the group. REQUIRES: there is one.
  HWY_INLINE size_t block_of(uint32_t c, uint32_t number) const {
    static_assert(kHistoryGroupBlocks == 64);
    // Sums and no branches: either way is as likely.
    const auto reaches = [&](size_t at) HWY_ATTR { return size_t{before(at, c) <= number}; };
    size_t block = reaches(32) << 5;
    block += reaches(block + 16) << 4;
    block += reaches(block + 8) << 3;
    block += reaches(block + 4) << 2;
    block += reaches(block + 2) << 1;
    block += reaches(block + 1);
    return block;
  }

 private:
  std::array<HistoryLanes, kHistoryGroupBlocks> sum_;
};

#if HWY_TARGET == HWY_SCALAR  // one lane
/// Which entries of the block are of class c, the first one lowest.
HWY_INLINE uint64_t entries_of_class(const HistoryMark* block, uint32_t c) {
  uint64_t bits = 0;
  for (size_t i = 0; i < kHistoryBlock; ++i) bits |= uint64_t{block[i] >> 4 == static_cast<int>(c)} << i;
  return bits;
}
#else
HWY_INLINE uint64_t entries_of_class(const HistoryMark* block, uint32_t c) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::CappedTag<uint8_t, kHistoryBlock> d;
  const auto wanted = hn::Set(d, static_cast<uint8_t>(c << 4));
  const auto class_bits = hn::Set(d, uint8_t{0xf0});
  std::array<uint8_t, sizeof(uint64_t)> bytes;
  for (size_t i = 0; i < kHistoryBlock; i += hn::Lanes(d)) {
    hn::StoreMaskBits(d, hn::Eq(hn::And(hn::LoadU(d, block + i), class_bits), wanted), bytes.data() + i / 8);
  }
  return std::bit_cast<uint64_t>(bytes);
}
#endif

/// The bit of `bits` that has `before` set ones below it. REQUIRES: there is one. Without branches [Vigna08].
HWY_INLINE uint64_t set_bit(uint64_t bits, uint32_t before) {
  constexpr uint64_t kOnes = 0x0101010101010101;
  constexpr uint64_t kTops = 0x80 * kOnes;
  uint64_t counts = bits - (bits >> 1 & 0x5555555555555555);
  counts = (counts & 0x3333333333333333) + (counts >> 2 & 0x3333333333333333);
  const uint64_t sums = ((counts + (counts >> 4)) & 0x0f0f0f0f0f0f0f0f) * kOnes;  // of each byte and those below
  const uint64_t passed = ((before * kOnes | kTops) - sums) & kTops;              // bytes all of whose bits are below
  const auto shift = static_cast<uint32_t>(hwy::PopCount(passed)) * 8;
  const uint32_t rest = before - static_cast<uint32_t>(sums << 8 >> shift & 0xff);
  // In the byte: the prefix counts of its bits, in 8 bytes.
  const uint64_t spread = ((bits >> shift & 0xff) * kOnes & 0x8040201008040201);  // bit i in byte i
  const uint64_t set = (spread + (kTops - kOnes)) >> 7 & kOnes;
  const uint64_t prefix = set * kOnes;
  const uint64_t below = ((rest * kOnes | kTops) - prefix) & kTops;
  return uint64_t{1} << (shift + static_cast<uint32_t>(hwy::PopCount(below)));
}

/// The rank of the first entry of each class.
HWY_INLINE PerClass first_ranks(const HistoryView& history) {
  PerClass totals{};
  for (size_t g = 0; g < history.group_count; ++g) {
    for (size_t c = 0; c < kHistoryClasses; ++c) totals[c] += history.groups[g][c];
  }
  PerClass first{};
  for (size_t c = 1; c < kHistoryClasses; ++c) first[c] = first[c - 1] + totals[c - 1];
  return first;
}

HWY_INLINE void pass_group(const HistoryGroup& group, PerClass& first) {
  for (size_t c = 0; c < kHistoryClasses; ++c) first[c] += group[c];
}

void ranks_of(const HistoryView& history, IndexSpan indices, uint32_t* ranks) {
  PerClass chosen{};
  for (const uint32_t index : indices) ++chosen[history.marks[index] >> 4];
  PerClass place{};
  for (size_t c = 1; c < kHistoryClasses; ++c) place[c] = place[c - 1] + chosen[c - 1];
  PerClass first = first_ranks(history);  // of the group
  GroupTable table;
  size_t group = 0;
  size_t filled = history.group_count;
  for (const uint32_t index : indices) {
    const size_t block = index / kHistoryBlock;
    for (; group < block / kHistoryGroupBlocks; ++group) pass_group(history.groups[group], first);
    if (filled != group) table.fill(history, group);
    filled = group;
    const uint32_t c = history.marks[index] >> 4;
    const uint64_t below = (uint64_t{1} << index % kHistoryBlock) - 1;
    const uint64_t same = entries_of_class(history.marks + block * kHistoryBlock, c) & below;
    ranks[place[c]++] =
        first[c] + table.before(block % kHistoryGroupBlocks, c) + static_cast<uint32_t>(hwy::PopCount(same));
  }
}

/// An entry of a group: number `number` of class c in the block.
struct Wanted {
  uint8_t block;
  uint8_t c;
  uint8_t number;
};
static_assert(kHistoryBlock <= 256 && kHistoryGroupBlocks <= 256);

/// Holds the walk's state of the present group.
struct GroupScratch {
  GroupTable table;
  std::array<Wanted, kHistoryBlock * kHistoryGroupBlocks> wanted;
};

using NextRanks = std::array<const uint32_t*, kHistoryClasses>;

/// Finds the entries of the group that the ranks at `next` stand for, and moves these on. Returns how many they are.
HWY_INLINE size_t find_wanted(const HistoryView& history, size_t group, const PerClass& first, NextRanks& next,
                              GroupScratch& scratch) {
  const HistoryGroup& counts = history.groups[group];
  uint32_t any = 0;
  // Behind a class's last rank is one of a later class, further away than the remaining members of this one.
  for (size_t c = 0; c < kHistoryClasses; ++c) any |= *next[c] - first[c] < counts[c] ? 1u : 0u;
  if (any == 0) return 0;
  scratch.table.fill(history, group);
  const HistoryMark* const marks = history.marks + group * kHistoryGroupBlocks * kHistoryBlock;
  size_t wanted = 0;
  for (uint32_t c = 0; c < kHistoryClasses; ++c) {
    for (uint32_t number = *next[c] - first[c]; number < counts[c]; number = *++next[c] - first[c]) {
      const size_t block = scratch.table.block_of(c, number);
      __builtin_prefetch(marks + block * kHistoryBlock);  // class by class: no order that the processor would see
      scratch.wanted[wanted++] = {static_cast<uint8_t>(block), static_cast<uint8_t>(c),
                                  static_cast<uint8_t>(number - scratch.table.before(block, c))};
    }
  }
  return wanted;
}

/// Writes the indices of these entries of the group, increasing, and returns where they end.
HWY_INLINE uint32_t* put_wanted(const HistoryView& history, size_t group, std::span<const Wanted> wanted,
                                uint32_t* indices) {
  const size_t begin = group * kHistoryGroupBlocks * kHistoryBlock;
  std::array<uint64_t, kHistoryGroupBlocks> taken{};
  uint64_t blocks = 0;
  for (const Wanted& one : wanted) {
    const HistoryMark* const block = history.marks + begin + one.block * kHistoryBlock;
    taken[one.block] |= set_bit(entries_of_class(block, one.c), one.number);
    blocks |= uint64_t{1} << one.block;
  }
  for (; blocks != 0; blocks &= blocks - 1) {
    const auto block = static_cast<size_t>(std::countr_zero(blocks));
    indices += store_positions(taken[block], static_cast<uint32_t>(begin + block * kHistoryBlock), indices);
  }
  return indices;
}

void indices_of(const HistoryView& history, const uint32_t* ranks, size_t count, uint32_t* indices) {
  static_assert(kPositionsSlack <= kHistorySlack);
  PerClass first = first_ranks(history);  // of the group
  NextRanks next;
  for (size_t c = 0; c < kHistoryClasses; ++c) next[c] = std::lower_bound(ranks, ranks + count, first[c]);
  GroupScratch scratch;
  const uint32_t* const end = indices + count;
  for (size_t group = 0; indices < end; ++group) {
    const size_t wanted = find_wanted(history, group, first, next, scratch);
    if (wanted > 0) indices = put_wanted(history, group, std::span(scratch.wanted).first(wanted), indices);
    pass_group(history.groups[group], first);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(ranks_of);
HWY_EXPORT(indices_of);

void history_ranks(const HistoryView& history, IndexSpan indices, uint32_t* ranks) {
  HWY_DYNAMIC_DISPATCH(ranks_of)(history, indices, ranks);
}

void history_indices(const HistoryView& history, const uint32_t* ranks, size_t count, uint32_t* indices) {
  HWY_DYNAMIC_DISPATCH(indices_of)(history, ranks, count, indices);
}

}  // namespace millrace
#endif  // HWY_ONCE
