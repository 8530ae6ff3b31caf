#pragma once

#include "kernels/cuda/queue/block_kernel.h"
#include "kernels/cuda/select_kernels.h"

/// The kernels of sums over values, and of draws by size.
namespace millrace::cuda {

/// Sums over a chunk of values, as TailSums of kernels/magnitude.
struct ChunkSums {
  uint64_t above;
  double sum;
  double magnitude;
  double squares;
};

/// Sums each chunk of an array in the host's order. Sixteen threads of a block add one value after the other; the
/// others load and convert the next ones.
struct SumTails {
  static constexpr uint64_t kChunk = uint64_t{1} << 18;
  static constexpr uint32_t kThreads = 128;
  static constexpr uint32_t kSumLanes = 16;
  static constexpr uint32_t kEach = 8;  ///< values that a thread loads at once
  static constexpr uint32_t kStaged = kThreads * kEach;
  static constexpr uint32_t kSharedWords = 2 * kStaged;
  const float* values;
  uint64_t count;
  uint32_t cut;  ///< keys from this on are in no sum
  ChunkSums* chunks;

  struct Loaded {
    float at[kEach];
  };
  struct LaneSums {
    double sum = 0;
    double magnitude = 0;
    double squares = 0;

    /// The square of an f32 is exact in f64.
    MILLRACE_DEVICE void add(double value) {
      sum += value;
      magnitude += __builtin_fabs(value);
      squares += value * value;
    }
  };

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    auto staged = block.template shared<double>(0);
    auto loaded = block.template own<Loaded>();
    auto below = block.template own<uint32_t>();
    auto sums = block.template own<LaneSums>();
    const uint64_t begin = block.index() * kChunk;
    const uint64_t end = count - begin < kChunk ? count : begin + kChunk;
    block.step([&](auto t) { load(begin + t.rank, end, loaded[t]); });
    for (uint64_t first = begin; first < end; first += kStaged) {
      block.phase([&](auto t) { below[t] += stage(t, staged, loaded[t]); });
      block.phase([&](auto t) {
        load(first + kStaged + t.rank, end, loaded[t]);
        if (t.rank >= kSumLanes) return;
        LaneSums own = sums[t];
        for (uint32_t i = t.rank; i < kStaged; i += kSumLanes) own.add(staged.load(t, i));
        sums[t] = own;
      });
    }
    const uint32_t all_below = block.scan(below);
    block.phase([&](auto t) {
      if (t.rank >= kSumLanes) return;
      staged.store(t, 3 * t.rank, sums[t].sum);
      staged.store(t, 3 * t.rank + 1, sums[t].magnitude);
      staged.store(t, 3 * t.rank + 2, sums[t].squares);
    });
    block.step([&](auto t) {
      if (t.rank != 0) return;
      ChunkSums all{end - begin - all_below, 0, 0, 0};
      for (uint32_t lane = 0; lane < kSumLanes; ++lane) {
        all.sum += staged.load(t, 3 * lane);
        all.magnitude += staged.load(t, 3 * lane + 1);
        all.squares += staged.load(t, 3 * lane + 2);
      }
      chunks[block.index()] = all;
    });
  }

  /// Entries behind the end have an infinite key: they are in no sum.
  MILLRACE_DEVICE void load(uint64_t first, uint64_t end, Loaded& loaded) const {
    MILLRACE_UNROLL
    for (uint32_t j = 0; j < kEach; ++j) {
      const uint64_t at = first + j * kThreads;
      loaded.at[j] = at < end ? values[at] : float_of(kKeyInfinity);
    }
  }

  /// Returns how many values are in the sums. 0 takes the place of the others, and changes no sum.
  template <class Thread, class Shared>
  MILLRACE_DEVICE uint32_t stage(Thread t, const Shared& staged, const Loaded& loaded) const {
    uint32_t below = 0;
    MILLRACE_UNROLL
    for (uint32_t j = 0; j < kEach; ++j) {
      const bool is_below = key_of(loaded.at[j]) < cut;
      staged.store(t, t.rank + j * kThreads, is_below ? double{loaded.at[j]} : 0.0);
      below += is_below ? 1 : 0;
    }
    return below;
  }
};

/// Entries that a draw by size takes, as draw_by_size() of kernels/draw: a test for Collect.
struct DrawTest {
  static constexpr uint32_t kDraw = 1;    ///< stream of the random words
  static constexpr uint32_t kRefine = 2;  ///< and of 32 bits more, where those do not decide
  const float* values;
  uint64_t count;
  uint32_t is_aligned;  ///< 1: values are at a multiple of 16 bytes
  float magnitude;
  float inverse;      ///< 1 / magnitude, rounded; 0: it is no normal number
  float may_be_from;  ///< a word at or above the probability + this is not drawn
  float is_from;      ///< a word below the probability + this is drawn
  RoundKeys keys;

  static constexpr uint32_t kRowsAtOnce = 4;

  /// Nothing is kept of an entry; all have a key above a cut of 0.
  struct Entries {
    MILLRACE_DEVICE uint32_t key(uint32_t, uint32_t) const { return 1; }
  };

  /// The word's upper 23 bits as a number in [1, 2) decide all but 2^-19 of the values. Those are decided one by one.
  template <class Block>
  MILLRACE_DEVICE uint32_t mask(Block& block, uint64_t first, Entries&) const {
    uint32_t drawn = 0;
    uint32_t open = 0;
    MILLRACE_UNROLL
    for (uint32_t j = 0; j < kRows; j += kRowsAtOnce) {
      Float4 rows[kRowsAtOnce];
      load(block, first + j * kRowOfWarp, rows);
      MILLRACE_UNROLL
      for (uint32_t row = 0; row < kRowsAtOnce; ++row) {
        const Words4 words = philox(keys, (first + (j + row) * kRowOfWarp) / 4, kDraw);
        MILLRACE_UNROLL
        for (uint32_t c = 0; c < 4; ++c) {
          const float share = __builtin_fabsf(rows[row].at[c]) * inverse;
          const float uniform = float_of(words.at[c] >> 9 | 0x3F800000u);
          const uint32_t bit = 1u << (4 * (j + row) + c);
          if (uniform < share + is_from) drawn |= bit;
          if (uniform < share + may_be_from) open |= bit;
        }
      }
    }
    for (open &= ~drawn; open != 0; open &= open - 1) {
      const uint32_t place = bit_count((open & (~open + 1)) - 1);
      const uint64_t at = first + place / 4 * kRowOfWarp + place % 4;
      if (at < count && falls_below(values[at], philox(keys, at / 4, kDraw).at[at % 4], at)) drawn |= 1u << place;
    }
    return drawn;
  }

  /// Entries behind the end are 0, which is never drawn.
  template <class Block>
  MILLRACE_DEVICE void load(Block& block, uint64_t first, Float4 (&rows)[kRowsAtOnce]) const {
    const bool is_whole = is_aligned != 0 && first + kRowsAtOnce * kRowOfWarp <= count;
    MILLRACE_UNROLL
    for (uint32_t j = 0; j < kRowsAtOnce; ++j) {
      const uint64_t at = first + j * kRowOfWarp;
      if (is_whole) {
        rows[j] = block.load4(values + at);
      } else {
        for (uint32_t c = 0; c < 4; ++c) rows[j].at[c] = at + c < count ? values[at + c] : 0.0F;
      }
    }
  }

  /// As falls_below() of kernels/draw, in f64.
  MILLRACE_DEVICE bool falls_below(float value, uint32_t word, uint64_t at) const {
    const float size = __builtin_fabsf(value);
    if (size >= magnitude) return true;
    const double p = double{size} / double{magnitude};
    const double from = static_cast<double>(word) * 0x1p-32;
    if (from >= p) return false;
    if (from + 0x1p-32 <= p) return true;
    const double rest = (static_cast<double>(philox(keys, at, kRefine).at[0]) + 0.5) * 0x1p-32;
    return rest < (p - from) * 0x1p32;
  }
};

/// The values that are sent for drawn entries: `magnitude` with the entry's sign, or the entry where it is larger.
struct DrawnValues {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kSharedWords = 0;
  const float* values;
  const uint32_t* positions;
  uint64_t count;
  float magnitude;
  float* drawn;

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    block.step([&](auto t) {
      const uint64_t i = uint64_t{block.index()} * kThreads + t.rank;
      if (i >= count) return;
      const float value = values[positions[i]];
      const uint32_t sign = bits_of(value) & 0x80000000u;
      drawn[i] = __builtin_fabsf(value) >= magnitude ? value : float_of(bits_of(magnitude) | sign);
    });
  }
};

}  // namespace millrace::cuda
