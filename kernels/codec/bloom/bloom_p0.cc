#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/codec/bloom/bloom_filter.h"
#include "kernels/codec/codec.h"

namespace millrace {
namespace {

constexpr size_t kSeedBytes = 8;

/// Codes indices as a filter, and decodes every index that the filter accepts. These are r + rate (d - r) at most in
/// the mean [DeepReduce21, lemma 5]; with one draw of the hash functions they may be more.
class BloomP0IndexCodec final : public IndexCodec {
 public:
  IndexCodecId id() const override { return IndexCodecId::kBloom; }
  std::string_view name() const override { return "bloom_p0"; }
  std::string_view paper() const override { return "[DeepReduce21, 4]: Bloom filter, policy P0"; }
  bool lossless() const override { return false; }
  uint64_t dimension_max() const override { return kBloomDimensionMax; }
  bool takes_rate() const override { return true; }

  uint64_t bytes_estimate(uint64_t count, uint64_t, const CodecSpec& spec) const override {
    return kSeedBytes + BloomFilter::bytes(count, spec.bloom_false_positive_rate);
  }

  Status encode(IndexSpan indices, uint64_t dimension, const EncodeOptions& options, ByteBuffer& out,
                IndexBuffer* decoded) const override {
    MILLRACE_CHECK(decoded != nullptr && (indices.empty() || indices.back() < dimension), dimension);
    if (auto held = check_bloom_dimension(name(), dimension); !held) return held;
    const uint64_t seed = bloom_seed(options);
    const auto filter = BloomFilter::of(indices, options.spec.bloom_false_positive_rate, seed);
    if (!filter) return std::unexpected(filter.error());
    ByteWriter(out).put(seed);
    filter->put(out);
    decoded->reserve(indices.size() + indices.size() / 8 + kBloomStrip);
    take_all(*filter, dimension, dimension, *decoded);
    return {};
  }

  Status decode(ByteSpan bytes, uint64_t dimension, uint64_t count, IndexBuffer& indices) const override {
    if (dimension > kBloomDimensionMax || count > dimension) {
      return fail(ErrorCode::kMalformed, "bloom: dimension over 2^28, or more indices than the dimension has");
    }
    const auto seed = ByteReader(bytes).get<uint64_t>();
    const auto filter = seed ? BloomFilter::take(*seed, bytes.subspan(kSeedBytes), {0, count}) : std::nullopt;
    if (!filter) return fail(ErrorCode::kMalformed, "bloom: the filter does not fit the stated number of indices");
    take_all(*filter, dimension, count, indices);
    if (indices.size() != count) {
      return fail(ErrorCode::kMalformed, "bloom: the filter does not know exactly the stated number of indices");
    }
    return {};
  }

 private:
  /// Lists the indices that the filter accepts; stops once they are more than count_max. Memory grows with their
  /// number, to count_max entries and a constant.
  static void take_all(const BloomFilter& filter, uint64_t dimension, uint64_t count_max, IndexBuffer& found) {
    found.clear();
    filter.scan(dimension, [&](IndexSpan some) {
      const uint64_t count = found.size() + some.size();
      if (found.capacity() < count) found.reserve(std::min(count + count / 2, count_max) + kBloomStrip);
      found.insert(found.end(), some.begin(), some.end());
      return count <= count_max;
    });
  }
};

}  // namespace

const IndexCodec& bloom_p0_index_codec() {
  static const BloomP0IndexCodec codec;
  return codec;
}

}  // namespace millrace
