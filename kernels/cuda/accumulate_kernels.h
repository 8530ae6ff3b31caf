#pragma once

#include "kernels/cuda/momentum_shares.h"
#include "kernels/cuda/queue/block_kernel.h"

/// The kernels of an accumulator, a dense sum: the forms of addition that Bucket's pushes have.
namespace millrace::cuda {

/// Writes one value to a whole array.
struct FillValue {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kSharedWords = 0;
  float* array;
  uint64_t count;
  float value;

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    block.step([&](auto t) { stride_over<kThreads>(block, t, count, [&](uint64_t i) { array[i] = value; }); });
  }
};

/// Adds an array to another, unless it was found to have values that are not finite; or without these values.
struct AddFinite {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kSharedWords = 0;
  static constexpr uint32_t kEach = 4;
  const float* values = nullptr;
  float* sums = nullptr;
  uint64_t count = 0;
  float weight = 1;         ///< of the values; the product is rounded before it is added
  uint32_t is_aligned = 0;  ///< 1: both arrays are at multiples of 16 bytes
  const uint32_t* largest =
      nullptr;                   ///< key of the largest magnitude: nothing is added where it is not finite; or null
  uint64_t* left_out = nullptr;  ///< counts the values that are not finite, and 0 is added for each; or null

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    if (largest != nullptr && *largest >= kKeyInfinity) return;
    block.step([&](auto t) { stride_over<kThreads, kEach>(block, t, count, [&](uint64_t i) { add_four(block, i); }); });
  }

  template <class Block>
  MILLRACE_DEVICE void add_four(Block& block, uint64_t first) const {
    const bool is_whole = is_aligned != 0 && first + kEach <= count;
    Float4 added{};
    Float4 sum{};
    if (is_whole) {
      added = block.load4(values + first);
      sum = block.load4(sums + first);
    }
    uint64_t not_finite = 0;
    for (uint32_t c = 0; c < kEach && first + c < count; ++c) {
      float value = is_whole ? added.at[c] : values[first + c];
      const float before = is_whole ? sum.at[c] : sums[first + c];
      if (left_out != nullptr && key_of(value) >= kKeyInfinity) {
        value = 0;
        ++not_finite;
      }
      sum.at[c] = before + (weight == 1.0F ? value : weight * value);
      if (!is_whole) sums[first + c] = sum.at[c];
    }
    if (is_whole) block.stream4(sums + first, sum);
    if (not_finite != 0) block.add_global(left_out, not_finite);
  }
};

/// velocity[i] = kept * velocity[i] + g, where g = scale * gradient[i]; 0 below the least normal magnitude. sums[i]
/// gets its shares of g and of the velocity. Each product and each sum is rounded.
struct EnterByVelocity {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kSharedWords = 0;
  static constexpr uint32_t kLeastNormalKey = 0x0080'0000;
  const float* gradient;
  float* velocity;
  float* sums;
  uint64_t count;
  MomentumShares shares;
  float scale;

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    block.step([&](auto t) {
      stride_over<kThreads>(block, t, count, [&](uint64_t i) {
        const float scaled = scale == 1.0F ? gradient[i] : scale * gradient[i];
        const float kept = shares.kept * velocity[i];
        const float moved = kept + scaled;
        const float next = key_of(moved) < kLeastNormalKey ? 0.0F : moved;
        const float direct = shares.of_gradient * scaled;
        const float entering = direct + shares.of_velocity * next;
        velocity[i] = next;
        sums[i] += entering;
      });
    });
  }
};

/// Counts the values that are not 0.
struct CountNonZero {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kSharedWords = 0;
  const float* values;
  uint64_t count;
  uint64_t* found;

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    auto own = block.template own<uint32_t>();
    block.step([&](auto t) {
      uint32_t counted = 0;
      stride_over<kThreads>(block, t, count, [&](uint64_t i) { counted += key_of(values[i]) != 0 ? 1 : 0; });
      own[t] = counted;
    });
    const uint32_t of_block = block.scan(own);
    block.step([&](auto t) {
      if (t.rank == 0 && of_block != 0) block.add_global(found, uint64_t{of_block});
    });
  }
};

/// Replaces sums[i] by its difference to decoded[i], in f32, and decoded[i] by the part of the difference that f32 does
/// not hold (TwoSum: [Knuth97, 4.2.2]). A difference of 0 becomes the sum of nothing, -0.
struct KeepError {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kSharedWords = 0;
  float* sums;
  float* decoded;
  uint64_t count;

  template <class Block>
  MILLRACE_DEVICE void operator()(Block& block) const {
    block.step([&](auto t) {
      stride_over<kThreads>(block, t, count, [&](uint64_t i) {
        const float had = sums[i];
        const float gone = decoded[i];
        const float difference = had - gone;
        const float taken = difference - had;
        decoded[i] = (had - (difference - taken)) - (gone + taken);
        sums[i] = difference == 0 ? -0.0F : difference;
      });
    });
  }
};

}  // namespace millrace::cuda
