#include "kernels/codec/bloom/bloom_blocked_scan.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "kernels/base/check.h"
#include "kernels/base/random.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec/bloom/bloom_blocked_scan.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "kernels/codec/bloom/bloom_mix-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<uint32_t, kBloomScanSlack>;
using V = hn::Vec<D>;
using Words = hn::CappedTag<uint32_t, kBlockedWords>;

/// Whether all eight bits of `hash` are set in the block.
HWY_INLINE bool knows(const uint32_t* block, uint32_t hash) {
  const Words d;
  auto missing = hn::Zero(d);
  for (size_t w = 0; w < kBlockedWords; w += hn::Lanes(d)) {
    const auto bit = hn::ShiftRight<27>(hn::Mul(hn::Set(d, hash), hn::LoadU(d, kBlockedSalts.data() + w)));
    missing = hn::Or(missing, hn::AndNot(hn::LoadU(d, block + w), hn::Shl(hn::Set(d, 1), bit)));
  }
  return hn::AllTrue(d, hn::Eq(missing, hn::Zero(d)));
}

/// Which of the indices have their bit set in word `w` of their block; as many at a time as there are lanes.
HWY_INLINE hn::Mask<D> word_knows(V index, const BlockedHashes& hashes, const uint32_t* words, size_t w) {
  const D d;
  const hn::RebindToSigned<D> s;
  static_assert(kBlockedWords == 1 << 3);
  const auto mixed = bloom_mix_lanes(d, hn::Add(index, hn::Set(d, hashes.offsets[0])));
  const auto block = multiply_high(d, mixed, hn::Set(d, hashes.blocks));
  const auto hash = bloom_mix_lanes(d, hn::Add(index, hn::Set(d, hashes.offsets[1])));
  const auto bits = hn::GatherIndex(d, words + w, hn::BitCast(s, hn::ShiftLeft<3>(block)));
  const auto bit = hn::ShiftRight<27>(hn::Mul(hash, hn::Set(d, kBlockedSalts[w])));
  return hn::TestBit(bits, hn::Shl(hn::Set(d, 1), bit));
}

/// Two gathered words of eight leave one index in seven in question: those are asked whole.
size_t ScanBlocked(const BlockedHashes& hashes, const uint32_t* words, const FirstWords& first, uint32_t begin,
                   size_t length, uint32_t* out) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  auto index = hn::Iota(d, begin);  // incremented: making it again goes through memory
  const auto stride = hn::Set(d, static_cast<uint32_t>(lanes));
  size_t asked = 0;
  for (size_t j = 0; j < length; j += lanes, index = hn::Add(index, stride)) {
    const auto kept = hn::And(word_knows(index, hashes, words, first[0]), hn::FirstN(d, length - j));
    hn::StoreU(hn::Compress(index, kept), d, out + asked);
    asked += hn::CountTrue(d, kept);
  }
  size_t left = 0;
  for (size_t j = 0; j < asked; j += lanes) {  // writes stay behind reads
    const auto candidates = hn::LoadU(d, out + j);
    const auto kept = hn::And(word_knows(candidates, hashes, words, first[1]), hn::FirstN(d, asked - j));
    hn::StoreU(hn::Compress(candidates, kept), d, out + left);
    left += hn::CountTrue(d, kept);
  }
  size_t found = 0;
  for (size_t j = 0; j < left; ++j) {
    const uint32_t candidate = out[j];
    const uint32_t* const block = words + size_t{hashes.block(candidate)} * kBlockedWords;
    out[found] = candidate;
    found += knows(block, bloom_mix(candidate + hashes.offsets[1])) ? 1 : 0;
  }
  return found;
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(ScanBlocked);

BlockedHashes BlockedHashes::from(uint64_t seed, uint32_t blocks) {
  const auto drawn = random_words(RandomKey::from(seed), 0);
  return {blocks, {drawn[0], drawn[1]}};
}

FirstWords sparsest_words(std::span<const uint32_t> words) {
  std::array<uint64_t, kBlockedWords> bits{};
  for (size_t at = 0; at + kBlockedWords <= words.size(); at += kBlockedWords) {
    for (size_t w = 0; w < kBlockedWords; ++w) bits[w] += static_cast<uint64_t>(std::popcount(words[at + w]));
  }
  std::array<uint32_t, kBlockedWords> order{};
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order, {}, [&bits](uint32_t w) { return bits[w]; });
  return {order[0], order[1]};
}

size_t blocked_scan(const BlockedHashes& hashes, std::span<const uint32_t> words, const FirstWords& first,
                    uint32_t begin, size_t length, uint32_t* out) {
  MILLRACE_CHECK(length <= kBloomStrip && words.size() >= hashes.blocks * kBlockedWords, length, words.size());
  return HWY_DYNAMIC_DISPATCH(ScanBlocked)(hashes, words.data(), first, begin, length, out);
}

}  // namespace millrace
#endif  // HWY_ONCE
