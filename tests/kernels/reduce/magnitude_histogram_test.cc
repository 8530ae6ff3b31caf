#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "kernels/base/random.h"
#include "kernels/reduce/magnitude_histogram.h"
#include "tests/support/isa.h"

namespace millrace {
namespace {

std::vector<float> random_values(uint64_t seed, size_t count) {
  RandomSequence random(RandomKey::from(seed));
  std::vector<float> values(count);
  for (float& value : values) {
    // A tenth are zeros, a tenth of few distinct magnitudes: ties.
    const uint64_t kind = random.next_below(10);
    value = kind == 0   ? 0.0F
            : kind == 1 ? static_cast<float>(random.next_below(5)) - 2.0F
                        : static_cast<float>(random.next_normal());
  }
  return values;
}

/// Returns the top entries by definition: the positions of all entries of bins 1 and up, by magnitude, then position.
/// Within the boundary bin and above it, that is the order of select_by_histogram.
std::vector<uint32_t> oracle_top(const std::vector<float>& values, uint64_t k) {
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < values.size(); ++i) {
    if (MagnitudeHistogram::bin_of(values[i]) > 0) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return std::fabs(values[a]) > std::fabs(values[b]); });
  order.resize(std::min<uint64_t>(k, order.size()));
  std::sort(order.begin(), order.end());
  return order;
}

TEST(HistogramTest, BinsAreMonotoneAndIgnoreTheSign) {
  using Limits = std::numeric_limits<float>;
  EXPECT_EQ(MagnitudeHistogram::bin_of(0.0F), 0u);
  EXPECT_EQ(MagnitudeHistogram::bin_of(-0.0F), 0u);
  EXPECT_EQ(MagnitudeHistogram::bin_of(1.0F), 127u << 7);
  EXPECT_LT(MagnitudeHistogram::bin_of(Limits::max()), MagnitudeHistogram::kBins);
  EXPECT_LT(MagnitudeHistogram::bin_of(Limits::infinity()), MagnitudeHistogram::kBins);
  std::vector<float> values = random_values(1, 5000);
  for (size_t i = 0; i < 1000; ++i) values.push_back(std::ldexp(values[i], static_cast<int>(i % 300) - 150));
  std::sort(values.begin(), values.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); });
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    ASSERT_LE(MagnitudeHistogram::bin_of(values[i]), MagnitudeHistogram::bin_of(values[i + 1])) << values[i];
    ASSERT_EQ(MagnitudeHistogram::bin_of(values[i]), MagnitudeHistogram::bin_of(-values[i]));
  }
}

TEST(HistogramTest, TheLargestValueBelowABinsEdgeIsInTheBinBefore) {
  const float below_one = std::nextafter(1.0F, 0.0F);
  EXPECT_EQ(MagnitudeHistogram::bin_of(below_one), (127u << 7) - 1);
  EXPECT_EQ(MagnitudeHistogram::bin_of(-below_one), (127u << 7) - 1);
  EXPECT_EQ(MagnitudeHistogram::bin_of(std::numeric_limits<float>::denorm_min()), 0u);
}

TEST(HistogramTest, CountsEveryNonZeroEntryInItsBin) {
  for (const size_t count : {0, 1, 2, 15, 16, 17, 1000, 30'011}) {
    const std::vector<float> values = random_values(count, count);
    std::map<uint32_t, uint64_t> expected;
    for (const float value : values) ++expected[MagnitudeHistogram::bin_of(value)];
    expected.erase(0);
    MagnitudeHistogram histogram;
    histogram.add(std::span<const float>(values));
    uint64_t total = 0;
    for (uint32_t bin = 0; bin < MagnitudeHistogram::kBins; ++bin) {
      const auto at = expected.find(bin);
      ASSERT_EQ(histogram.count(bin), at == expected.end() ? 0 : at->second) << bin;
      total += histogram.count(bin);
    }
    EXPECT_EQ(histogram.total(), total);
    EXPECT_EQ(histogram.empty(), total == 0);
  }
}

TEST(HistogramTest, AddingHistogramsIsAddingTheirEntries) {
  const std::vector<float> values = random_values(3, 9001);
  const std::span<const float> all(values);
  MagnitudeHistogram whole, left, right;
  whole.add(all);
  left.add(all.first(1234));
  right.add(all.subspan(1234));
  EXPECT_FALSE(left == whole);
  left.add(right);
  EXPECT_TRUE(left == whole);
  left.add(MagnitudeHistogram{});
  EXPECT_TRUE(left == whole);
  const std::vector<float> zeros(10);
  MagnitudeHistogram of_zeros;
  of_zeros.add(std::span<const float>(zeros));
  EXPECT_TRUE(of_zeros == MagnitudeHistogram{});
}

TEST(HistogramTest, OfAFewEntriesOfFarMagnitudesTakesLittleMemory) {
  const std::vector<float> far = {2e-38F, 3e38F};
  MagnitudeHistogram histogram;
  histogram.add(std::span<const float>(far));
  EXPECT_EQ(histogram.total(), 2u);
  EXPECT_EQ(histogram.count(MagnitudeHistogram::bin_of(far[1])), 1u);
  EXPECT_EQ(histogram_threshold(histogram, 1).bin, MagnitudeHistogram::bin_of(far[1]));
  EXPECT_LT(histogram.memory_bytes(), 1024u);
  ByteBuffer bytes;
  histogram.encode(bytes);
  EXPECT_LT(MagnitudeHistogram::decode(bytes)->memory_bytes(), 1024u);
}

TEST(HistogramTest, CountsAreTheSameOneByOneAndAtOnce) {
  const std::vector<float> values = random_values(8, 2'000);
  const std::span<const float> all(values);
  MagnitudeHistogram whole, one_by_one, joined;
  whole.add(all);
  for (size_t at = 0; at < all.size(); ++at) one_by_one.add(all.subspan(at, 1));
  EXPECT_TRUE(one_by_one == whole);
  std::vector<std::shared_ptr<const MagnitudeHistogram>> parts;
  for (size_t at = 0; at < all.size(); at += 100) {
    auto part = std::make_shared<MagnitudeHistogram>();
    part->add(all.subspan(at, 100));
    parts.push_back(std::move(part));
  }
  joined.add(parts);
  EXPECT_TRUE(joined == whole);
  EXPECT_LE(whole.memory_bytes(), 16 * values.size());
}

TEST(HistogramTest, DecodeUndoesEncode) {
  for (const size_t count : {0, 1, 300, 20'000}) {
    const std::vector<float> values = random_values(4, count);
    MagnitudeHistogram histogram;
    histogram.add(std::span<const float>(values));
    ByteBuffer bytes;
    histogram.encode(bytes);
    const Result<MagnitudeHistogram> decoded = MagnitudeHistogram::decode(bytes);
    ASSERT_TRUE(decoded.has_value());
    EXPECT_TRUE(*decoded == histogram);
    for (size_t length = 0; length < bytes.size(); ++length) {
      ASSERT_FALSE(MagnitudeHistogram::decode(ByteSpan(bytes).first(length)).has_value()) << length;
    }
  }
}

TEST(HistogramCodeTest, GoldenBytes) {
  const std::vector<float> values = {1.0f, -1.0f, 2.0f, 0.0f};  // bins 16256, 16256, 16384
  MagnitudeHistogram histogram;
  histogram.add(std::span<const float>(values));
  ByteBuffer bytes;
  histogram.encode(bytes);
  const std::vector<uint8_t> golden = {2, 0x80, 0x7f, 2, 0x80, 0x01, 1};
  EXPECT_EQ(std::vector<uint8_t>(bytes.begin(), bytes.end()), golden);
}

TEST(HistogramCodeTest, HostileBytesAreRefusedOrGiveAValidHistogram) {
  const auto refused = [](std::vector<uint8_t> bytes) {
    const auto decoded = MagnitudeHistogram::decode(bytes);
    return !decoded && decoded.error().code == ErrorCode::kMalformed;
  };
  EXPECT_TRUE(refused({}));
  EXPECT_TRUE(refused({1, 0, 1}));                       // bin 0
  EXPECT_TRUE(refused({1, 0x80, 0x80, 0x02, 1}));        // bin 32768
  EXPECT_TRUE(refused({2, 0xff, 0xff, 0x01, 1, 1, 1}));  // bin 32768 by its delta
  EXPECT_TRUE(refused({1, 1, 0}));                       // count 0
  EXPECT_TRUE(refused({1, 1, 1, 0}));                    // bytes left over
  EXPECT_TRUE(refused({1, 0x81, 0x00, 1}));              // not the shortest form
  EXPECT_TRUE(refused({0x80, 0x80, 0x02}));              // more bins than there are
  EXPECT_TRUE(refused({0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}));
  EXPECT_TRUE(refused({2, 1, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x40, 1, 1}));  // total over 2^48
  EXPECT_FALSE(refused({0}));
  EXPECT_FALSE(refused({1, 1, 1}));
  RandomSequence random(RandomKey::from(5));
  const std::vector<float> values = random_values(6, 400);
  MagnitudeHistogram histogram;
  histogram.add(std::span<const float>(values));
  ByteBuffer bytes;
  histogram.encode(bytes);
  for (size_t at = 0; at < bytes.size(); ++at) {
    ByteBuffer damaged = bytes;
    damaged[at] ^= static_cast<uint8_t>(1 + random.next_below(255));
    const auto decoded = MagnitudeHistogram::decode(damaged);
    if (!decoded) continue;
    // An accepted histogram is valid, and these bytes are its only code.
    ByteBuffer again;
    decoded->encode(again);
    ASSERT_EQ(again, damaged) << at;
    ASSERT_EQ(decoded->count(0), 0u);
  }
}

TEST(HistogramTest, TheCutHoldsExactlyTheKLargest) {
  const std::vector<float> values = random_values(7, 3000);
  MagnitudeHistogram histogram;
  histogram.add(std::span<const float>(values));
  for (const uint64_t k : {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{100}, uint64_t{1500}, histogram.total() - 1,
                           histogram.total(), histogram.total() + 1, std::numeric_limits<uint64_t>::max()}) {
    const HistogramThreshold cut = histogram_threshold(histogram, k);
    ASSERT_GE(cut.bin, 1u);
    uint64_t above = 0;
    for (uint32_t bin = cut.bin + 1; bin < MagnitudeHistogram::kBins; ++bin) above += histogram.count(bin);
    EXPECT_EQ(cut.above, above) << k;
    EXPECT_EQ(cut.in_bin, histogram.count(cut.bin)) << k;
    EXPECT_LE(cut.take, cut.in_bin) << k;
    EXPECT_EQ(cut.above + cut.take, std::min(k, histogram.total())) << k;
    testing::for_each_isa([&](const std::string& isa) {
      IndexBuffer positions = {1, 2, 3};
      select_by_histogram(values, cut.bin, cut.take, positions);
      EXPECT_EQ(std::vector<uint32_t>(positions.begin(), positions.end()), oracle_top(values, k)) << k << ' ' << isa;
    });
  }
}

// Found by the fuzzer: only a NaN has the highest bin, but any peer can send its count.
TEST(ThresholdCutTest, OfNoneCountsTheHighestBinThatADecodedHistogramMayOccupy) {
  const ByteBuffer bytes = {0x01, 0xff, 0xff, 0x01, 0xff, 0xff, 0x02};
  const auto histogram = MagnitudeHistogram::decode(bytes);
  ASSERT_TRUE(histogram.has_value());
  const HistogramThreshold cut = histogram_threshold(*histogram, 0);
  EXPECT_EQ(cut.bin, MagnitudeHistogram::kBins - 1);
  EXPECT_EQ(cut.in_bin, 0xbfffu);
  EXPECT_EQ(cut.above + cut.take, 0u);
}

TEST(ThresholdCutTest, OfNothingSelectsNothing) {
  const HistogramThreshold cut = histogram_threshold(MagnitudeHistogram{}, 10);
  EXPECT_EQ(cut.bin, 1u);
  EXPECT_EQ(cut.above + cut.in_bin + cut.take, 0u);
}

TEST(HistogramTest, EveryCutTakesTheLargestOfItsBinAndTiesByPosition) {
  // Five magnitudes within one bin, many ties.
  RandomSequence random(RandomKey::from(8));
  for (const size_t count : {1, 7, 16, 33, 1000}) {
    std::vector<float> values(count);
    for (float& value : values) {
      value = 1.0F + 0.001F * static_cast<float>(random.next_below(5));
      if (random.next_below(2) == 0) value = -value;
      if (random.next_below(4) == 0) value = 2;
      if (random.next_below(4) == 0) value = 0.5F;
    }
    const uint32_t bin = MagnitudeHistogram::bin_of(1.0F);
    const uint64_t above = static_cast<uint64_t>(std::count(values.begin(), values.end(), 2.0F));
    const uint64_t in_bin = static_cast<uint64_t>(
        std::count_if(values.begin(), values.end(), [&](float v) { return MagnitudeHistogram::bin_of(v) == bin; }));
    for (uint64_t take = 0; take <= in_bin; take += 1 + in_bin / 20) {
      IndexBuffer positions;
      select_by_histogram(values, bin, take, positions);
      EXPECT_EQ(std::vector<uint32_t>(positions.begin(), positions.end()), oracle_top(values, above + take));
    }
    IndexBuffer all, clipped;
    select_by_histogram(values, bin, in_bin, all);
    select_by_histogram(values, bin, std::numeric_limits<uint64_t>::max(), clipped);
    EXPECT_EQ(all, clipped);
  }
}

TEST(HistogramTest, NothingOfBinZeroIsEverSelected) {
  const std::vector<float> values = {0, 1, -0.0F, 2, static_cast<float>(1e-44)};
  IndexBuffer positions;
  select_by_histogram(values, 0, 100, positions);
  EXPECT_EQ(std::vector<uint32_t>(positions.begin(), positions.end()), (std::vector<uint32_t>{1, 3}));
  select_by_histogram(values, MagnitudeHistogram::kBins, 100, positions);
  EXPECT_TRUE(positions.empty());
  select_by_histogram({}, 1, 1, positions);
  EXPECT_TRUE(positions.empty());
}

}  // namespace
}  // namespace millrace
