#pragma once

#include "kernels/cuda/block_kernel.h"

/// The kernels of sums over values.
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

}  // namespace millrace::cuda
