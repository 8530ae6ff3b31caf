#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "kernels/base/bytes.h"
#include "kernels/base/check.h"
#include "kernels/base/words.h"
#include "kernels/codec/bits/bit_stream.h"
#include "kernels/codec/bucket_mean.h"
#include "kernels/codec/codec.h"
#include "kernels/stream/index_sort.h"

namespace millrace {
namespace {

constexpr uint64_t kQuantileHeaderBytes = 2;
constexpr uint32_t kQuantileBucketsMax = 256;
constexpr uint32_t kQuantileBits = 7;  // [DeepReduce21, 6.3], for SKCompress

/// Increases with the value; 0 and -0 are one.
uint32_t order_key(float value) {
  const auto bits = std::bit_cast<uint32_t>(value + 0.0F);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
}

float value_of_order_key(uint32_t key) { return std::bit_cast<float>((key >> 31) != 0 ? key & 0x7fffffffU : ~key); }

/// The buckets of a stream's values, increasing.
struct QuantileBuckets {
  Buffer<uint32_t> smallest;  ///< the order key of each one's smallest value
  Buffer<float> means;        ///< of each one's bounds, rounded down: it stays in the bucket
};

QuantileBuckets quantile_buckets(std::span<const float> values, uint32_t bits) {
  Buffer<uint64_t> sorted(values.size());
  Buffer<uint64_t> scratch;
  for (size_t i = 0; i < values.size(); ++i) sorted[i] = index_key(order_key(values[i]), static_cast<uint32_t>(i));
  sort_by_index(sorted, 32, scratch);
  QuantileBuckets buckets;
  const uint64_t count = std::min<uint64_t>(uint64_t{1} << bits, sorted.size());
  for (uint64_t j = 0; j < count; ++j) {
    const uint32_t key = index_of_key(sorted[j * sorted.size() / count]);
    if (buckets.smallest.empty() || key != buckets.smallest.back()) buckets.smallest.push_back(key);
  }
  for (size_t j = 0; j < buckets.smallest.size(); ++j) {
    const bool is_last = j + 1 == buckets.smallest.size();
    const float low = value_of_order_key(buckets.smallest[j]);
    const float high = value_of_order_key(is_last ? index_of_key(sorted.back()) : buckets.smallest[j + 1]);
    buckets.means.push_back(mean_rounded_down(low, high));
  }
  return buckets;
}

/// Codes values as numbers of quantile buckets, both signs in one order; a bucket decodes to the mean of its bounds.
/// These are SKCompress's values as DeepReduce ran it for [DeepReduce21, table 2], without the grouped MinMaxSketch and
/// the separation of signs. Its Huffman code of the numbers is left out. Quantiles are exact here, so that buckets are
/// equally frequent and no code takes fewer bits.
///
/// The mean enlarges the small values of a bucket: no contraction, and biased; the error must be dropped.
class QuantileValueCodec final : public ValueCodec {
 public:
  ValueCodecId id() const override { return ValueCodecId{19}; }
  std::string_view name() const override { return "quantile"; }
  std::string_view paper() const override {
    return "[SKCompress20] as in [DeepReduce21, 6.3]: quantile buckets without sketch";
  }
  bool lossless(const CodecSpec&) const override { return false; }
  bool contraction(const CodecSpec&) const override { return false; }
  bool unbiased(const CodecSpec&) const override { return false; }

  bool parse(std::string_view text, CodecSpec& spec) const override {
    const auto parts = split(text, ':');
    if (parts[0] != name() || parts.size() > 2) return false;
    spec.qsgd_bits = kQuantileBits;
    return parts.size() == 1 || assign_number(parts[1], spec.qsgd_bits);
  }
  std::string text(const CodecSpec& spec) const override {
    std::string words(name());
    return spec.qsgd_bits == kQuantileBits ? words : words + ':' + std::to_string(spec.qsgd_bits);
  }
  std::string help_text() const override { return "quantile[:2..8]"; }

  uint64_t bytes_max(uint64_t count, const CodecSpec& spec) const override {
    if (count == 0) return 0;
    const uint64_t buckets = std::min<uint64_t>(uint64_t{1} << spec.qsgd_bits, count);
    return kQuantileHeaderBytes + buckets * sizeof(float) + number_bytes(count, spec.qsgd_bits);
  }

  Status check(ByteSpan bytes, uint64_t count) const override {
    if (count == 0) return bytes.empty() ? Status{} : Status(malformed("bytes for no values"));
    const auto buckets = ByteReader(bytes).get<uint16_t>();
    if (!buckets || *buckets == 0 || *buckets > kQuantileBucketsMax)
      return malformed("a number of buckets that cannot be");
    const uint64_t expected =
        kQuantileHeaderBytes + *buckets * sizeof(float) + number_bytes(count, number_bits(*buckets));
    if (count > kDimensionMax || bytes.size() != expected) return malformed("the length is not that of the values");
    return {};
  }

  Status encode(IndexSpan, std::span<const float> values, const EncodeOptions& options, ByteBuffer& out,
                std::span<float> decoded) const override {
    MILLRACE_CHECK(values.size() == decoded.size(), values.size(), decoded.size());
    if (!all_finite(values)) return fail(ErrorCode::kNonFinite, "quantile: NaN or infinity among the values");
    if (values.empty()) return {};
    const QuantileBuckets buckets = quantile_buckets(values, options.spec.qsgd_bits);
    ByteWriter bytes(out);
    bytes.put(static_cast<uint16_t>(buckets.means.size()));
    bytes.put_array(std::span<const float>(buckets.means));
    const uint32_t bits = number_bits(buckets.means.size());
    BitWriter writer(out);
    for (size_t i = 0; i < values.size(); ++i) {
      const auto above = std::ranges::upper_bound(buckets.smallest, order_key(values[i]));
      const auto bucket = static_cast<size_t>(above - buckets.smallest.begin()) - 1;
      writer.put(bucket, bits);
      decoded[i] = buckets.means[bucket];
    }
    writer.finish();
    return {};
  }

  Status decode(ByteSpan bytes, IndexSpan, std::span<float> out) const override {
    if (Status status = check(bytes, out.size()); !status || out.empty()) return status;
    ByteReader reader(bytes);
    Buffer<float> means(*reader.get<uint16_t>());
    float last = -std::numeric_limits<float>::infinity();
    for (float& mean : means) {
      mean = *reader.get<float>();
      if (!std::isfinite(mean) || mean <= last) return malformed("buckets that are no values in order");
      last = mean;
    }
    const uint32_t bits = number_bits(means.size());
    BitReader numbers(*reader.get_bytes(reader.remaining()));
    for (float& value : out) {
      const uint64_t bucket = numbers.take(bits);
      if (bucket >= means.size()) return malformed("a bucket that there is not");
      value = means[bucket];
    }
    if (!numbers.at_end()) return malformed("bits behind the last value");
    return {};
  }

 private:
  static uint64_t number_bytes(uint64_t count, uint32_t bits) { return count / 8 * bits + (count % 8 * bits + 7) / 8; }
  std::unexpected<Error> malformed(const char* what) const {
    return fail(ErrorCode::kMalformed, "quantile: " + std::string(what));
  }
};

}  // namespace

const ValueCodec& quantile_value_codec() {
  static const QuantileValueCodec codec;
  return codec;
}

}  // namespace millrace
