#include "kernels/magnitude/magnitude_scan.h"

#include <gtest/gtest.h>
#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/isa.h"
#include "tests/support/oracles/select_oracle.h"

namespace millrace {
namespace {

using testing::for_each_isa;
using testing::kPatterns;
using testing::Pattern;
using testing::values_of;
using Found = std::vector<std::pair<uint32_t, MagnitudeKey>>;

/// Returns the entries from a key on, by a loop.
Found entries_from(std::span<const float> values, MagnitudeKey key_min, uint32_t position = 0) {
  Found found;
  for (size_t i = 0; i < values.size(); ++i) {
    const MagnitudeKey key = magnitude_key(values[i]);
    if (key >= key_min) found.emplace_back(position + static_cast<uint32_t>(i), key);
  }
  return found;
}

MagnitudeKey largest_of(std::span<const float> values) {
  MagnitudeKey largest = 0;
  for (const float value : values) largest = std::max(largest, magnitude_key(value));
  return largest;
}

std::vector<uint32_t> positions_of(const Found& found) {
  std::vector<uint32_t> positions;
  for (const auto& [position, key] : found) positions.push_back(position);
  return positions;
}

std::vector<uint32_t> first_of(const Buffer<uint32_t>& written, size_t count) {
  return {written.begin(), written.begin() + static_cast<std::ptrdiff_t>(count)};
}

Found pairs_of(const Candidates& candidates) {
  Found found;
  for (size_t i = 0; i < candidates.positions.size(); ++i) {
    found.emplace_back(candidates.positions[i], candidates.keys[i]);
  }
  return found;
}

void expect_scans_as_reference(std::span<const float> values, MagnitudeKey key_min) {
  constexpr uint32_t kPosition = 7000;
  const Found expected = entries_from(values, key_min, kPosition);
  const MagnitudeKey largest = largest_of(values);
  Candidates both{IndexBuffer(values.size() + kScanSlack), Buffer<MagnitudeKey>(values.size() + kScanSlack)};
  const ScannedBlock scanned =
      scan_block(values.data(), values.size(), kPosition, key_min, both.positions.data(), both.keys.data());
  both.positions.resize(scanned.found);
  both.keys.resize(scanned.found);
  ASSERT_EQ(pairs_of(both), expected);
  ASSERT_EQ(scanned.largest, largest);
  IndexBuffer alone(values.size() + kScanSlack);
  const ScannedBlock of_positions = scan_positions(values.data(), values.size(), kPosition, key_min, alone.data());
  ASSERT_EQ(first_of(alone, of_positions.found), positions_of(expected));
  ASSERT_EQ(of_positions.largest, largest);
  const ScannedBlock counted = count_at_least(values, key_min);
  ASSERT_EQ(counted.found, expected.size());
  ASSERT_EQ(counted.largest, largest);
}

TEST(MagnitudeScan, ABlockIsTheReferenceAtEveryLengthKeyAndAlignment) {
  for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    for (const Pattern pattern : kPatterns) {
      for (const size_t n : {0, 1, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 1000, 4095, 4096}) {
        const auto values = values_of(pattern, n + n % 5, n);
        for (const MagnitudeKey key_min : {0u, 1u, 4u, magnitude_key(0.5f), magnitude_key(2.0f), kInfinityKey}) {
          expect_scans_as_reference(std::span(values).subspan(n % 5, n), key_min);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  });
}

TEST(MagnitudeScan, ABlocksLargestKeyTellsAValueThatIsNotFinite) {
  using Limits = std::numeric_limits<float>;
  for_each_isa([](const std::string& isa) {
    SCOPED_TRACE(isa);
    for (const size_t n : {1, 8, 37, 70}) {
      for (size_t at = 0; at < n; ++at) {
        for (const float bad : {Limits::quiet_NaN(), -Limits::quiet_NaN(), -Limits::infinity()}) {
          auto values = values_of(Pattern::kGaussian, n, 3);
          values[at] = bad;
          expect_scans_as_reference(values, kInfinityKey);
          if (::testing::Test::HasFatalFailure()) return;
          IndexBuffer positions(n + kScanSlack);
          ASSERT_GE(scan_positions(values.data(), n, 0, 1, positions.data()).largest, kInfinityKey) << at;
        }
      }
    }
  });
}

/// An array of threads' work, of which a share is large: entries of magnitude 2, the others of 1.
std::vector<float> with_share(double share) {
  const size_t n = (size_t{1} << 20) + 4099;
  std::vector<float> values(n);
  double due = 0;
  for (size_t i = 0; i < n; ++i) {
    due += share;
    values[i] = due >= 1 ? -2.0f : 1.0f;
    if (due >= 1) due -= 1;
  }
  return values;
}

/// Runs with that many threads, also on a machine of fewer processors.
template <typename Run>
void on_threads(size_t threads, const Run& run) {
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
  tbb::task_arena(static_cast<int>(threads)).execute(run);
}

constexpr double kShares[] = {0.0, 0.001, 0.1, 0.13, 0.4, 1.0};

TEST(MagnitudeScan, AnyNumberOfThreadsCollectsTheSameAtEveryDensity) {
  for (const double share : kShares) {
    const auto values = with_share(share);
    const MagnitudeKey key_min = magnitude_key(2.0f);
    const Found expected = entries_from(values, key_min);
    for (const size_t limit : {expected.size(), values.size()}) {
      for (const size_t threads : {1u, 2u, 4u}) {
        on_threads(threads, [&] {
          Candidates candidates;
          ASSERT_EQ(collect_at_least(values, key_min, limit, candidates), ScanEnd::kComplete);
          ASSERT_EQ(pairs_of(candidates), expected) << share << " on " << threads;
          IndexBuffer positions = {1, 2, 3};
          ASSERT_EQ(collect_positions(values, key_min, limit, positions), ScanEnd::kComplete);
          ASSERT_EQ(first_of(positions, positions.size()), positions_of(expected)) << share << " on " << threads;
        });
      }
    }
  }
}

TEST(MagnitudeScan, OneEntryOverTheLimitEndsTheCollection) {
  for (const double share : kShares) {
    const auto values = with_share(share);
    const MagnitudeKey key_min = magnitude_key(2.0f);
    const size_t count = entries_from(values, key_min).size();
    if (count == 0) continue;
    for (const size_t threads : {1u, 2u}) {
      on_threads(threads, [&] {
        IndexBuffer positions;
        Candidates candidates;
        ASSERT_EQ(collect_positions(values, key_min, count - 1, positions), ScanEnd::kOverLimit)
            << share << " on " << threads;
        ASSERT_EQ(collect_at_least(values, key_min, count - 1, candidates), ScanEnd::kOverLimit)
            << share << " on " << threads;
      });
    }
  }
}

TEST(MagnitudeScan, NanEndsTheCollectionAtEveryDensity) {
  for (const double share : kShares) {
    auto values = with_share(share);
    for (const size_t at : {size_t{0}, values.size() / 2, values.size() - 1}) {
      const float was = std::exchange(values[at], std::numeric_limits<float>::quiet_NaN());
      for (const size_t threads : {1u, 2u}) {
        on_threads(threads, [&] {
          Candidates candidates;
          IndexBuffer positions;
          ASSERT_EQ(collect_at_least(values, 1, values.size(), candidates), ScanEnd::kNonFinite);
          ASSERT_EQ(collect_positions(values, magnitude_key(2.0f), values.size(), positions), ScanEnd::kNonFinite);
        });
      }
      values[at] = was;
    }
  }
}

}  // namespace
}  // namespace millrace
