#include "kernels/stream/index_sort.h"

#include <algorithm>
#include <array>
#include <utility>

namespace millrace {
namespace {

// 2^11 counters of 4 bytes are a quarter of an L1 cache; three digits cover an index.
constexpr uint32_t kIndexDigitBits = 11;
constexpr uint32_t kIndexDigits = 1u << kIndexDigitBits;

// Below, clearing and summing the counters costs more than comparing.
constexpr size_t kRadixCountMin = 512;

}  // namespace

void sort_by_index(Buffer<uint64_t>& keys, uint32_t index_bits, Buffer<uint64_t>& scratch) {
  if (keys.size() < kRadixCountMin) {
    std::sort(keys.begin(), keys.end());
    return;
  }
  scratch.resize(keys.size());
  std::array<uint32_t, kIndexDigits> starts;
  const uint32_t passes = (index_bits + kIndexDigitBits - 1) / kIndexDigitBits;
  const uint32_t digit_bits = passes == 0 ? 0 : (index_bits + passes - 1) / passes;
  const uint64_t mask = (uint64_t{1} << digit_bits) - 1;
  for (uint32_t pass = 0; pass < passes; ++pass) {
    const uint32_t shift = 32 + pass * digit_bits;
    starts.fill(0);
    for (const uint64_t key : keys) ++starts[key >> shift & mask];
    uint32_t start = 0;
    for (uint64_t digit = 0; digit <= mask; ++digit) start += std::exchange(starts[digit], start);
    uint64_t* to = scratch.data();
    for (const uint64_t key : keys) to[starts[key >> shift & mask]++] = key;
    keys.swap(scratch);
  }
}

}  // namespace millrace
