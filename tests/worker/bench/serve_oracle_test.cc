#include "worker/bench/rounds/serve_oracle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "worker/bench/rounds/serve_input.h"

namespace millrace::bench {
namespace {

using ::testing::HasSubstr;

/// Three shards of two parts.
ServeJob small_job(uint32_t workers = 3) {
  ServeJob job;
  job.n = 60'000;
  job.pushed = 600;
  job.k = 600;
  job.seed = 1;
  job.workers = workers;
  job.threshold_period = 32;
  for (uint32_t part = 0; part < 6; ++part) job.parts.push_back({part / 2, part * 10'000, (part + 1) * 10'000});
  return job;
}

std::vector<double> shares_of(const ServeJob& job, uint32_t round) { return serve_shares(job, serve_sum(job, round)); }

std::vector<uint64_t> rounded(const std::vector<double>& shares) {
  std::vector<uint64_t> counts;
  for (const double share : shares) counts.push_back(static_cast<uint64_t>(std::llround(share)));
  return counts;
}

/// The largest of each range [begin, end), as many as its count says; all there is where that is less.
Stream largest(const Stream& sum, const std::vector<ServePart>& ranges, const std::vector<uint64_t>& counts) {
  std::vector<size_t> chosen;
  for (size_t range = 0; range < ranges.size(); ++range) {
    std::vector<size_t> order;
    for (size_t at = 0; at < sum.indices.size(); ++at) {
      const bool inside = sum.indices[at] >= ranges[range].begin && sum.indices[at] < ranges[range].end;
      if (inside && sum.values[at] != 0) order.push_back(at);
    }
    std::ranges::stable_sort(order,
                             [&](size_t a, size_t b) { return std::fabs(sum.values[a]) > std::fabs(sum.values[b]); });
    order.resize(std::min<size_t>(order.size(), counts[range]));
    chosen.insert(chosen.end(), order.begin(), order.end());
  }
  std::ranges::sort(chosen);
  Stream update = Stream::empty(sum.dimension);
  for (const size_t at : chosen) {
    update.indices.push_back(sum.indices[at]);
    update.values.push_back(sum.values[at]);
  }
  return update;
}

/// As the servers cut an exact step: every shard its share, whole by largest remainder.
Stream exact_update(const ServeJob& job, uint32_t round) {
  const Stream sum = serve_sum(job, round);
  const std::vector<double> shares = serve_shares(job, sum);
  std::vector<ServePart> shards;
  std::vector<uint64_t> counts;
  std::vector<std::pair<double, size_t>> remainders;
  for (size_t part = 0; part < shares.size(); part += 2) {
    const double share = shares[part] + shares[part + 1];
    shards.push_back({job.parts[part].shard, job.parts[part].begin, job.parts[part + 1].end});
    counts.push_back(static_cast<uint64_t>(share));
    remainders.emplace_back(static_cast<double>(counts.back()) - share, counts.size() - 1);
  }
  std::ranges::sort(remainders);
  const uint64_t given = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  const auto wanted = static_cast<uint64_t>(std::llround(std::accumulate(shares.begin(), shares.end(), 0.0)));
  for (uint64_t left = 0; left < wanted - given; ++left) ++counts[remainders[left].second];
  return largest(sum, shards, counts);
}

/// As they cut a step between, by the threshold that was agreed on in `agreed`.
Stream reuse_update(const ServeJob& job, uint32_t round, uint32_t agreed) {
  return largest(serve_sum(job, round), job.parts, rounded(shares_of(job, agreed)));
}

void erase(Stream& update, size_t first, size_t last) {
  update.indices.erase(update.indices.begin() + static_cast<ptrdiff_t>(first),
                       update.indices.begin() + static_cast<ptrdiff_t>(last));
  update.values.erase(update.values.begin() + static_cast<ptrdiff_t>(first),
                      update.values.begin() + static_cast<ptrdiff_t>(last));
}

void erase_range(Stream& update, uint64_t begin, uint64_t end) {
  const auto [first, last] = range_of(update.indices, begin, end);
  erase(update, first, last);
}

/// The smallest entry of the update's first part gives way to the largest that was left out there.
void swap_for_a_smaller_one(const ServeJob& job, uint32_t round, Stream& update) {
  const Stream sum = serve_sum(job, round);
  const std::vector<ServePart> first_part = {job.parts[0]};
  const size_t count = range_of(update.indices, job.parts[0].begin, job.parts[0].end).second;
  const Stream most = largest(sum, first_part, {count + 1});
  const Stream fewer = largest(sum, first_part, {count - 1});
  erase_range(update, job.parts[0].begin, job.parts[0].end);
  Stream swapped = Stream::empty(job.n);
  for (size_t at = 0; at < most.indices.size(); ++at) {
    const uint32_t index = most.indices[at];
    const bool was_last = !std::ranges::binary_search(fewer.indices, index) &&
                          std::ranges::binary_search(largest(sum, first_part, {count}).indices, index);
    if (was_last) continue;
    swapped.indices.push_back(index);
    swapped.values.push_back(most.values[at]);
  }
  swapped.indices.insert(swapped.indices.end(), update.indices.begin(), update.indices.end());
  swapped.values.insert(swapped.values.end(), update.values.begin(), update.values.end());
  update = std::move(swapped);
}

std::string judged(const ServeJob& job, uint32_t round, const Stream& update) {
  const ServeVerdict verdict = judge_update(job, round, update.view());
  EXPECT_EQ(verdict.agrees, verdict.reason.empty());
  return verdict.reason;
}

TEST(ServeSum, IsTheSumInWorkerOrderAndSharesAddUpToK) {
  const ServeJob job = small_job();
  std::map<uint32_t, float> naive;
  for (uint32_t worker = 0; worker < job.workers; ++worker) {
    const Stream input = serve_input(job.n, job.pushed, job.seed, worker, 4);
    for (size_t at = 0; at < input.indices.size(); ++at) naive[input.indices[at]] += input.values[at];
  }
  const Stream sum = serve_sum(job, 4);
  ASSERT_LT(sum.count(), 1800u) << "some index is pushed twice";
  ASSERT_EQ(sum.count(), naive.size());
  size_t at = 0;
  for (const auto& [index, value] : naive) {
    ASSERT_EQ(sum.indices[at], index);
    ASSERT_EQ(sum.values[at++], value);
  }
  const std::vector<double> shares = shares_of(job, 4);
  EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), 600, 1e-9);
}

TEST(JudgeExactStep, TheCutByTheSharesAgreesAndNothingElse) {
  const ServeJob job = small_job();
  const Stream update = exact_update(job, 32);
  ASSERT_EQ(update.count(), 600u);
  EXPECT_EQ(judged(job, 32, update), "");

  Stream wrong = update;
  wrong.values[17] = std::nextafter(wrong.values[17], 9.0f);
  EXPECT_THAT(judged(job, 32, wrong), HasSubstr("the sum is"));
  wrong = update;
  erase(wrong, 100, 101);
  EXPECT_THAT(judged(job, 32, wrong), HasSubstr("599 entries, not 600"));
  wrong = update;
  erase_range(wrong, 20'000, 40'000);
  EXPECT_THAT(judged(job, 32, wrong), HasSubstr("entries, not 600"));
  wrong = update;
  swap_for_a_smaller_one(job, 32, wrong);
  ASSERT_EQ(wrong.count(), 600u);
  EXPECT_THAT(judged(job, 32, wrong), HasSubstr("shard 0 carries index"));
  wrong = update;
  wrong.indices.front() = 0;  // before the first of all
  ASSERT_NE(update.indices.front(), 0u);
  EXPECT_THAT(judged(job, 32, wrong), HasSubstr("pushed by no worker"));
  // Two entries too many on one shard, two too few on another: the size alone does not show it.
  const Stream sum = serve_sum(job, 32);
  std::vector<ServePart> shards = {{0, 0, 20'000}, {1, 20'000, 40'000}, {2, 40'000, 60'000}};
  std::vector<uint64_t> counts;
  for (const ServePart& shard : shards) {
    const auto [first, last] = range_of(update.indices, shard.begin, shard.end);
    counts.push_back(last - first);
  }
  EXPECT_EQ(judged(job, 32, largest(sum, shards, counts)), "");
  counts[0] += 2;
  counts[2] -= 2;
  EXPECT_THAT(judged(job, 32, largest(sum, shards, counts)), HasSubstr("its share is"));
}

TEST(JudgeReuseStep, SharesOfAnEarlierRoundAgreeForEverySeed) {
  uint32_t off_by_more = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    ServeJob job = small_job();
    job.seed = seed;
    const Stream update = reuse_update(job, 5, 0);
    EXPECT_EQ(judged(job, 5, update), "") << seed;
    for (uint64_t begin = 0; begin < job.n; begin += 20'000) {
      const auto [first, last] = range_of(update.indices, begin, begin + 20'000);
      off_by_more += std::fabs(static_cast<double>(last - first) - 200.0) > 0.02 * 200 ? 1 : 0;
    }
    EXPECT_EQ(judged(job, 10, reuse_update(job, 10, 8)), "") << seed;
    EXPECT_EQ(judged(job, 10, reuse_update(job, 10, 0)), "") << seed;
  }
  EXPECT_GE(off_by_more, 30u) << "a third of k, give or take 2 %, is what chance alone exceeds";
}

TEST(JudgeReuseStep, EachShardMayHaveAnotherAgreement) {
  const ServeJob job = small_job();
  std::vector<uint64_t> counts = rounded(shares_of(job, 0));
  const std::vector<uint64_t> newer = rounded(shares_of(job, 8));
  counts[4] = newer[4];
  counts[5] = newer[5];
  EXPECT_EQ(judged(job, 8, largest(serve_sum(job, 8), job.parts, counts)), "");
}

TEST(JudgeReuseStep, WhatNoAgreementExplainsIsRefused) {
  const ServeJob job = small_job();
  const Stream sum = serve_sum(job, 5);
  const std::vector<uint64_t> counts = rounded(shares_of(job, 0));
  const Stream update = largest(sum, job.parts, counts);
  ASSERT_EQ(judged(job, 5, update), "");

  Stream wrong = update;
  wrong.values.back() = -wrong.values.back();
  EXPECT_THAT(judged(job, 5, wrong), HasSubstr("the sum is"));
  wrong = update;
  swap_for_a_smaller_one(job, 5, wrong);
  EXPECT_THAT(judged(job, 5, wrong), HasSubstr("part 0 carries index"));
  for (uint64_t begin = 0; begin < job.n; begin += 20'000) {
    wrong = update;
    erase_range(wrong, begin, begin + 20'000);
    EXPECT_THAT(judged(job, 5, wrong), HasSubstr("carries 0 entries")) << begin;
  }
  wrong = update;
  erase_range(wrong, 10'000, 20'000);
  EXPECT_THAT(judged(job, 5, wrong), HasSubstr("shard 0")) << "one part";
  // 2 % of a shard's 200 entries is 4.
  for (const uint64_t count : {counts[3] - 12, counts[3] + 12}) {
    std::vector<uint64_t> off = counts;
    off[3] = count;
    EXPECT_THAT(judged(job, 5, largest(sum, job.parts, off)), HasSubstr("shard 1 carries")) << count;
  }
  // The parts of a shard may trade twice the band, not a half of it.
  std::vector<uint64_t> traded = counts;
  traded[0] += 50;
  traded[1] -= 50;
  EXPECT_THAT(judged(job, 5, largest(sum, job.parts, traded)), HasSubstr("shard 0 carries"));
  // Step 5 knows nothing of step 8's agreement.
  std::vector<uint64_t> later = rounded(shares_of(job, 8));
  EXPECT_THAT(judged(job, 5, largest(sum, job.parts, later)), HasSubstr("carries"));
}

TEST(JudgeReuseStep, WhereNothingIsCutEveryRoundMayBeTheAgreement) {
  const ServeJob job = small_job(1);
  // One worker pushes as much as an update may have: its sum of round 6 cut by the counts of round 5.
  const Stream sum = serve_sum(job, 6);
  const std::vector<uint64_t> counts = rounded(shares_of(job, 5));
  const Stream update = largest(sum, job.parts, counts);
  ASSERT_LT(update.count(), 600u) << "a part that has less than its share cannot have it";
  EXPECT_EQ(judged(job, 6, update), "");
  Stream wrong = update;
  erase_range(wrong, 0, 20'000);
  EXPECT_THAT(judged(job, 6, wrong), HasSubstr("shard 0 carries 0 entries"));
}

ServeJob quantized_job(uint32_t workers = 3) {
  ServeJob job = small_job(workers);
  job.codec.value = ValueCodecId::kQsgd;
  job.error_max = 0.4;
  return job;
}

/// Returns the update as a quantizer changes it on its way down.
Stream moved(Stream update) {
  for (size_t at = 0; at < update.values.size(); ++at) update.values[at] += at % 2 == 0 ? 0.2f : -0.2f;
  return update;
}

TEST(JudgeQuantized, OrderAndCountsAreThoseOfTheDecodedContributions) {
  const ServeJob job = quantized_job();
  ASSERT_NE(serve_sum(job, 5).values, serve_sum(small_job(), 5).values);
  EXPECT_EQ(judged(job, 32, moved(exact_update(job, 32))), "");
  EXPECT_EQ(judged(job, 5, moved(reuse_update(job, 5, 0))), "");
  // The largest before the codec are others.
  EXPECT_THAT(judged(job, 5, reuse_update(small_job(), 5, 0)), HasSubstr("carries"));

  const Stream update = moved(reuse_update(job, 5, 0));
  Stream wrong = update;
  erase_range(wrong, 40'000, 60'000);
  EXPECT_THAT(judged(job, 5, wrong), HasSubstr("shard 2 carries 0 entries"));
  wrong = update;
  for (float& value : wrong.values) value *= 2;
  EXPECT_THAT(judged(job, 5, wrong), HasSubstr("relative error")) << "added twice";
  wrong = update;
  ASSERT_NE(wrong.indices.front(), 0u);
  wrong.indices.front() = 0;
  EXPECT_THAT(judged(job, 5, wrong), HasSubstr("pushed by no worker"));
}

TEST(JudgeQuantized, AValueThatAQuantizerMadeZeroIsNoEntry) {
  const ServeJob job = quantized_job(1);
  const Stream update = exact_update(job, 0);
  ASSERT_LT(update.count(), 550u);
  EXPECT_EQ(judged(job, 0, moved(update)), "");
  const Stream sum = serve_sum(job, 0);
  const auto zero = std::ranges::find(sum.values, 0.0f);
  ASSERT_NE(zero, sum.values.end());
  const uint32_t index = sum.indices[static_cast<size_t>(zero - sum.values.begin())];
  Stream wrong = update;
  const auto place = std::ranges::lower_bound(wrong.indices, index) - wrong.indices.begin();
  wrong.indices.insert(wrong.indices.begin() + place, index);
  wrong.values.insert(wrong.values.begin() + place, 0.1f);
  EXPECT_THAT(judged(job, 0, wrong), HasSubstr("the sum is 0"));
}

}  // namespace
}  // namespace millrace::bench
