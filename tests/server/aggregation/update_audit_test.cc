#include "server/aggregation/update_audit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/random.h"
#include "kernels/reduce/audit_sums.h"
#include "kernels/reduce/reduce.h"
#include "tests/support/oracles/stream_oracle.h"

namespace millrace::server {
namespace {

using testing::stream_of;

constexpr uint64_t kUpdateAuditDimension = 300'000;  // several blocks

Stream update_audit_gradient(uint64_t seed, double density) {
  RandomSequence random(random_key(seed, 1));
  Stream stream = Stream::empty(kUpdateAuditDimension);
  for (uint32_t index = 0; index < kUpdateAuditDimension; ++index) {
    if (random.next_unit() >= density) continue;
    stream.indices.push_back(index);
    stream.values.push_back(static_cast<float>(random.next_normal()));
  }
  return stream;
}

struct Round {
  Round(size_t workers, double density) {
    for (size_t worker = 0; worker < workers; ++worker) contributions.push_back(update_audit_gradient(worker, density));
    sum = *sum_many(views());
  }
  std::vector<StreamView> views() const {
    std::vector<StreamView> all;
    for (const Stream& one : contributions) all.push_back(one.view());
    return all;
  }
  /// The entries of the sum from `edge` on.
  Stream cut(float edge) const { return entries_at_least(sum.view(), edge); }

  std::vector<Stream> contributions;
  Stream sum;
};

double carried_by_definition(const Stream& update, const Stream& contribution) {
  double sum = 0;
  for (size_t i = 0; i < contribution.values.size(); ++i) {
    const uint32_t index = contribution.dense ? static_cast<uint32_t>(i) : contribution.indices[i];
    const bool carries = update.dense || std::ranges::binary_search(update.indices, index);
    if (carries) sum += static_cast<double>(contribution.values[i]);
  }
  return sum;
}

TEST(UpdateAudit, CarriedIsTheSumOfEachContributionsCarriedEntries) {
  for (const double density : {0.0005, 0.02, 0.3}) {
    Round round(4, density);
    for (const bool dense : {false, true}) {
      if (dense) round.contributions[2] = to_dense(round.contributions[2].view());
      for (const float edge : {0.01f, 1.5f, 6.0f}) {
        const Stream update = round.cut(edge);
        const auto audit = audit_update(update.view(), update.values, round.views(), Extent::kItsIndices);
        ASSERT_EQ(audit.carried.size(), 4u);
        EXPECT_EQ(audit.imbalance, 0) << density;
        for (size_t at = 0; at < 4; ++at) {
          const double expected = carried_by_definition(update, round.contributions[at]);
          EXPECT_NEAR(audit.carried[at], expected, 1e-9 * (1 + std::abs(expected))) << density << ' ' << edge;
        }
      }
      const auto whole = audit_update(round.sum.view(), round.sum.values, round.views(), Extent::kEverything);
      EXPECT_EQ(whole.imbalance, 0);
      for (size_t at = 0; at < 4; ++at) {
        EXPECT_NEAR(whole.carried[at], mass_of(round.contributions[at].values).sum, 1e-9);
      }
    }
  }
}

TEST(UpdateAudit, AnEntryThatWasLostOrAddedTwiceShows) {
  for (const double density : {0.01, 1.0}) {
    const Round round(4, density);
    const size_t place = round.sum.count() / 2;
    for (const double off : {1.0, -1.0, 0.1}) {
      std::vector<float> sums(round.sum.values.begin(), round.sum.values.end());
      sums[place] += static_cast<float>(off);
      const auto audit = audit_update(round.sum.view(), sums, round.views(), Extent::kEverything);
      EXPECT_NEAR(audit.imbalance, std::abs(off), 2e-2) << density;
    }
  }
}

TEST(UpdateAudit, ContributionNotAdded_DetectedThoughTheUpdateHasItsIndices) {
  const Round round(4, 0.05);
  Round without = round;
  without.contributions.pop_back();
  const auto audit = audit_update(without.sum.view(), round.sum.values, without.views(), Extent::kItsIndices);
  EXPECT_GT(audit.imbalance, 1) << "sums have what no contribution has";
  const auto twice = [&] {
    auto views = round.views();
    views.push_back(round.contributions[0].view());
    return audit_update(round.sum.view(), round.sum.values, views, Extent::kEverything);
  }();
  EXPECT_GT(twice.imbalance, 1);
}

TEST(UpdateAudit, OnABinaryGridOneUnitShows) {
  const Stream a = stream_of(70'000, {{3, 0.5f}, {69'999, 2.0f}});
  const Stream b = stream_of(70'000, {{3, 0.25f}});
  const std::vector<StreamView> both = {a.view(), b.view()};
  const Stream sum = stream_of(70'000, {{3, 0.75f}, {69'999, 2.0f}});
  EXPECT_EQ(audit_update(sum.view(), sum.values, both, Extent::kEverything).imbalance, 0);
  const Stream off = stream_of(70'000, {{3, 0.75f}, {69'999, 2.0625f}});
  EXPECT_EQ(audit_update(off.view(), off.values, both, Extent::kEverything).imbalance, 0.0625);
  const Stream missing = stream_of(70'000, {{3, 0.75f}});
  EXPECT_EQ(audit_update(missing.view(), missing.values, both, Extent::kEverything).imbalance, 2);
  const auto cut = audit_update(missing.view(), missing.values, both, Extent::kItsIndices);
  EXPECT_EQ(cut.imbalance, 0) << "entries that are not in the update return to the residual";
  EXPECT_EQ(cut.carried, (std::vector<double>{0.5, 0.25}));
}

TEST(UpdateAudit, NothingIsCarriedOfNothing) {
  const Stream empty = Stream::empty(10);
  const std::vector<StreamView> one = {empty.view()};
  const auto audit = audit_update(empty.view(), {}, one, Extent::kEverything);
  EXPECT_EQ(audit.imbalance, 0);
  EXPECT_EQ(audit.carried, (std::vector<double>{0}));
}

}  // namespace
}  // namespace millrace::server
