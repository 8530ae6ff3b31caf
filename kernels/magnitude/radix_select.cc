#include "kernels/magnitude/radix_select.h"

#include <algorithm>
#include <array>
#include <functional>

#include "kernels/base/check.h"

namespace millrace {
namespace {

constexpr uint32_t kDigitBits = 11;
constexpr size_t kBins = size_t{1} << kDigitBits;
// Up to here comparing is cheaper than clearing and summing the bins.
constexpr size_t kSmall = 1024;

using Bins = std::array<uint64_t, kBins>;

// Position of the highest digit: keys have no sign bit (31 bits).
constexpr uint32_t kTopShift = 31 - kDigitBits;

// Returns the shift of the next digit down. The last digit may overlap digits that are already decided. This is
// harmless because they are equal among the survivors.
constexpr uint32_t next_shift(uint32_t shift) { return shift > kDigitBits ? shift - kDigitBits : 0; }

struct Digit {
  size_t digit;
  uint64_t rank;   // of the wanted key among those with this digit, from 1
  uint64_t count;  // keys with this digit
};

Digit digit_of_rank(const Bins& bins, uint64_t k) {
  for (size_t digit = kBins; digit-- > 0;) {
    if (bins[digit] >= k) return {digit, k, bins[digit]};
    k -= bins[digit];
  }
  MILLRACE_CHECK(false, k);
  return {};
}

// Two interleaved counts: equal keys in a row would otherwise wait for each other's increment.
template <typename Each>
void count_digits(size_t count, uint32_t shift, Bins& bins, Each key_at) {
  Bins odd{};
  bins.fill(0);
  size_t i = 0;
  for (; i + 2 <= count; i += 2) {
    ++bins[(key_at(i) >> shift) & (kBins - 1)];
    ++odd[(key_at(i + 1) >> shift) & (kBins - 1)];
  }
  if (i < count) ++bins[(key_at(i) >> shift) & (kBins - 1)];
  for (size_t b = 0; b < kBins; ++b) bins[b] += odd[b];
}

// Moves the keys whose digit is `digit` to `to` (may be `from`), in order; room for one more than there are.
size_t keep_digit(const MagnitudeKey* from, size_t count, uint32_t shift, size_t digit, MagnitudeKey* to) {
  size_t kept = 0;
  for (size_t i = 0; i < count; ++i) {
    const MagnitudeKey key = from[i];
    to[kept] = key;
    kept += ((key >> shift) & (kBins - 1)) == digit ? 1 : 0;
  }
  return kept;
}

MagnitudeKey kth_of_few(MagnitudeKey* keys, size_t count, uint64_t k) {
  std::nth_element(keys, keys + (k - 1), keys + count, std::greater<>());
  return keys[k - 1];
}

// The rank-th largest of scratch[0, count), all of which agree above shift + kDigitBits.
MagnitudeKey kth_from_digit(Buffer<MagnitudeKey>& scratch, size_t count, uint64_t rank, uint32_t shift) {
  while (true) {
    if (count <= kSmall) return kth_of_few(scratch.data(), count, rank);
    Bins bins;
    count_digits(count, shift, bins, [&](size_t i) { return scratch[i]; });
    const Digit found = digit_of_rank(bins, rank);
    rank = found.rank;
    count = keep_digit(scratch.data(), count, shift, found.digit, scratch.data());
    if (shift == 0) return scratch[0];
    shift = next_shift(shift);
  }
}

}  // namespace

MagnitudeKey kth_largest_key(std::span<const MagnitudeKey> keys, uint64_t k, Buffer<MagnitudeKey>& scratch) {
  MILLRACE_CHECK(k >= 1 && k <= keys.size(), k, keys.size());
  if (keys.size() <= kSmall) {
    scratch.assign(keys.begin(), keys.end());
    return kth_of_few(scratch.data(), scratch.size(), k);
  }
  Bins bins;
  count_digits(keys.size(), kTopShift, bins, [&](size_t i) { return keys[i]; });
  const Digit found = digit_of_rank(bins, k);
  scratch.resize(found.count + 1);
  const size_t count = keep_digit(keys.data(), keys.size(), kTopShift, found.digit, scratch.data());
  return kth_from_digit(scratch, count, found.rank, next_shift(kTopShift));
}

std::optional<MagnitudeKey> kth_largest_key_of_values(std::span<const float> values, uint64_t k) {
  MILLRACE_CHECK(k >= 1 && k <= values.size(), k, values.size());
  MagnitudeKey decided = 0;       // the digits found so far
  MagnitudeKey decided_mask = 0;  // which bits of a key they are
  uint64_t rank = k;
  uint32_t shift = kTopShift;
  while (true) {
    Bins bins;
    uint64_t outside = 0;  // keys with other digits above count in bin 0 and are taken out again
    count_digits(values.size(), shift, bins, [&](size_t i) {
      const MagnitudeKey key = magnitude_key(values[i]);
      const bool in = (key & decided_mask) == decided;
      outside += in ? 0 : 1;
      return in ? key : MagnitudeKey{0};
    });
    bins[0] -= outside;
    if (decided_mask == 0) {
      for (size_t b = kInfinityKey >> shift; b < kBins; ++b) {
        if (bins[b] != 0) return std::nullopt;
      }
    }
    const Digit found = digit_of_rank(bins, rank);
    rank = found.rank;
    decided |= static_cast<MagnitudeKey>(found.digit) << shift;
    decided_mask |= static_cast<MagnitudeKey>(kBins - 1) << shift;
    if (shift == 0) return decided;
    shift = next_shift(shift);
    if (found.count <= values.size() / 4) {
      Buffer<MagnitudeKey> scratch(found.count + 1);
      size_t count = 0;
      for (const float value : values) {
        const MagnitudeKey key = magnitude_key(value);
        scratch[count] = key;
        count += (key & decided_mask) == decided ? 1 : 0;
      }
      return kth_from_digit(scratch, count, rank, shift);
    }
  }
}

}  // namespace millrace
