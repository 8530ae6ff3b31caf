#include "kernels/codec/bloom/bloom_scan.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/random.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec/bloom/bloom_scan.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "kernels/codec/bloom/bloom_mix-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millrace {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<uint32_t, kBloomScanSlack>;
using V = hn::Vec<D>;

/// Which lanes' bits of probe `offset` are set.
HWY_INLINE auto probe(V index, V offset, V bits, const uint32_t* words) {
  const D d;
  const hn::RebindToSigned<D> di;
  const auto bit = multiply_high(d, bloom_mix_lanes(d, hn::Add(index, offset)), bits);
  const auto word = hn::GatherIndex(d, words, hn::BitCast(di, hn::ShiftRight<5>(bit)));
  const auto mask = hn::Shl(hn::Set(d, 1), hn::And(bit, hn::Set(d, 31)));
  return hn::Ne(hn::And(word, mask), hn::Zero(d));
}

size_t ScanBloom(const BloomHashes& hashes, const uint32_t* words, uint32_t begin, size_t length, uint32_t* out) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const auto bits = hn::Set(d, hashes.bits);
  size_t left = 0;
  auto offset = hn::Set(d, hashes.offsets[0]);
  auto index = hn::Iota(d, begin);  // incremented: making it again goes through memory
  const auto stride = hn::Set(d, static_cast<uint32_t>(lanes));
  for (size_t j = 0; j < length; j += lanes, index = hn::Add(index, stride)) {
    const auto kept = hn::And(probe(index, offset, bits, words), hn::FirstN(d, length - j));
    hn::StoreU(hn::Compress(index, kept), d, out + left);
    left += hn::CountTrue(d, kept);
  }
  for (uint32_t p = 1; p < hashes.probes && left > 0; ++p) {
    const size_t candidates = left;
    left = 0;
    offset = hn::Set(d, hashes.offsets[p]);
    for (size_t j = 0; j < candidates; j += lanes) {  // writes stay behind reads
      const auto asked = hn::LoadU(d, out + j);
      const auto kept = hn::And(probe(asked, offset, bits, words), hn::FirstN(d, candidates - j));
      hn::StoreU(hn::Compress(asked, kept), d, out + left);
      left += hn::CountTrue(d, kept);
    }
  }
  return left;
}

}  // namespace HWY_NAMESPACE
}  // namespace millrace
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace {

HWY_EXPORT(ScanBloom);

BloomHashes BloomHashes::from(uint64_t seed, uint32_t bits, uint32_t probes) {
  MILLRACE_CHECK(probes >= 1 && probes <= kBloomProbesMax, probes);
  BloomHashes hashes{bits, probes, {}};
  for (uint32_t p = 0; p < probes; ++p) hashes.offsets[p] = random_words(RandomKey::from(seed), p / 4)[p % 4];
  return hashes;
}

size_t bloom_scan(const BloomHashes& hashes, std::span<const uint32_t> words, uint32_t begin, size_t length,
                  uint32_t* out) {
  MILLRACE_CHECK(length <= kBloomStrip && words.size() * 32 >= hashes.bits, length, words.size(), hashes.bits);
  return HWY_DYNAMIC_DISPATCH(ScanBloom)(hashes, words.data(), begin, length, out);
}

}  // namespace millrace
#endif  // HWY_ONCE
