#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/base/random_fill.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "kernels/base/random.h"

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR

void fill_groups(RandomKey key, uint64_t counter, uint64_t stream, size_t groups, uint32_t* HWY_RESTRICT out) {
  for (size_t group = 0; group < groups; ++group) {
    const auto words = random_words(key, counter + group, stream);
    for (size_t word = 0; word < 4; ++word) out[4 * group + word] = words[word];
  }
}

#else

// Computes Philox4x32-10 of one counter a 64-bit lane. A 32 x 32 product leaves its high half where a shift reaches it,
// and its low half where the next multiplication reads it. The other contents of the state's upper halves are never
// used.
template <class D>
struct Philox {
  using V = hn::Vec<D>;
  V x0, x1, x2, x3;

  static V low_product(V a, V b) {
    const hn::Repartition<uint32_t, D> d32;
    return hn::MulEven(hn::BitCast(d32, a), hn::BitCast(d32, b));
  }

  void rounds(RandomKey key) {
    const D d;
    const V multiplier0 = hn::Set(d, 0xD2511F53u);
    const V multiplier1 = hn::Set(d, 0xCD9E8D57u);
    uint32_t key0 = key.low;
    uint32_t key1 = key.high;
    for (int round = 0; round < 10; ++round) {
      const V product0 = low_product(x0, multiplier0);
      const V product1 = low_product(x2, multiplier1);
      x0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product1), x1), hn::Set(d, key0));
      x2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product0), x3), hn::Set(d, key1));
      x1 = product1;
      x3 = product0;
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
  }
};

// Lane 2j holds counter j and lane 2j + 1 counter lanes/2 + j. So the interleaving within blocks of 128 bits puts the
// words of consecutive counters one behind the other.
void fill_groups(RandomKey key, uint64_t counter, uint64_t stream, size_t groups, uint32_t* HWY_RESTRICT out) {
  const hn::ScalableTag<uint64_t> d;
  const hn::Repartition<uint32_t, decltype(d)> d32;
  const size_t lanes = hn::Lanes(d);
  HWY_ALIGN uint64_t offsets[HWY_MAX_BYTES / sizeof(uint64_t)];
  for (size_t lane = 0; lane < lanes; ++lane) offsets[lane] = lane / 2 + (lane % 2) * (lanes / 2);
  const auto offset = hn::Load(d, offsets);
  const auto low_half = hn::Set(d, 0xFFFFFFFFu);
  size_t group = 0;
  for (; group + lanes <= groups; group += lanes) {
    const auto at = hn::Add(hn::Set(d, counter + group), offset);
    Philox<hn::ScalableTag<uint64_t>> state{at, hn::ShiftRight<32>(at), hn::Set(d, stream), hn::Set(d, stream >> 32)};
    state.rounds(key);
    const auto words01 = hn::Or(hn::And(state.x0, low_half), hn::ShiftLeft<32>(state.x1));
    const auto words23 = hn::Or(hn::And(state.x2, low_half), hn::ShiftLeft<32>(state.x3));
    hn::StoreU(hn::BitCast(d32, hn::InterleaveLower(d, words01, words23)), d32, out + 4 * group);
    hn::StoreU(hn::BitCast(d32, hn::InterleaveUpper(d, words01, words23)), d32, out + 4 * group + 2 * lanes);
  }
  for (; group < groups; ++group) {
    const auto words = random_words(key, counter + group, stream);
    for (size_t word = 0; word < 4; ++word) out[4 * group + word] = words[word];
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>

namespace millrace {

HWY_EXPORT(fill_groups);

void random_fill(RandomKey key, uint64_t first_word, std::span<uint32_t> out, uint64_t stream) {
  uint64_t counter = first_word / 4;
  if (first_word % 4 != 0) {
    const auto words = random_words(key, counter++, stream);
    const size_t skipped = first_word % 4;
    const size_t count = std::min(out.size(), 4 - skipped);
    std::copy_n(words.begin() + static_cast<ptrdiff_t>(skipped), count, out.begin());
    out = out.subspan(count);
  }
  const size_t groups = out.size() / 4;
  HWY_DYNAMIC_DISPATCH(fill_groups)(key, counter, stream, groups, out.data());
  out = out.subspan(4 * groups);
  if (!out.empty()) {
    const auto words = random_words(key, counter + groups, stream);
    std::copy_n(words.begin(), out.size(), out.begin());
  }
}

}  // namespace millrace
#endif  // HWY_ONCE
