#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/codec/bloom/bloom_blocked_scan.h"
#include "kernels/codec/bloom/bloom_filter.h"
#include "kernels/codec/codec.h"

namespace millrace {
namespace {

constexpr size_t kBloomBlockedHeaderBytes = 12;
constexpr double kBlockBits = 256;

/// Returns the rate at which a filter of `bits_per_index` bits an index accepts an index that is not in it. A block
/// holds a number of indices with Poisson's distribution of their mean. j of them leave each of a word's 32 bits unset
/// with the chance (31/32)^j.
double false_positive_rate(double bits_per_index) {
  const double mean = kBlockBits / bits_per_index;
  const auto last = static_cast<uint32_t>(mean + 12 * std::sqrt(mean) + 20);
  double rate = 0;
  for (uint32_t j = 0; j <= last; ++j) {
    const double chance = std::exp(j * std::log(mean) - mean - std::lgamma(j + 1.0));
    rate += chance * std::pow(1 - std::pow(31.0 / 32.0, j), kBlockedWords);
  }
  return rate;
}

/// The fewest blocks of the rate.
uint64_t blocks_for(uint64_t count, double rate) {
  double low = 1;
  double high = 2048;
  for (int step = 0; step < 40; ++step) {
    const double middle = std::sqrt(low * high);
    (false_positive_rate(middle) > rate ? low : high) = middle;
  }
  return std::max<uint64_t>(1, static_cast<uint64_t>(std::ceil(high * static_cast<double>(count) / kBlockBits)));
}

constexpr uint64_t kBlocksMax = INT32_MAX / kBlockedWords;  ///< words are numbered in 31 bits: 8 GiB

struct BlockedFilter {
  BlockedHashes hashes;
  Buffer<uint32_t> words;

  static std::optional<BlockedFilter> parse(ByteSpan bytes) {
    ByteReader reader(bytes);
    const auto seed = reader.get<uint64_t>();
    const auto blocks = reader.get<uint32_t>();
    if (!seed || !blocks || *blocks == 0 || *blocks > kBlocksMax) return std::nullopt;
    const auto filter = reader.get_bytes(uint64_t{*blocks} * kBlockedWords * sizeof(uint32_t));
    if (!filter || reader.remaining() != 0) return std::nullopt;
    BlockedFilter parsed{BlockedHashes::from(*seed, *blocks), {}};
    parsed.words.resize(size_t{*blocks} * kBlockedWords);
    std::memcpy(parsed.words.data(), filter->data(), filter->size());
    return parsed;
  }

  /// Lists the indices that the filter accepts; stops once they are more than count_max.
  void take_all(uint64_t dimension, uint64_t count_max, IndexBuffer& found) const {
    constexpr uint64_t kRoom = kBloomStrip + kBloomScanSlack;
    const FirstWords first = sparsest_words(words);
    found.clear();
    uint64_t count = 0;
    for (uint64_t begin = 0; begin < dimension && count <= count_max; begin += kBloomStrip) {
      if (found.capacity() < count + kRoom) found.reserve(std::min(count + count / 2, count_max) + kRoom);
      found.resize(count + kRoom);
      const auto length = static_cast<size_t>(std::min(kBloomStrip, dimension - begin));
      count += blocked_scan(hashes, words, first, static_cast<uint32_t>(begin), length, found.data() + count);
    }
    found.resize(count);
  }
};

/// Policy P0 over a filter whose every question is one load: all bits of an index lie in one block of 256. It takes
/// more bits for its rate than the classical filter (16.9 against 14.4 an index at 0.001), which asks in up to
/// -log2(rate) places.
class BloomBlockedIndexCodec final : public IndexCodec {
 public:
  IndexCodecId id() const override { return IndexCodecId{20}; }
  std::string_view name() const override { return "bloom_blocked"; }
  std::string_view paper() const override { return "[Putze07]: blocked Bloom filter; DeepReduce's P0"; }
  bool lossless() const override { return false; }
  uint64_t dimension_max() const override { return kBloomDimensionMax; }
  bool takes_rate() const override { return true; }

  uint64_t bytes_estimate(uint64_t count, uint64_t, const CodecSpec& spec) const override {
    return kBloomBlockedHeaderBytes +
           blocks_for(count, spec.bloom_false_positive_rate) * kBlockedWords * sizeof(uint32_t);
  }

  Status encode(IndexSpan indices, uint64_t dimension, const EncodeOptions& options, ByteBuffer& out,
                IndexBuffer* decoded) const override {
    MILLRACE_CHECK(decoded != nullptr && (indices.empty() || indices.back() < dimension), dimension);
    if (auto held = check_bloom_dimension(name(), dimension); !held) return held;
    const uint64_t blocks = blocks_for(indices.size(), options.spec.bloom_false_positive_rate);
    if (blocks > kBlocksMax)
      return fail(ErrorCode::kLimitExceeded,
                  "bloom_blocked: the filter would be over 8 GiB; take a larger rate, or another codec");
    const uint64_t seed = bloom_seed(options);
    BlockedFilter filter{BlockedHashes::from(seed, static_cast<uint32_t>(blocks)), {}};
    filter.words.resize(blocks * kBlockedWords);
    std::fill(filter.words.begin(), filter.words.end(), 0);
    for (const uint32_t index : indices) {
      uint32_t* const block = filter.words.data() + size_t{filter.hashes.block(index)} * kBlockedWords;
      for (size_t w = 0; w < kBlockedWords; ++w) block[w] |= uint32_t{1} << filter.hashes.bit(index, w);
    }
    ByteWriter writer(out);
    writer.put(seed);
    writer.put(filter.hashes.blocks);
    writer.put_array(std::span<const uint32_t>(filter.words));
    filter.take_all(dimension, dimension, *decoded);
    return {};
  }

  Status decode(ByteSpan bytes, uint64_t dimension, uint64_t count, IndexBuffer& indices) const override {
    if (dimension > kBloomDimensionMax || count > dimension) {
      return fail(ErrorCode::kMalformed, "bloom_blocked: dimension over 2^28, or more indices than the dimension has");
    }
    const auto filter = BlockedFilter::parse(bytes);
    if (!filter) return fail(ErrorCode::kMalformed, "bloom_blocked: header and filter length disagree");
    filter->take_all(dimension, count, indices);
    if (indices.size() != count) {
      return fail(ErrorCode::kMalformed,
                  "bloom_blocked: the filter does not know exactly the stated number of indices");
    }
    return {};
  }
};

}  // namespace

const IndexCodec& bloom_blocked_index_codec() {
  static const BloomBlockedIndexCodec codec;
  return codec;
}

}  // namespace millrace
