#include "kernels/accumulate/add_and_collect.h"

#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/random.h"
#include "kernels/magnitude/value_chunks.h"
#include "tests/support/isa.h"

namespace millrace {
namespace {

using testing::for_each_isa;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

enum class Values : uint8_t { kNormal, kFewDistinct, kDenormal, kMostlyZero };
constexpr Values kAllValues[] = {Values::kNormal, Values::kFewDistinct, Values::kDenormal, Values::kMostlyZero};

std::vector<float> some_values(Values kind, size_t n, uint64_t seed) {
  RandomSequence random(random_key(seed, 41));
  std::vector<float> values(n);
  for (float& value : values) {
    switch (kind) {
      case Values::kNormal: value = static_cast<float>(random.next_normal()); break;
      case Values::kFewDistinct: value = static_cast<float>(random.next_below(3)) - 1; break;
      case Values::kDenormal:
        value = std::numeric_limits<float>::denorm_min() * (static_cast<float>(random.next_below(2000)) - 1000);
        break;
      case Values::kMostlyZero: value = random.next_below(1000) == 0 ? 1.0f : -0.0f; break;
    }
  }
  return values;
}

std::vector<uint32_t> words_of_floats(std::span<const float> values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

/// The slow reference: the sum, and its entries from a key on.
struct Reference {
  std::vector<float> sum;

  Reference(std::span<const float> target, std::span<const float> values, float scale)
      : sum(target.begin(), target.end()) {
    for (size_t i = 0; i < sum.size(); ++i) {
      const float product = scale * values[i];
      sum[i] += product;
    }
  }
  std::vector<std::pair<uint32_t, MagnitudeKey>> from(MagnitudeKey key_min) const {
    std::vector<std::pair<uint32_t, MagnitudeKey>> entries;
    for (size_t i = 0; i < sum.size(); ++i) {
      if (magnitude_key(sum[i]) >= key_min) entries.emplace_back(static_cast<uint32_t>(i), magnitude_key(sum[i]));
    }
    return entries;
  }
};

std::vector<std::pair<uint32_t, MagnitudeKey>> entries_of(const IndexBuffer& positions,
                                                          const Buffer<MagnitudeKey>& keys, size_t count) {
  std::vector<std::pair<uint32_t, MagnitudeKey>> entries;
  for (size_t i = 0; i < count; ++i) entries.emplace_back(positions[i], keys[i]);
  return entries;
}

TEST(AddAndCollect, ABlockIsTheReferenceAtEveryLengthAndKey) {
  for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    for (const Values kind : kAllValues) {
      for (const size_t n : {0, 1, 7, 8, 9, 63, 64, 65, 127, 128, 200, 1000, 4095, 4096}) {
        const auto before = some_values(kind, n, n);
        const auto values = some_values(kind, n, n + 1);
        const Reference reference(before, values, 0.3f);
        for (const MagnitudeKey key_min : {1u, 4u, magnitude_key(0.3f), magnitude_key(0.9f), kInfinityKey}) {
          std::vector<float> target = before;
          IndexBuffer positions(n + kCollectSlack);
          Buffer<MagnitudeKey> keys(n + kCollectSlack);
          const size_t found =
              add_and_collect_block(target, values, 0.3f, 5000, key_min, positions.data(), keys.data());
          ASSERT_EQ(words_of_floats(target), words_of_floats(reference.sum)) << n;
          auto expected = reference.from(key_min);
          for (auto& [position, key] : expected) position += 5000;
          ASSERT_EQ(entries_of(positions, keys, found), expected) << n << " from " << key_min;
        }
      }
    }
  });
}

TEST(AddAndCollect, AnyNumberOfThreadsGivesTheReferencesBits) {
  for (const Values kind : kAllValues) {
    for (const size_t n : {size_t{1}, size_t{1000}, kValueChunk + 4097, kCollectFrom - 1, kCollectFrom,
                           kCollectFrom + 1, kCollectFrom + kValueChunk - 63}) {
      const auto before = some_values(kind, n, n);
      const auto values = some_values(kind, n, n + 1);
      const Reference reference(before, values, -0.7f);
      const uint64_t wanted = n / 100;
      for (const size_t threads : {1u, 2u, 4u}) {
        const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
        std::vector<float> target = before;
        Candidates largest;
        const bool collected = add_and_collect(target, values, -0.7f, wanted, largest);
        ASSERT_EQ(words_of_floats(target), words_of_floats(reference.sum)) << n << " on " << threads;
        ASSERT_EQ(collected, n >= kCollectFrom && kind != Values::kFewDistinct)
            << n << " on " << threads << ": of few values too many are equal";
        if (!collected) continue;
        const MagnitudeKey least = *std::ranges::min_element(largest.keys);
        ASSERT_EQ(entries_of(largest.positions, largest.keys, largest.keys.size()), reference.from(least)) << n;
        ASSERT_TRUE(kind != Values::kNormal || largest.keys.size() >= wanted) << n;
      }
    }
  }
}

TEST(AddAndCollect, ASumThatIsNotFiniteIsAddedAndNotCollected) {
  const size_t n = 4 * kValueChunk + 5;
  for (const size_t at : {size_t{0}, kScanBlock - 1, kScanBlock, kValueChunk - 1, kValueChunk, n - 1}) {
    std::vector<float> target = some_values(Values::kNormal, n, 1);
    std::vector<float> values = some_values(Values::kNormal, n, 2);
    target[at] = values[at] = std::numeric_limits<float>::max();
    const Reference reference(target, values, 1);
    Candidates largest;
    EXPECT_FALSE(add_and_collect(target, values, 1, n / 100, largest)) << at;
    ASSERT_EQ(words_of_floats(target), words_of_floats(reference.sum)) << at;
  }
}

TEST(AddAndCollect, WhereAllLargeEntriesAreInOneChunkTheyAreCollectedToo) {
  const size_t n = 8 * kValueChunk;
  std::vector<float> target(n, 0.0f);
  std::vector<float> values = some_values(Values::kNormal, n, 1);
  for (size_t i = 0; i < n; ++i) values[i] *= i / kValueChunk == 3 ? 100.0f : 1.0f;
  Candidates largest;
  ASSERT_TRUE(add_and_collect(target, values, 1, n / 100, largest));
  EXPECT_GE(largest.keys.size(), n / 100);
}

TEST(AddAndCollect, WithNothingWantedItOnlyAdds) {
  const size_t n = kCollectFrom + 3;
  for (const uint64_t wanted : {uint64_t{0}, uint64_t{n}}) {
    std::vector<float> target = some_values(Values::kNormal, n, 1);
    const std::vector<float> values = some_values(Values::kNormal, n, 2);
    const Reference reference(target, values, 1);
    Candidates largest;
    EXPECT_FALSE(add_and_collect(target, values, 1, wanted, largest));
    EXPECT_EQ(words_of_floats(target), words_of_floats(reference.sum));
  }
}

TEST(AddAndCollect, ScaledValuesAreTheProductsForAnyNumberOfThreads) {
  const std::vector<float> values = some_values(Values::kNormal, 5 * kValueChunk + 3, 9);
  for (const size_t threads : {1u, 2u, 4u}) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    for (const size_t length : {size_t{0}, size_t{1}, kValueChunk, 4 * kValueChunk - 1, values.size()}) {
      std::vector<float> target(length + 1, 7.0f);
      scale_on_threads(std::span(values).first(length), 0.3f, std::span(target).first(length));
      for (size_t i = 0; i < length; ++i) ASSERT_EQ(target[i], 0.3f * values[i]) << i;
      EXPECT_EQ(target[length], 7.0f);
    }
  }
}

TEST(AddAndCollect, AValueThatIsNotFiniteIsFoundAtEveryBorderOfABlock) {
  const size_t n = 5 * kValueChunk + 1;
  std::vector<float> values(n, 1.0f);
  for (const size_t threads : {1u, 2u, 4u}) {
    const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
    EXPECT_TRUE(all_finite_on_threads(values));
    for (size_t border = 0; border <= n; border += kValueChunk / 4) {
      for (const size_t at : {border - 1, border, border + 1}) {
        if (at >= n) continue;
        for (const float wrong : {kNan, kInfinity, -kInfinity}) {
          values[at] = wrong;
          EXPECT_FALSE(all_finite_on_threads(values)) << at;
        }
        values[at] = std::numeric_limits<float>::max();
      }
    }
  }
  EXPECT_TRUE(all_finite_on_threads({}));
  for (size_t length = 0; length < 70; ++length) {
    EXPECT_TRUE(all_finite_on_threads(std::span<const float>(values).first(length)));
  }
}

}  // namespace
}  // namespace millrace
