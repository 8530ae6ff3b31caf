#include "kernels/codec/bloom/bloom_filter.h"

#include <cmath>
#include <cstring>
#include <string>

#include "kernels/base/bytes.h"
#include "kernels/codec/bits/bitmap_words.h"

namespace millrace {
namespace {

constexpr uint64_t kSeedStream = 0x626c6f6f6d;  // "bloom": apart from the quantizers' draws under the same key

}  // namespace

BloomShape BloomShape::optimal(uint64_t count, double rate) {
  const double ln2 = std::log(2.0);
  const double n = static_cast<double>(std::max<uint64_t>(count, 1));
  const bool has_one_probe = rate > 0.5;
  const double bits = std::ceil(has_one_probe ? -n / std::log1p(-rate) : -n * std::log(rate) / (ln2 * ln2));
  BloomShape shape;
  shape.bits = (static_cast<uint64_t>(bits) + 31) / 32 * 32;
  if (has_one_probe) {
    shape.probes = 1;
    return shape;
  }
  const double probes = std::round(static_cast<double>(shape.bits) / n * ln2);
  // A filter that was rounded up is no reason for more hash functions than the rate asks for.
  const double wanted = std::max(1.0, std::round(-std::log2(rate)));
  shape.probes = static_cast<uint32_t>(std::clamp(std::min(probes, wanted), 1.0, double{kBloomProbesMax}));
  return shape;
}

BloomShape::Counts BloomShape::counts() const {
  // probes = round(x), x = -log2(rate) >= 1; bits = n x / ln 2, rounded up to 32. Rates over 1/2: probes = 1, and bits
  // from n / -ln(1 - rate) on for the largest rate below 1, which is 1 - 2^-53.
  constexpr double kRounding = 1e-3;
  constexpr double kLargestRateBits = 53;
  const double scaled = std::log(2.0) * static_cast<double>(bits);
  const double most = probes == 1 ? scaled * kLargestRateBits : scaled / (probes - 0.5);
  const double least = (scaled - 33 * std::log(2.0)) / (probes + 0.5);
  return {static_cast<uint64_t>(std::ceil(std::max(0.0, least - kRounding))), static_cast<uint64_t>(most + kRounding)};
}

uint64_t BloomShape::set_most(uint64_t count) const {
  // With any number of balls, the number of occupied bins has a standard deviation below 0.33 sqrt(bins).
  const auto bins = static_cast<double>(bits);
  const double balls = static_cast<double>(count) * probes;
  const double expected = -bins * std::expm1(-balls / bins);
  return static_cast<uint64_t>(std::min(balls, expected + 4 * std::sqrt(bins)));
}

Result<BloomFilter> BloomFilter::of(IndexSpan indices, double rate, uint64_t seed) {
  const BloomShape shape = BloomShape::optimal(indices.size(), rate);
  if (shape.bits > UINT32_MAX) return fail(ErrorCode::kLimitExceeded, "bloom: the filter would be over 2^32 bits");
  BloomFilter filter{BloomHashes::from(seed, static_cast<uint32_t>(shape.bits), shape.probes), {}};
  filter.words.resize(shape.bits / 32);
  std::fill(filter.words.begin(), filter.words.end(), 0);
  for (const uint32_t index : indices) {
    for (uint32_t p = 0; p < shape.probes; ++p) {
      const uint32_t bit = filter.hashes.bit(index, p);
      filter.words[bit / 32] |= uint32_t{1} << (bit % 32);
    }
  }
  return filter;
}

void BloomFilter::put(ByteBuffer& out) const {
  ByteWriter writer(out);
  writer.put(hashes.bits);
  writer.put(hashes.probes);
  writer.put_array(std::span<const uint32_t>(words));
}

std::optional<BloomFilter> BloomFilter::take(uint64_t seed, ByteSpan bytes, BloomShape::Counts of) {
  ByteReader reader(bytes);
  const auto bits = reader.get<uint32_t>();
  const auto probes = reader.get<uint32_t>();
  if (!bits || !probes) return std::nullopt;
  if (*bits == 0 || *bits % 32 != 0 || *probes == 0 || *probes > kBloomProbesMax) return std::nullopt;
  if (reader.remaining() != *bits / 8) return std::nullopt;
  const BloomShape shape{*bits, *probes};
  const BloomShape::Counts fits = shape.counts();
  const uint64_t least = std::max({fits.least, of.least, uint64_t{1}});  // of none it is as of one
  const uint64_t most = std::min(fits.most, std::max<uint64_t>(of.most, 1));
  if (least > most) return std::nullopt;
  if (count_bits(bytes.last(reader.remaining())) > shape.set_most(std::min(most, of.most))) return std::nullopt;
  BloomFilter filter{BloomHashes::from(seed, *bits, *probes), {}};
  filter.words.resize(*bits / 32);
  std::memcpy(filter.words.data(), reader.get_bytes(*bits / 8)->data(), *bits / 8);
  return filter;
}

uint64_t bloom_seed(const EncodeOptions& options) {
  const auto draw = random_words(options.random, options.index_base, kSeedStream);
  return draw[0] | uint64_t{draw[1]} << 32;
}

Status check_bloom_dimension(std::string_view name, uint64_t dimension) {
  if (dimension <= kBloomDimensionMax) return {};
  return fail(ErrorCode::kLimitExceeded,
              std::string(name) +
                  ": decoding asks the filter for every index, so dimensions end at 2^28; cut the tensor into parts or "
                  "use another index codec (dimension " +
                  std::to_string(dimension) + ")");
}

}  // namespace millrace
