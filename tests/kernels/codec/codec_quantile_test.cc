// The value codec "quantile": bytes against the definition in protocol/wire/sketch_codecs.md, and what
// [DeepReduce21, table 2] takes of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kernels/codec/codec.h"
#include "tests/support/bucket_mean.h"
#include "tests/support/index_sets.h"
#include "tests/support/oracles/huffman_oracle.h"
#include "tests/support/oracles/select_oracle.h"

namespace millrace {
namespace {

using testing::kPatterns;
using testing::low_bits;
using testing::mean_rounded_down;
using testing::packed;
using testing::Pattern;
using testing::values_of;

constexpr ValueCodecId kQuantile{19};

/// Quantile buckets by the definition: values sorted, each looked up from the first bucket on.
struct QuantileOracle {
  std::vector<uint8_t> bytes;
  std::vector<float> decoded;
  std::vector<float> bounds;
  std::vector<float> means;
  std::vector<size_t> buckets;  // of each value

  QuantileOracle(const std::vector<float>& values, uint32_t bits) {
    if (values.empty()) return;
    std::vector<float> sorted = values;
    for (float& value : sorted) value += 0.0F;  // of -0, 0
    std::ranges::sort(sorted);
    const size_t count = std::min<size_t>(size_t{1} << bits, sorted.size());
    std::set<float> distinct;
    for (size_t j = 0; j < count; ++j) distinct.insert(sorted[j * sorted.size() / count]);
    bounds.assign(distinct.begin(), distinct.end());
    for (size_t j = 0; j < bounds.size(); ++j) {
      means.push_back(mean_rounded_down(bounds[j], j + 1 < bounds.size() ? bounds[j + 1] : sorted.back()));
    }
    bytes = {static_cast<uint8_t>(means.size() & 255), static_cast<uint8_t>(means.size() >> 8)};
    const auto* words = reinterpret_cast<const uint8_t*>(means.data());
    bytes.insert(bytes.end(), words, words + means.size() * sizeof(float));
    uint64_t width = 0;
    while ((size_t{1} << width) < means.size()) ++width;
    std::string numbers;
    for (const float value : values) {
      size_t bucket = 0;
      while (bucket + 1 < bounds.size() && bounds[bucket + 1] <= value) ++bucket;
      buckets.push_back(bucket);
      numbers += low_bits(static_cast<uint32_t>(bucket), width);
      decoded.push_back(means[bucket]);
    }
    const auto more = packed(numbers);
    bytes.insert(bytes.end(), more.begin(), more.end());
  }
};

struct QuantileCoded {
  std::vector<uint8_t> bytes;
  std::vector<float> decoded;
};

QuantileCoded encode_quantile(const std::vector<float>& values, uint32_t bits) {
  QuantileCoded coded;
  coded.decoded.resize(values.size());
  ByteBuffer bytes;
  EncodeOptions options;
  options.spec.qsgd_bits = bits;
  const Status done = find_value_codec(kQuantile)->encode({}, std::span<const float>(values), options, bytes,
                                                          std::span<float>(coded.decoded));
  EXPECT_TRUE(done) << done.error().message;
  coded.bytes.assign(bytes.begin(), bytes.end());
  return coded;
}

Status decode_quantile(const std::vector<uint8_t>& bytes, std::vector<float>& out) {
  return find_value_codec(kQuantile)->decode(bytes, {}, std::span<float>(out));
}

TEST(QuantileCodec, BytesAndValuesAreThoseOfTheDefinition) {
  for (const uint32_t bits : {2, 6, 7, 8}) {
    for (const Pattern pattern : kPatterns) {
      for (const size_t n : {0, 1, 2, 3, 127, 128, 129, 300, 2500}) {
        SCOPED_TRACE("bits " + std::to_string(bits) + ", pattern " + std::to_string(static_cast<int>(pattern)) +
                     ", n " + std::to_string(n));
        std::vector<float> values = values_of(pattern, n, n);
        for (size_t i = 0; i < n; i += 5) values[i] = i % 2 == 0 ? 0.0F : -0.0F;
        const QuantileOracle wanted(values, bits);
        const QuantileCoded coded = encode_quantile(values, bits);
        ASSERT_EQ(coded.bytes, wanted.bytes);
        ASSERT_EQ(coded.decoded, wanted.decoded);
        ASSERT_LE(coded.bytes.size(), find_value_codec(kQuantile)->bytes_max(n, {.qsgd_bits = bits}));
        std::vector<float> received(n, 42);
        ASSERT_TRUE(decode_quantile(coded.bytes, received));
        ASSERT_EQ(received, coded.decoded);
      }
    }
  }
}

TEST(QuantileCodec, BucketsHoldEquallyManyValuesSoThatNumbersTakeAllOfTheirBits) {
  constexpr size_t kCount = 51'200;
  const auto values = values_of(Pattern::kGaussian, kCount, 2);
  const QuantileOracle oracle(values, 7);
  std::map<size_t, uint64_t> held;
  for (const size_t bucket : oracle.buckets) ++held[bucket];
  EXPECT_EQ(held.size(), 128u);
  double entropy = 0;
  for (const auto& [bucket, count] : held) {
    const double share = static_cast<double>(count) / kCount;
    entropy -= share * std::log2(share);
  }
  EXPECT_GT(entropy, 6.999);
  EXPECT_EQ(encode_quantile(values, 7).bytes.size(), 2 + 128 * 4 + kCount * 7 / 8);
}

TEST(QuantileCodec, BucketsOutOfOrderAndNumbersThatThereAreNotAreMalformed) {
  const auto values = values_of(Pattern::kGaussian, 300, 3);
  const QuantileCoded coded = encode_quantile({values.begin(), values.begin() + 100}, 7);
  std::vector<float> out(100);
  ASSERT_EQ(coded.bytes[0], 100u);
  const auto refused = [&](auto change) {
    auto bytes = coded.bytes;
    change(bytes);
    const Status done = decode_quantile(bytes, out);
    return !done && done.error().code == ErrorCode::kMalformed;
  };
  using Bytes = std::vector<uint8_t>&;
  EXPECT_TRUE(refused([](Bytes bytes) { std::swap_ranges(bytes.begin() + 2, bytes.begin() + 6, bytes.begin() + 6); }));
  EXPECT_TRUE(refused([](Bytes bytes) { std::copy_n(bytes.begin() + 2, 4, bytes.begin() + 6); }));
  EXPECT_TRUE(refused([](Bytes bytes) { bytes[2 + 99 * 4 + 3] = 0x7f, bytes[2 + 99 * 4 + 2] = 0x80; }));
  EXPECT_TRUE(refused([](Bytes bytes) { bytes[2 + 400] = 0xff; }));  // bucket 127 of 100
  EXPECT_TRUE(refused([](Bytes bytes) { bytes.back() |= 0xf0; }));
  EXPECT_TRUE(refused([](Bytes bytes) { bytes[0] = 0; }));
  EXPECT_TRUE(refused([](Bytes bytes) { bytes[1] = 1; }));
}

TEST(QuantileCodec, MeansNeedTheirErrorDropped) {
  EXPECT_FALSE(find_value_codec(kQuantile)->contraction({}));
  EXPECT_FALSE(find_value_codec(kQuantile)->unbiased({}));
}

}  // namespace
}  // namespace millrace
