#pragma once

#include "kernels/cuda/select_kernels.h"

/// The kernels that go through the segments of a selection in the order of their tiles.
namespace millrace::cuda {

/// Segments that one block counts and writes: a warp has two, one after the other.
inline constexpr uint32_t kSegmentThreads = 256;
inline constexpr uint32_t kSegmentsOfBlock = 16;
inline constexpr uint32_t kTurns = kSegmentsOfBlock * kWarp / kSegmentThreads;

/// Segments of candidates, and their counts.
struct SegmentTable {
  CandidateTable from;
  uint32_t segments;
  uint32_t* above;     ///< [segments] candidates above the cut
  uint32_t* equal;     ///< [segments] equal to it
  uint64_t* above_of;  ///< [blocks] of a block's segments; then of those before
  uint64_t* equal_of;

  MILLRACE_DEVICE uint32_t count(uint32_t segment) const {
    return segment < segments ? from.segment_count[segment] : 0;
  }
};

/// Counts the candidates of each segment that are above the cut, and equal to it; the block that finishes last adds up.
struct CountSegments {
  static constexpr uint32_t kThreads = kSegmentThreads;
  static constexpr uint32_t kSharedWords = 2 * kSegmentsOfBlock + 1;
  SegmentTable table;
  uint32_t skips_zeros;  ///< 1: ties at 0 are not selected
  SelectState* state;

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    auto shared = block.template shared<uint32_t>(0);
    for (uint32_t turn = 0; turn < kTurns; ++turn) count_turn(block, turn);
    block.phase([](auto) {});
    block.phase([&](auto t) {
      if (t.rank != 0) return;
      uint64_t above = 0;
      uint64_t equal = 0;
      for (uint32_t i = 0; i < kSegmentsOfBlock; ++i) {
        above += shared.load(t, 2 * i);
        equal += shared.load(t, 2 * i + 1);
      }
      table.above_of[block.index()] = above;
      table.equal_of[block.index()] = equal;
      block.fence();
      shared.store(t, 2 * kSegmentsOfBlock, block.add_global(&state->tickets, 1u));
    });
    if (shared.uniform(2 * kSegmentsOfBlock) != block.blocks() - 1) return;
    block.fence();
    add_up(block);
  }

  template <class Block>
  MILLRACE_DEVICE void count_turn(Block& block, uint32_t turn) const {
    auto shared = block.template shared<uint32_t>(0);
    auto both = block.template own<uint32_t>();  // above in the lower half: a segment has at most kTile
    const uint32_t first = block.index() * kSegmentsOfBlock + turn * (kThreads / kWarp);
    block.step([&](auto t) {
      const uint32_t segment = first + t.warp();
      const uint32_t count = table.count(segment);
      if (count == 0) return;
      const uint32_t cut = state->decided;
      const uint32_t* const keys = table.from.keys + table.from.segment_first[segment];
      for (uint32_t i = t.lane(); i < count; i += kWarp) both[t] += keys[i] > cut ? 1u : keys[i] == cut ? 1u << 16 : 0u;
    });
    const auto of_warp = block.warp_scan(both);
    block.step([&](auto t) {
      if (t.lane() != 0) return;
      const uint32_t at = turn * (kThreads / kWarp) + t.warp();
      shared.store(t, 2 * at, of_warp[t] & 0xFFFFu);
      shared.store(t, 2 * at + 1, of_warp[t] >> 16);
      if (first + t.warp() >= table.segments) return;
      table.above[first + t.warp()] = of_warp[t] & 0xFFFFu;
      table.equal[first + t.warp()] = of_warp[t] >> 16;
    });
  }

  /// Turns the blocks' counts into those of the blocks before.
  template <class Block>
  MILLRACE_DEVICE void add_up(Block& block) const {
    const uint32_t each = (block.blocks() + kThreads - 1) / kThreads;
    auto above_before = block.template own<uint64_t>();
    auto equal_before = block.template own<uint64_t>();
    block.step([&](auto t) {
      for (uint32_t i = t.rank * each; i < (t.rank + 1) * each && i < block.blocks(); ++i) {
        above_before[t] += block.fresh(table.above_of + i);
        equal_before[t] += block.fresh(table.equal_of + i);
      }
    });
    const uint64_t above_total = block.scan(above_before);
    const uint64_t equal_total = block.scan(equal_before);
    block.step([&](auto t) {
      uint64_t above = above_before[t];
      uint64_t equal = equal_before[t];
      for (uint32_t i = t.rank * each; i < (t.rank + 1) * each && i < block.blocks(); ++i) {
        const uint64_t above_here = block.fresh(table.above_of + i);
        const uint64_t equal_here = block.fresh(table.equal_of + i);
        table.above_of[i] = above;
        table.equal_of[i] = equal;
        above += above_here;
        equal += equal_here;
      }
      if (t.rank != 0) return;
      const uint64_t ties = skips_zeros != 0 && state->decided == 0 ? 0 : state->rank;
      state->total = above_total + (equal_total < ties ? equal_total : ties);
      state->tickets = 0;
    });
  }
};

/// Writes the positions of the selected candidates, increasing; those from `limit` on are left out.
struct EmitSegments {
  static constexpr uint32_t kThreads = kSegmentThreads;
  static constexpr uint32_t kSharedWords = 4 * kSegmentsOfBlock;
  static constexpr uint32_t kTies = 2 * kSegmentsOfBlock;  ///< behind the places, both of u64
  SegmentTable table;
  uint32_t skips_zeros;
  const SelectState* state;
  uint64_t limit;
  uint32_t* positions;

  /// The segment of a lane's warp.
  struct Segment {
    uint32_t begin;
    uint32_t count;
    uint64_t ties_left;
    uint64_t to;
  };

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    find_places(block);
    for (uint32_t turn = 0; turn < kTurns; ++turn) write_turn(block, turn);
  }

  /// Where the segments' selected go, and how many ties are left for each.
  template <class Block>
  MILLRACE_DEVICE void find_places(Block& block) const {
    auto places = block.template shared<uint64_t>(0);
    auto ties_of = block.template shared<uint64_t>(kTies);
    auto above = block.template own<uint64_t>();
    auto equal = block.template own<uint64_t>();
    block.step([&](auto t) {
      const uint32_t segment = block.index() * kSegmentsOfBlock + t.rank;
      if (t.rank >= kSegmentsOfBlock || segment >= table.segments) return;
      above[t] = table.above[segment];
      equal[t] = table.equal[segment];
    });
    block.scan(above);
    block.scan(equal);
    const uint64_t ties = skips_zeros != 0 && state->decided == 0 ? 0 : state->rank;
    block.phase([&](auto t) {
      if (t.rank >= kSegmentsOfBlock) return;
      const uint64_t higher = table.above_of[block.index()] + above[t];
      const uint64_t same = table.equal_of[block.index()] + equal[t];
      places.store(t, t.rank, higher + (same < ties ? same : ties));
      ties_of.store(t, t.rank, same < ties ? ties - same : 0);
    });
  }

  template <class Block>
  MILLRACE_DEVICE void write_turn(Block& block, uint32_t turn) const {
    auto places = block.template shared<uint64_t>(0);
    auto ties_of = block.template shared<uint64_t>(kTies);
    auto own = block.template own<Segment>();
    constexpr uint32_t kWarps = kThreads / kWarp;
    const uint32_t first = block.index() * kSegmentsOfBlock + turn * kWarps;
    uint32_t longest = 0;
    for (uint32_t i = 0; i < kWarps; ++i) longest = table.count(first + i) > longest ? table.count(first + i) : longest;
    block.step([&](auto t) {
      const uint32_t segment = first + t.warp();
      if (table.count(segment) == 0) return;
      const uint32_t at = turn * kWarps + t.warp();
      own[t] = {table.from.segment_first[segment], table.count(segment), ties_of.load(t, at), places.load(t, at)};
    });
    for (uint32_t at = 0; at < longest; at += kWarp) write_row(block, own, at);
  }

  template <class Block, class Own>
  MILLRACE_DEVICE void write_row(Block& block, Own& own, uint32_t at) const {
    const uint32_t cut = state->decided;
    auto key = block.template own<uint32_t>();
    const auto inside = [&](auto t) { return at + t.lane() < own[t].count; };
    block.step([&](auto t) { key[t] = inside(t) ? table.from.keys[own[t].begin + at + t.lane()] : 0; });
    const auto equal = block.ballot([&](auto t) { return inside(t) && key[t] == cut; });
    const auto chosen = block.ballot([&](auto t) {
      const bool is_tie = key[t] == cut && bit_count(equal[t] & lanes_below(t.lane())) < own[t].ties_left;
      return inside(t) && (key[t] > cut || is_tie);
    });
    block.step([&](auto t) {
      const uint64_t place = own[t].to + bit_count(chosen[t] & lanes_below(t.lane()));
      if (((chosen[t] >> t.lane()) & 1u) != 0 && place < limit) {
        positions[place] = table.from.positions[own[t].begin + at + t.lane()];
      }
      const uint32_t ties_seen = bit_count(equal[t]);
      own[t].ties_left -= ties_seen < own[t].ties_left ? ties_seen : own[t].ties_left;
      own[t].to += bit_count(chosen[t]);
    });
  }
};

}  // namespace millrace::cuda
