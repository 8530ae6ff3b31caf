#include "kernels/base/random.h"

#include <Random123/philox.h>

#include <cmath>
#include <numbers>

namespace millrace {

std::array<uint32_t, 4> random_words(RandomKey key, uint64_t counter, uint64_t stream) {
  const r123::Philox4x32 philox;
  const r123::Philox4x32::ctr_type at{{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32),
                                       static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)}};
  const r123::Philox4x32::key_type with{{key.low, key.high}};
  const auto words = philox(at, with);
  return {words[0], words[1], words[2], words[3]};
}

RandomKey random_key(uint64_t seed, uint64_t a, uint64_t b, uint64_t c) {
  const auto first = random_words(RandomKey::from(seed), a, b);
  const auto second = random_words({first[0], first[1]}, c, (static_cast<uint64_t>(first[2]) << 32) | first[3]);
  return {second[0], second[1]};
}

uint32_t RandomSequence::next_u32() {
  if (used_ == 4) {
    words_ = random_words(key_, counter_++, stream_);
    used_ = 0;
  }
  return words_[used_++];
}

uint64_t RandomSequence::next_u64() {
  const uint64_t high = next_u32();
  return (high << 32) | next_u32();
}

uint64_t RandomSequence::next_below(uint64_t bound) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((static_cast<Wide>(next_u64()) * bound) >> 64);
}

double RandomSequence::next_unit() { return static_cast<double>(next_u64() >> 11) * 0x1.0p-53; }

double RandomSequence::next_normal() {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - next_unit()));
  return radius * std::cos(2.0 * std::numbers::pi * next_unit());
}

}  // namespace millrace
