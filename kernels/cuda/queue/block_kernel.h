#pragma once

#include <cstddef>
#include <cstdint>

/// The language of block kernels. A kernel is a struct of parameters with
///
///     static constexpr uint32_t kThreads;
///     static constexpr uint32_t kSharedWords;
///     template <class Block> MILLRACE_DEVICE void operator()(Block& block) const;
///
/// kThreads      threads of a block: a power of two from 32 to 1,024.
/// kSharedWords  32-bit words of memory that the threads of a block share, at most 11,000.
///
/// The body is a list of phases, `block.phase([&](auto t) { ... })`. Every thread t of the block runs the functor,
/// and a barrier ends the phase. `block.step()` is a phase without a barrier. The code between phases is equal for
/// all threads. A thread keeps its own values from phase to phase in `block.template own<T>()`. Collectives (ballot,
/// warp_max, scan, count) are phases of their own. DeviceBlock (device_block.cuh) runs a kernel on a card, HostBlock
/// (host_block.h) as loops.
#ifdef __CUDACC__
#define MILLRACE_DEVICE __device__ __forceinline__
#define MILLRACE_UNROLL _Pragma("unroll")
#else
#define MILLRACE_DEVICE inline
#define MILLRACE_UNROLL
#endif

namespace millrace::cuda {

inline constexpr uint32_t kWarp = 32;

/// Calls each(i) for a thread's share of the places i below `count` that are multiples of kEach. The threads of all
/// blocks have consecutive places.
template <uint32_t kThreads, uint32_t kEach = 1, class Block, class Thread, class F>
MILLRACE_DEVICE void stride_over(const Block& block, Thread t, uint64_t count, F&& each) {
  const uint64_t stride = uint64_t{block.blocks()} * kThreads * kEach;
  for (uint64_t i = (uint64_t{block.index()} * kThreads + t.rank) * kEach; i < count; i += stride) each(i);
}

/// Four neighbours of an array. A thread loads and stores them at once.
struct alignas(16) Float4 {
  float at[4];
};

/// Returns the bits of the lanes below `lane`.
MILLRACE_DEVICE uint32_t lanes_below(uint32_t lane) { return (uint32_t{1} << lane) - 1; }

MILLRACE_DEVICE uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }
MILLRACE_DEVICE float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

/// Returns the magnitude as an integer, as magnitude_key() of kernels/select has it.
MILLRACE_DEVICE uint32_t key_of(float value) { return bits_of(value) & 0x7FFFFFFFu; }

/// The key of infinity; every NaN is above it.
inline constexpr uint32_t kKeyInfinity = 0x7F800000u;

/// The smallest normal f32.
inline constexpr float kSmallestNormal = 0x1p-126F;

#ifdef __CUDACC__
MILLRACE_DEVICE uint32_t bit_count(uint32_t bits) { return static_cast<uint32_t>(__popc(static_cast<int>(bits))); }
MILLRACE_DEVICE uint32_t rounded_up(float number) { return __float2uint_ru(number); }
MILLRACE_DEVICE uint32_t top_bytes(const uint32_t (&words)[4]) {
  return __byte_perm(__byte_perm(words[0], words[1], 0x0073), __byte_perm(words[2], words[3], 0x0073), 0x5410);
}
MILLRACE_DEVICE float larger_magnitude(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(__builtin_fabsf(a)), "f"(__builtin_fabsf(b)));
  return larger;
}
#else
/// Returns the number of bits that are set.
inline uint32_t bit_count(uint32_t bits) { return static_cast<uint32_t>(__builtin_popcount(bits)); }

/// Returns the least integer that is not below a number of [0, 2^31]; of any other: unspecified.
inline uint32_t rounded_up(float number) {
  return number <= 0x1p31F ? static_cast<uint32_t>(__builtin_ceilf(number)) : ~uint32_t{0};
}

/// Returns the highest bytes of four words, the first word's lowest.
inline uint32_t top_bytes(const uint32_t (&words)[4]) {
  return words[0] >> 24 | words[1] >> 24 << 8 | words[2] >> 24 << 16 | words[3] >> 24 << 24;
}

/// Returns the larger magnitude of two values; NaN where one is NaN.
inline float larger_magnitude(float a, float b) { return float_of(key_of(a) > key_of(b) ? key_of(a) : key_of(b)); }
#endif

/// The 32-bit finalizer of MurmurHash3, as bloom_mix() of kernels/codec has it.
MILLRACE_DEVICE uint32_t mix(uint32_t h) {
  h = (h ^ h >> 16) * 0x85ebca6bu;
  h = (h ^ h >> 13) * 0xc2b2ae35u;
  return h ^ h >> 16;
}

/// Four random words.
struct Words4 {
  uint32_t at[4];
};

/// The keys of Philox's ten rounds: as parameters of a kernel they are operands, which cost nothing to load.
struct RoundKeys {
  static constexpr uint32_t kRounds = 10;
  uint32_t low[kRounds];
  uint32_t high[kRounds];

  static constexpr RoundKeys of(uint32_t low, uint32_t high) {
    RoundKeys keys{};
    for (uint32_t round = 0; round < kRounds; ++round) {
      keys.low[round] = low + round * 0x9E3779B9u;
      keys.high[round] = high + round * 0xBB67AE85u;
    }
    return keys;
  }
};

/// Philox4x32-10 of one counter and a stream, as random_words() of kernels/base has it.
MILLRACE_DEVICE Words4 philox(const RoundKeys& keys, uint64_t counter, uint32_t stream = 0) {
  uint32_t x0 = static_cast<uint32_t>(counter);
  uint32_t x1 = static_cast<uint32_t>(counter >> 32);
  uint32_t x2 = stream;
  uint32_t x3 = 0;
  MILLRACE_UNROLL
  for (uint32_t round = 0; round < RoundKeys::kRounds; ++round) {
    const uint64_t product0 = uint64_t{x0} * 0xD2511F53u;
    const uint64_t product1 = uint64_t{x2} * 0xCD9E8D57u;
    x0 = static_cast<uint32_t>(product1 >> 32) ^ x1 ^ keys.low[round];
    x2 = static_cast<uint32_t>(product0 >> 32) ^ x3 ^ keys.high[round];
    x1 = static_cast<uint32_t>(product1);
    x3 = static_cast<uint32_t>(product0);
  }
  return {{x0, x1, x2, x3}};
}

/// Random words by their number, as random_fill() of kernels/base numbers them.
struct WordSource {
  RoundKeys keys;
  uint64_t first = 0;  ///< number of the word of value 0

  MILLRACE_DEVICE uint32_t word(uint64_t value) const {
    return philox(keys, (first + value) / 4).at[(first + value) % 4];
  }
  /// The words of four values from `value` on. REQUIRES (first + value) % 4 == 0.
  MILLRACE_DEVICE Words4 words4(uint64_t value) const { return philox(keys, (first + value) / 4); }
};

}  // namespace millrace::cuda
