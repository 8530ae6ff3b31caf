#pragma once

#include "kernels/cuda/queue/block_kernel.h"

/// The kernels of selections. Positions come out in increasing order without one block waiting for another. A block
/// reserves room for the candidates of its tile behind those of earlier blocks, and a table of segments remembers the
/// place. Later kernels (segment_kernels.h) go through the segments in the order of the tiles.
namespace millrace::cuda {

/// Entries that one block of Collect looks at: eight rows of four neighbours for each thread.
inline constexpr uint32_t kTile = 8192;
inline constexpr uint32_t kTileOfWarp = 1024;
inline constexpr uint32_t kRowOfWarp = 128;
inline constexpr uint32_t kRows = 8;

/// Digits of a key: from bit 20, 9 and 0 on, 11 bits each; the last one overlaps two bits that are equal among
/// survivors.
inline constexpr uint32_t kDigitBits = 11;
inline constexpr uint32_t kBins = 1u << kDigitBits;
inline constexpr uint32_t kTopShift = 20;
constexpr uint32_t shift_of_digit(uint32_t digit) { return digit == 0 ? kTopShift : digit == 1 ? 9 : 0; }

/// The state that the kernels of one selection share, in device memory.
struct SelectState {
  uint64_t found = 0;       ///< entries that reached the guess, also those beyond the capacity
  uint64_t rank = 0;        ///< of the wanted key among those with the decided digits, from 1; at the end: ties to take
  uint64_t in_digit = 0;    ///< keys with the digits decided last
  uint64_t total = 0;       ///< positions selected
  uint32_t decided = 0;     ///< digits of the wanted key
  uint32_t mask = 0;        ///< which bits of it they are
  uint32_t tickets = 0;     ///< blocks that are done
  uint32_t non_finite = 0;  ///< 1: NaN or infinity met
  uint32_t missing = 0;     ///< 1: fewer keys than the rank
  uint32_t reserved = 0;
};

/// Candidates, and where those of each tile are.
struct CandidateTable {
  uint32_t* positions;
  uint32_t* keys;
  uint64_t capacity;
  uint32_t* segment_first;
  uint32_t* segment_count;
};

/// Begins a selection: its states, and bins of 0. One block.
struct BeginSelection {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kSharedWords = 0;
  SelectState first;   ///< of the guess
  SelectState second;  ///< of the selection itself
  SelectState* states;
  uint64_t* bins;  ///< [kBins]; null: not wanted

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    block.step([&](auto t) {
      if (t.rank < 2) states[t.rank] = t.rank == 0 ? first : second;
      for (uint32_t bin = t.rank; bins != nullptr && bin < kBins; bin += kThreads) bins[bin] = 0;
    });
  }
};

/// Writes 0, 1, 2, ...
struct CountUp {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kSharedWords = 0;
  uint32_t* positions;
  uint64_t count;

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    block.step([&](auto t) {
      stride_over<kThreads>(block, t, count, [&](uint64_t i) { positions[i] = static_cast<uint32_t>(i); });
    });
  }
};

/// The largest key of an array.
struct MaxKey {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kSharedWords = 0;
  static constexpr uint32_t kRowCount = 4;
  static constexpr uint32_t kBlockEntries = kThreads * 4 * kRowCount;
  const float* values;
  uint64_t count;
  uint32_t is_aligned;  ///< 1: values are at a multiple of 16 bytes
  uint32_t* largest;

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    auto own = block.template own<uint32_t>();
    block.step([&](auto t) {
      const uint64_t first = uint64_t{block.index()} * kBlockEntries + t.rank * 4;
      Float4 rows[kRowCount];
      MILLRACE_UNROLL
      for (uint32_t j = 0; j < kRowCount; ++j) {
        const uint64_t at = first + j * kThreads * 4;
        if (is_aligned != 0 && at + 4 <= count) {
          rows[j] = block.load4(values + at);
        } else {
          for (uint32_t c = 0; c < 4; ++c) rows[j].at[c] = at + c < count ? values[at + c] : 0.0F;
        }
      }
      uint32_t key = 0;
      MILLRACE_UNROLL
      for (uint32_t j = 0; j < kRowCount; ++j) {
        MILLRACE_UNROLL
        for (uint32_t c = 0; c < 4; ++c) key = key_of(rows[j].at[c]) > key ? key_of(rows[j].at[c]) : key;
      }
      own[t] = key;
    });
    auto of_warp = block.warp_max([&](auto t) { return own[t]; });
    block.step([&](auto t) {
      if (t.lane() == 0 && of_warp[t] > block.fresh(largest)) block.max_global(largest, of_warp[t]);
    });
  }
};

/// The sample of sample_keys() in kernels/select, key by key.
struct SampleKeys {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kSharedWords = 0;
  const float* values;
  uint64_t samples;
  uint64_t width;  ///< of a range, in 16 bits of fraction
  uint32_t* keys;

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    block.step([&](auto t) {
      const uint64_t i = uint64_t{block.index()} * kThreads + t.rank;
      if (i >= samples) return;
      const uint64_t within = ((jitter(i + 1) >> 40) * (width >> 8)) >> 16;
      keys[i] = key_of(values[(i * width + within) >> 16]);
    });
  }

  /// Returns the state of a linear congruential generator after `steps` steps: powers of its step by squaring.
  MILLRACE_DEVICE static uint64_t jitter(uint64_t steps) {
    uint64_t state = 0x9E3779B97F4A7C15u;
    uint64_t factor = 6364136223846793005u;
    uint64_t summand = 1442695040888963407u;
    for (; steps != 0; steps >>= 1) {
      if ((steps & 1) != 0) state = state * factor + summand;
      summand = (factor + 1) * summand;
      factor *= factor;
    }
    return state;
  }
};

/// Keys in memory, of which there are *found; over `capacity`: none.
struct KeySource {
  const uint32_t* keys;
  const uint64_t* found;
  uint64_t capacity;
  MILLRACE_DEVICE uint64_t count() const { return *found <= capacity ? *found : 0; }
  MILLRACE_DEVICE uint32_t key(uint64_t i) const { return keys[i]; }
};

/// The keys of values.
struct ValueSource {
  const float* values;
  uint64_t size;
  MILLRACE_DEVICE uint64_t count() const { return size; }
  MILLRACE_DEVICE uint32_t key(uint64_t i) const { return key_of(values[i]); }
};

/// The keys of values at positions.
struct PositionSource {
  const float* values;
  const uint32_t* positions;
  uint64_t size;
  MILLRACE_DEVICE uint64_t count() const { return size; }
  MILLRACE_DEVICE uint32_t key(uint64_t i) const { return key_of(values[positions[i]]); }
};

/// One digit of a radix selection. Counts the digit over the keys that still can be the wanted one. The block that
/// finishes last finds the digit that the rank is in, and clears the bins for the next digit.
///
/// bins    [kBins] zeros, before and after.
/// Source  [RedSync19, 2.1]; radixSelect: [Alabi12].
template <class Source>
struct CountDigit {
  static constexpr uint32_t kThreads = 512;
  static constexpr uint32_t kLoads = 4;  ///< at once
  static constexpr uint32_t kSharedWords = kBins + 1;
  static constexpr uint32_t kBinsOfThread = kBins / kThreads;
  static constexpr uint32_t kNoKey = ~0u;  ///< keys have no sign bit
  Source source;
  uint32_t shift;
  uint64_t* bins;
  SelectState* state;

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    count_keys(block);
    auto shared = block.template shared<uint32_t>(0);
    block.phase([&](auto t) {
      if (t.rank == 0) shared.store(t, kBins, block.add_global(&state->tickets, 1u));
    });
    if (shared.uniform(kBins) != block.blocks() - 1) return;
    block.fence();
    find_digit(block);
  }

  template <class Block>
  MILLRACE_DEVICE void count_keys(Block& block) const {
    auto shared = block.template shared<uint32_t>(0);
    const uint64_t count = source.count();
    const uint32_t decided = state->decided;
    const uint32_t mask = state->mask;
    block.phase([&](auto t) {
      for (uint32_t bin = t.rank; bin < kBins; bin += kThreads) shared.store(t, bin, 0);
    });
    block.phase([&](auto t) {
      const uint64_t stride = uint64_t{block.blocks()} * kThreads * kLoads;
      for (uint64_t first = uint64_t{block.index()} * kThreads * kLoads + t.rank; first < count; first += stride) {
        uint32_t keys[kLoads];
        MILLRACE_UNROLL
        for (uint32_t j = 0; j < kLoads; ++j) {
          keys[j] = first + j * kThreads < count ? source.key(first + j * kThreads) : kNoKey;
        }
        MILLRACE_UNROLL
        for (uint32_t j = 0; j < kLoads; ++j) {
          if (keys[j] != kNoKey && (keys[j] & mask) == decided) shared.add(t, (keys[j] >> shift) & (kBins - 1), 1);
        }
      }
    });
    block.phase([&](auto t) {
      for (uint32_t bin = t.rank; bin < kBins; bin += kThreads) {
        const uint32_t counted = shared.load(t, bin);
        if (counted != 0) block.add_global(bins + bin, uint64_t{counted});
      }
      block.fence();
    });
  }

  template <class Block>
  MILLRACE_DEVICE void find_digit(Block& block) const {
    auto above = block.template own<uint64_t>();
    const uint64_t rank = block.fresh(&state->rank);
    block.step([&](auto t) {
      uint64_t sum = 0;
      for (uint32_t i = 0; i < kBinsOfThread; ++i) sum += block.fresh(bins + bin_of(t.rank, i));
      above[t] = sum;
    });
    const uint64_t total = block.scan(above);
    block.phase([&](auto t) {
      uint64_t left = above[t];
      for (uint32_t i = 0; i < kBinsOfThread; ++i) {
        const uint32_t bin = bin_of(t.rank, i);
        const uint64_t counted = block.fresh(bins + bin);
        if (left < rank && rank <= left + counted) {
          state->decided |= bin << shift;
          state->mask |= (kBins - 1) << shift;
          state->rank = rank - left;
          state->in_digit = counted;
        }
        if (shift == kTopShift && bin >= kKeyInfinity >> shift && counted != 0) state->non_finite = 1;
        left += counted;
        bins[bin] = 0;
      }
      if (t.rank == 0) {
        state->tickets = 0;
        if (total < rank) state->missing = 1;
      }
    });
  }

  /// Bins from the highest on.
  MILLRACE_DEVICE static uint32_t bin_of(uint32_t rank, uint32_t i) { return kBins - 1 - (rank * kBinsOfThread + i); }
};

/// Entries of an array whose key reaches *key_min. REQUIRES a key of at least 1, at most infinity's, unless all are
/// wanted.
struct MagnitudeTest {
  const float* values;
  uint64_t count;
  const SelectState* guess;
  uint32_t key_least;   ///< the key to reach is at least this
  uint32_t is_aligned;  ///< 1: values are at a multiple of 16 bytes

  /// A thread's entries.
  struct Entries {
    Float4 rows[kRows];
    MILLRACE_DEVICE uint32_t key(uint32_t j, uint32_t c) const { return key_of(rows[j].at[c]); }
  };

  /// Bit 4 j + c: entry c of the thread's four in row j.
  template <class Block>
  MILLRACE_DEVICE uint32_t mask(Block& block, uint64_t first, Entries& entries) const {
    uint32_t least = guess->decided > key_least ? guess->decided : key_least;
    least = least < kKeyInfinity ? least : kKeyInfinity;
    uint32_t bits = 0;
    if (is_aligned != 0 && first + kTileOfWarp <= count) {
      MILLRACE_UNROLL
      for (uint32_t j = 0; j < kRows; ++j) entries.rows[j] = block.load4(values + first + j * kRowOfWarp);
      MILLRACE_UNROLL
      for (uint32_t j = 0; j < kRows; ++j) {
        MILLRACE_UNROLL
        for (uint32_t c = 0; c < 4; ++c) bits |= (entries.key(j, c) >= least ? 1u : 0u) << (4 * j + c);
      }
      return bits;
    }
    MILLRACE_UNROLL
    for (uint32_t j = 0; j < kRows; ++j) {
      MILLRACE_UNROLL
      for (uint32_t c = 0; c < 4; ++c) {
        const uint64_t i = first + j * kRowOfWarp + c;
        entries.rows[j].at[c] = i < count ? values[i] : 0.0F;
        if (i < count && entries.key(j, c) >= least) bits |= 1u << (4 * j + c);
      }
    }
    return bits;
  }
};

/// Collects the entries that a test accepts. Test::mask() tests those of a thread, from an index on.
template <class Test>
struct Collect {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kBlocksAtOnce = 4;
  static constexpr uint32_t kWarps = kThreads / kWarp;
  static constexpr uint32_t kSharedWords = kWarps + 2;
  Test test;
  CandidateTable out;
  SelectState* state;

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    auto shared = block.template shared<uint32_t>(0);
    auto mask = block.template own<uint32_t>();
    auto entries = block.template own<typename Test::Entries>();
    auto even = block.template own<uint32_t>();  // a byte a row: rows 0, 2, 4, 6
    auto odd = block.template own<uint32_t>();
    block.step([&](auto t) {
      const uint32_t bits = test.mask(block, first_of(block, t), entries[t]);
      mask[t] = bits;
      const uint32_t pairs = bits - ((bits >> 1) & 0x55555555u);
      const uint32_t fours = (pairs & 0x33333333u) + ((pairs >> 2) & 0x33333333u);
      even[t] = fours & 0x0F0F0F0Fu;
      odd[t] = (fours >> 4) & 0x0F0F0F0Fu;
    });
    const auto even_rows = block.warp_scan(even);
    const auto odd_rows = block.warp_scan(odd);
    block.phase([&](auto t) {
      if (t.lane() == 0) shared.store(t, t.warp(), sum_of_bytes(even_rows[t]) + sum_of_bytes(odd_rows[t]));
    });
    reserve(block);
    if (shared.uniform(kWarps + 1) == 0) return;
    block.step([&](auto t) {
      if (mask[t] == 0) return;
      uint32_t at = shared.load(t, kWarps);
      for (uint32_t warp = 0; warp < t.warp(); ++warp) at += shared.load(t, warp);
      write(first_of(block, t), mask[t], entries[t], {{even[t], odd[t]}, {even_rows[t], odd_rows[t]}}, at);
    });
  }

  /// Row j's count is byte j / 2 of at[j % 2].
  struct RowCounts {
    uint32_t at[2];
    MILLRACE_DEVICE uint32_t row(uint32_t j) const { return (at[j % 2] >> (j / 2 * 8)) & 0xFFu; }
  };

  struct Places {
    RowCounts before;  ///< of lower lanes
    RowCounts rows;    ///< of the warp
  };

  template <class Block, class Thread>
  MILLRACE_DEVICE static uint64_t first_of(Block& block, Thread t) {
    return uint64_t{block.index()} * kTile + t.warp() * kTileOfWarp + t.lane() * 4;
  }

  /// A warp has at most 128 entries a row, four rows a word.
  MILLRACE_DEVICE static uint32_t sum_of_bytes(uint32_t word) {
    return (word & 0xFFu) + ((word >> 8) & 0xFFu) + ((word >> 16) & 0xFFu) + (word >> 24);
  }

  /// Words kWarps and kWarps + 1: where the tile's candidates go, and whether there is room.
  template <class Block>
  MILLRACE_DEVICE void reserve(Block& block) const {
    auto shared = block.template shared<uint32_t>(0);
    block.phase([&](auto t) {
      if (t.rank != 0) return;
      uint32_t total = 0;
      for (uint32_t warp = 0; warp < kWarps; ++warp) total += shared.load(t, warp);
      const uint64_t first = total == 0 ? 0 : block.add_global(&state->found, uint64_t{total});
      const bool fits = first + total <= out.capacity;
      out.segment_first[block.index()] = static_cast<uint32_t>(first);
      out.segment_count[block.index()] = fits ? total : 0;
      shared.store(t, kWarps, static_cast<uint32_t>(first));
      shared.store(t, kWarps + 1, fits ? total : 0);
    });
  }

  MILLRACE_DEVICE void write(uint64_t first, uint32_t bits, const typename Test::Entries& entries, const Places& places,
                             uint32_t at) const {
    MILLRACE_UNROLL
    for (uint32_t j = 0; j < kRows; ++j) {
      uint32_t to = at + places.before.row(j);
      MILLRACE_UNROLL
      for (uint32_t c = 0; c < 4; ++c) {
        if (((bits >> (4 * j + c)) & 1u) == 0) continue;
        const uint64_t i = first + j * kRowOfWarp + c;
        const uint32_t key = entries.key(j, c);
        out.positions[to] = static_cast<uint32_t>(i);
        out.keys[to] = key;
        if (key >= kKeyInfinity) state->non_finite = 1;
        ++to;
      }
      at += places.rows.row(j);
    }
  }
};

}  // namespace millrace::cuda
