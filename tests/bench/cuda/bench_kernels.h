#pragma once

#include "kernels/cuda/queue/block_kernel.h"

namespace millrace::cuda {

/// Reads an array once and does next to nothing with it: the unit of the other times.
struct ReadPass {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kSharedWords = 0;
  static constexpr uint32_t kRowCount = 8;
  static constexpr uint32_t kBlockEntries = kThreads * 4 * kRowCount;
  const float* values;
  uint32_t* sink;

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    block.step([&](auto t) {
      Float4 rows[kRowCount];
      const float* const first = values + uint64_t{block.index()} * kBlockEntries + t.rank * 4;
      MILLRACE_UNROLL
      for (uint32_t j = 0; j < kRowCount; ++j) rows[j] = block.load4(first + j * kThreads * 4);
      uint32_t bits = 0;
      MILLRACE_UNROLL
      for (uint32_t j = 0; j < kRowCount; ++j) {
        for (uint32_t c = 0; c < 4; ++c) bits |= bits_of(rows[j].at[c]);
      }
      if (bits == 0x12345678u) *sink = bits;
    });
  }
};

/// Adds an array to another and does nothing else: two reads and a write.
struct AddPass {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kSharedWords = 0;
  static constexpr uint32_t kRowCount = 4;
  static constexpr uint32_t kBlockEntries = kThreads * 4 * kRowCount;
  const float* values;
  float* sums;

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    block.step([&](auto t) {
      Float4 rows[kRowCount];
      Float4 added[kRowCount];
      const uint64_t first = uint64_t{block.index()} * kBlockEntries + t.rank * 4;
      MILLRACE_UNROLL
      for (uint32_t j = 0; j < kRowCount; ++j) {
        rows[j] = block.load4(sums + first + j * kThreads * 4);
        added[j] = block.load4(values + first + j * kThreads * 4);
      }
      MILLRACE_UNROLL
      for (uint32_t j = 0; j < kRowCount; ++j) {
        for (uint32_t c = 0; c < 4; ++c) rows[j].at[c] += added[j].at[c];
        block.stream4(sums + first + j * kThreads * 4, rows[j]);
      }
    });
  }
};

/// Fills an array with values of heavy tails: cubes of sums of four uniform numbers.
struct FillNormal {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kSharedWords = 0;
  float* values;
  uint64_t count;
  RoundKeys keys;

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    block.step([&](auto t) {
      for (uint64_t i = uint64_t{block.index()} * kThreads + t.rank; i < count;
           i += uint64_t{block.blocks()} * kThreads) {
        const Words4 words = philox(keys, i);
        float sum = 0;
        for (uint32_t w = 0; w < 4; ++w) {
          sum += static_cast<float>(static_cast<int32_t>(words.at[w])) * 0x1p-31F;
        }
        // Larger magnitudes are rarer, and low bits are random.
        values[i] = sum * sum * sum;
      }
    });
  }
};

/// Fills an array with values that are uniform in [0, 1).
struct FillUniform {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kSharedWords = 0;
  float* values;
  uint64_t count;
  RoundKeys keys;

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    block.step([&](auto t) {
      for (uint64_t i = uint64_t{block.index()} * kThreads + t.rank; i < count;
           i += uint64_t{block.blocks()} * kThreads) {
        values[i] = static_cast<float>(static_cast<int32_t>(philox(keys, i).at[0] >> 8)) * 0x1p-24F;
      }
    });
  }
};

}  // namespace millrace::cuda
