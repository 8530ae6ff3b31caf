#include "kernels/codec/blocked_scan.h"

#include "kernels/base/check.h"
#include "kernels/base/random.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec/blocked_scan.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "kernels/codec/bloom_mix-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<uint32_t, kBlockedWords>;
using V = hn::Vec<D>;

/// Whether all eight bits of `hash` are set in the block.
HWY_INLINE bool knows(const uint32_t* block, uint32_t hash) {
  const D d;
  auto missing = hn::Zero(d);
  for (size_t w = 0; w < kBlockedWords; w += hn::Lanes(d)) {
    const auto bit = hn::ShiftRight<27>(hn::Mul(hn::Set(d, hash), hn::LoadU(d, kBlockedSalts.data() + w)));
    missing = hn::Or(missing, hn::AndNot(hn::LoadU(d, block + w), hn::Shl(hn::Set(d, 1), bit)));
  }
  return hn::AllTrue(d, hn::Eq(missing, hn::Zero(d)));
}

/// mix(index + offset) for `length` indices from `begin`.
HWY_INLINE void hash_strip(uint32_t begin, size_t length, uint32_t offset, uint32_t* hashes) {
  const hn::ScalableTag<uint32_t> d;
  for (size_t j = 0; j < length; j += hn::Lanes(d)) {
    const auto h = hn::Iota(d, static_cast<uint32_t>(begin + j + offset));
    hn::StoreU(bloom_mix_lanes(d, h), d, hashes + j);
  }
}

size_t scan(const BlockedHashes& hashes, const uint32_t* words, uint32_t begin, size_t length, uint32_t* out) {
  constexpr size_t kLanesMax = HWY_MAX_BYTES / sizeof(uint32_t);
  alignas(64) uint32_t blocks[kBloomStrip + kLanesMax];
  alignas(64) uint32_t bits[kBloomStrip + kLanesMax];
  hash_strip(begin, length, hashes.offsets[0], blocks);
  hash_strip(begin, length, hashes.offsets[1], bits);
  size_t found = 0;
  for (size_t j = 0; j < length; ++j) {
    const size_t block = uint64_t{blocks[j]} * hashes.blocks >> 32;
    out[found] = static_cast<uint32_t>(begin + j);
    found += knows(words + block * kBlockedWords, bits[j]) ? 1 : 0;
  }
  return found;
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(scan);

BlockedHashes BlockedHashes::from(uint64_t seed, uint32_t blocks) {
  const auto drawn = random_words(RandomKey::from(seed), 0);
  return {blocks, {drawn[0], drawn[1]}};
}

size_t blocked_scan(const BlockedHashes& hashes, std::span<const uint32_t> words, uint32_t begin, size_t length,
                    uint32_t* out) {
  MILLRACE_CHECK(length <= kBloomStrip && words.size() >= hashes.blocks * kBlockedWords, length, words.size());
  return HWY_DYNAMIC_DISPATCH(scan)(hashes, words.data(), begin, length, out);
}

}  // namespace millrace
#endif  // HWY_ONCE
