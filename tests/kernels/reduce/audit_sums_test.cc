#include "kernels/reduce/audit_sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/base/random.h"
#include "kernels/reduce/reduce.h"
#include "tests/support/isa.h"
#include "tests/support/oracles/stream_oracle.h"

namespace millrace {
namespace {

using testing::for_each_isa;
using testing::random_stream;

/// The sum to more digits than any of these needs.
long double exact_sum(std::span<const float> values) {
  long double sum = 0;
  for (const float value : values) sum += static_cast<long double>(value);
  return sum;
}

std::vector<float> normal_values(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

TEST(MassTest, IsTheSumAndTheSumOfMagnitudesAtEveryLength) {
  for_each_isa([](const std::string& isa) {
    for (const size_t count : {0, 1, 2, 3, 7, 8, 15, 16, 17, 33, 63, 4095, 4096, 4097, 8200, 100'003}) {
      const std::vector<float> values = normal_values(count + 1, static_cast<uint32_t>(count));
      const std::span<const float> misaligned = std::span(values).subspan(1);
      const Mass mass = mass_of(misaligned);
      long double magnitude = 0;
      for (const float value : misaligned) magnitude += std::abs(static_cast<long double>(value));
      EXPECT_LE(std::abs(static_cast<long double>(mass.sum) - exact_sum(misaligned)),
                kMassError * static_cast<double>(magnitude))
          << isa << ' ' << count;
      EXPECT_NEAR(mass.magnitude, static_cast<double>(magnitude), 1e-9 * static_cast<double>(magnitude)) << count;
    }
  });
}

TEST(MassTest, OfTheMarkedIsThatOfThoseAlone) {
  for_each_isa([](const std::string& isa) {
    RandomSequence random(RandomKey::from(9));
    for (const size_t count : {0, 1, 7, 8, 9, 31, 32, 33, 2047, 2048, 2049, 9'001}) {
      constexpr uint32_t kBase = 3u << 16;
      std::vector<uint32_t> marks((7 * count + 39) / 32);
      for (uint32_t& word : marks) word = random.next_u32();
      IndexBuffer indices;
      std::vector<float> values = normal_values(count, static_cast<uint32_t>(count));
      double sum = 0;
      double magnitude = 0;
      uint32_t local = 0;
      for (size_t i = 0; i < count; ++i) {
        local += 1 + static_cast<uint32_t>(random.next_below(7));
        indices.push_back(kBase + local);
        values[i] = std::round(values[i] * 256) / 256;
        if ((marks[local / 32] >> (local % 32) & 1) == 0) continue;
        sum += static_cast<double>(values[i]);
        magnitude += std::abs(static_cast<double>(values[i]));
      }
      const Mass mass = mass_where(indices, values, kBase, marks);
      EXPECT_EQ(mass.sum, sum) << isa << ' ' << count;
      EXPECT_EQ(mass.magnitude, magnitude) << isa << ' ' << count;
    }
  });
}

TEST(MassTest, IsExactOnABinaryGrid) {
  std::vector<float> values = normal_values(70'001, 5);
  double sum = 0;
  for (float& value : values) {
    value = std::round(value * 256) / 256;
    sum += static_cast<double>(value);
  }
  EXPECT_EQ(mass_of(values).sum, sum);
}

TEST(MassTest, OneEntryOfTypicalSizeAmongMillionsShows) {
  std::vector<float> values = normal_values(size_t{1} << 22, 6);
  const Mass whole = mass_of(values);
  values[1'234'567] = 0;
  const Mass without = mass_of(values);
  EXPECT_LT(kMassError * whole.magnitude, 1e-6);
  EXPECT_GT(std::abs(whole.sum - without.sum), 1e-3);
}

/// target before + taken = target after + rounded: to the bit, at every entry, since TwoSum is exact.
TEST(AccumulateTest, AddsTheSameBitsAndReportsTheRoundingError) {
  for_each_isa([](const std::string& isa) {
    for (const size_t count : {1, 5, 16, 31, 2047, 2048, 2049, 10'007}) {
      const std::vector<float> before = normal_values(count, 7);
      std::vector<float> values = normal_values(count, 8);
      for (float& value : values) value *= 1e-3f;
      const StreamView stream{count, true, {}, values};
      for (const float scale : {1.0f, 0.3f}) {
        std::vector<float> expected = before;
        add_scaled(expected, stream, scale);
        std::vector<float> target = before;
        const Accumulated done = accumulate(target, stream, scale);
        EXPECT_TRUE(std::ranges::equal(target, expected));
        long double taken = 0;
        for (const float value : values) taken += static_cast<long double>(scale * value);
        const long double off = exact_sum(before) + taken - exact_sum(target);
        EXPECT_NEAR(done.taken.sum, static_cast<double>(taken), kMassError * done.taken.magnitude);
        EXPECT_NEAR(done.rounded.sum, static_cast<double>(off), 1e-15) << isa << ' ' << count;
        EXPECT_TRUE(count < 16 || done.rounded.magnitude > 0) << "such sums are not exact";
      }
    }
  });
}

TEST(AccumulateTest, SparseIntoDenseAndTwoSparseSayTheSame) {
  RandomSequence random(random_key(9, 1));
  for (const double density : {0.001, 0.05, 0.5}) {
    const Stream a = random_stream(random, 20'000, density);
    const Stream b = random_stream(random, 20'000, 0.03);
    std::vector<float> target(20'000, 0.0f);
    accumulate(target, a.view(), 1);
    const Accumulated done = accumulate(target, b.view(), 1);
    EXPECT_EQ(done.taken.sum, mass_of(b.values).sum);
    const Stream dense = to_dense(a.view());
    for (const Mass& off : {rounded_off(a.view(), b.view()), rounded_off(b.view(), a.view()),
                            rounded_off(dense.view(), b.view()), rounded_off(b.view(), dense.view())}) {
      EXPECT_NEAR(off.sum, done.rounded.sum, 1e-6 * done.rounded.magnitude);
      EXPECT_NEAR(off.magnitude, done.rounded.magnitude, 1e-6 * done.rounded.magnitude);
    }
  }
}

TEST(LongSumTest, KeepsWhatDoublesRoundOff) {
  LongSum sum;
  sum.add(0x1p60);
  for (int i = 0; i < 1'000; ++i) sum.add(1.0 / 1024);
  sum.add(-0x1p60);
  EXPECT_EQ(sum.value(), 1'000.0 / 1024);
  LongSum other;
  other.add(2);
  sum.subtract(other);
  EXPECT_EQ(sum.value(), 1'000.0 / 1024 - 2);
}

}  // namespace
}  // namespace millrace
