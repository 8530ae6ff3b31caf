#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace millrace {

/// Holds the key of a counter-based generator (Philox4x32-10 [Philox11]; library Random123). Equal (key, counter) gives
/// equal bits on every machine, in any order of the calls. Quantizers draw for a dense stream by global index, so its
/// result does not depend on the division of a tensor. For a sparse stream they draw by the entry's place in its part:
/// other parts give other draws.
struct RandomKey {
  uint32_t low = 0;
  uint32_t high = 0;

  static constexpr RandomKey from(uint64_t seed) {
    return {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  }
};

/// Returns four independent uniform 32-bit words of (key, counter). `stream` separates uses under one key.
std::array<uint32_t, 4> random_words(RandomKey key, uint64_t counter, uint64_t stream = 0);

/// Writes many words at once: word w of (key, stream) is random_words(key, w / 4, stream)[w % 4], and out[i] is word
/// first_word + i. Several times faster than the loop over random_words; equal bits on every machine.
void random_fill(RandomKey key, uint64_t first_word, std::span<uint32_t> out, uint64_t stream = 0);

/// Mixes identities into a key: random_key(job_seed, tensor, step, worker).
RandomKey random_key(uint64_t seed, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0);

/// Draws a small sequence over random_words for tests, synthetic data and jitter; copies continue independently.
class RandomSequence {
 public:
  explicit RandomSequence(RandomKey key, uint64_t stream = 0) : key_(key), stream_(stream) {}
  uint32_t next_u32();
  uint64_t next_u64();
  /// Returns a number uniform in [0, bound), bound >= 1; without modulo bias worth the name (multiply-shift on 64 bits,
  /// [Lemire19]).
  uint64_t next_below(uint64_t bound);
  /// Returns a number uniform in [0, 1), 53 bits.
  double next_unit();
  /// Returns a standard normal number [BoxMuller58].
  double next_normal();

 private:
  RandomKey key_;
  uint64_t stream_;
  uint64_t counter_ = 0;
  std::array<uint32_t, 4> words_{};
  uint32_t used_ = 4;
};

}  // namespace millrace
