#include "server/aggregation/tasks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/reduce/reduce.h"
#include "protocol/container/container.h"
#include "protocol/container/history_payload.h"
#include "server/process/task_pool.h"
#include "server/store/store_task.h"

namespace millrace::server {
namespace {

constexpr uint64_t kTasksDimension = 40'000;

Stream some_sum() {
  RandomSequence random(random_key(7));
  Stream sum = Stream::empty(kTasksDimension);
  for (uint32_t index = 3; index < kTasksDimension; index += 1 + static_cast<uint32_t>(random.next_below(20))) {
    sum.indices.push_back(index);
    sum.values.push_back(static_cast<float>(random.next_normal()));
  }
  return sum;
}

/// Sum of |sum - decoded| over the entries of the update, by looking every one up.
double error_by_lookup(const Stream& sum, const Stream& decoded) {
  double error = 0;
  for (size_t at = 0; at < decoded.indices.size(); ++at) {
    const auto found = std::ranges::lower_bound(sum.indices, decoded.indices[at]);
    const bool held = found != sum.indices.end() && *found == decoded.indices[at];
    const float value = held ? sum.values[static_cast<size_t>(found - sum.indices.begin())] : 0.0f;
    error += std::fabs(static_cast<double>(value) - static_cast<double>(decoded.values[at]));
  }
  return error;
}

EncodePlan plan_with(const char* codec) {
  EncodePlan plan;
  plan.codec = codec_from_text(codec).value();
  plan.random = random_key(5);
  plan.threshold = PartThreshold{MagnitudeHistogram::bin_of(1.0f), 10};
  return plan;
}

TEST(EncodeUpdate, ErrorOfALossyCodeIsTheChangeOfTheCarriedEntries) {
  const Stream sum = some_sum();
  for (const char* codec : {"gap+qsgd4", "raw+qsgd8", "bloom:0.01+qsgd4", "bloom:0.01+raw"}) {
    const auto update = encode_update(SharedStream::from(Stream(sum)), plan_with(codec));
    ASSERT_TRUE(update) << codec << ": " << update.error().message;
    const auto decoded = read_container(update->container.bytes, {});
    ASSERT_TRUE(decoded) << codec;
    ASSERT_EQ(update->entries, decoded->count()) << codec;
    ASSERT_LT(decoded->count(), sum.count()) << codec;
    const double expected = error_by_lookup(sum, *decoded);
    EXPECT_NEAR(update->codec_error, expected, 1e-9 * expected) << codec;
  }
}

TEST(EncodeUpdate, TheLargestEntriesAreSelectedTiesByLowerIndex) {
  Stream sum = some_sum();
  for (size_t at = 0; at < sum.values.size(); at += 5) sum.values[at] = at % 2 == 0 ? 1.5f : -1.5f;
  std::vector<size_t> order(sum.values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](size_t at) { return -std::fabs(sum.values[at]); });
  EncodePlan plan = plan_with("gap+raw");
  plan.threshold.reset();
  for (const size_t count : {size_t{0}, size_t{1}, size_t{400}, sum.values.size(), 2 * sum.values.size()}) {
    plan.largest = count;
    const auto update = encode_update(SharedStream::from(Stream(sum)), plan);
    ASSERT_TRUE(update) << count;
    const auto decoded = read_container(update->container.bytes, {});
    ASSERT_TRUE(decoded) << count;
    std::vector<size_t> expected(order.begin(), order.begin() + static_cast<ptrdiff_t>(std::min(count, order.size())));
    std::ranges::sort(expected);
    const Stream sparse = to_sparse(decoded->view());
    ASSERT_EQ(sparse.indices.size(), expected.size());
    for (size_t at = 0; at < expected.size(); ++at) ASSERT_EQ(sparse.indices[at], sum.indices[expected[at]]) << count;
  }
}

TEST(EncodeUpdate, ErrorOfAnExactCodeIsNothing) {
  const auto update = encode_update(SharedStream::from(some_sum()), plan_with("gap+raw"));
  ASSERT_TRUE(update);
  EXPECT_EQ(update->codec_error, 0);
}

TEST(EncodeUpdate, ErrorOfADenseSumIsThatOfEveryEntry) {
  RandomSequence random(random_key(8));
  Stream sum{1'003, true, {}, {}};
  for (uint64_t index = 0; index < sum.dimension; ++index)
    sum.values.push_back(static_cast<float>(random.next_normal()));
  EncodePlan plan = plan_with("gap+qsgd4");
  plan.threshold.reset();
  const auto update = encode_update(SharedStream::from(Stream(sum)), plan);
  ASSERT_TRUE(update);
  const auto decoded = read_container(update->container.bytes, {});
  ASSERT_TRUE(decoded && decoded->dense);
  double expected = 0;
  for (size_t at = 0; at < sum.values.size(); ++at) {
    expected += std::fabs(static_cast<double>(sum.values[at]) - static_cast<double>(decoded->values[at]));
  }
  ASSERT_GT(expected, 0);
  EXPECT_NEAR(update->codec_error, expected, 1e-9 * expected);
}

uint64_t decode_cost_ns(const char* codec, uint64_t dimension) {
  Stream stream = Stream::empty(dimension);
  stream.indices = {7};
  stream.values = {1};
  auto coded = encode_container(stream.view(), {}, EncodeOptions{codec_from_text(codec).value(), {}, 0});
  EXPECT_TRUE(coded) << coded.error().message;
  EXPECT_LT(coded->bytes.size(), 1'000u) << codec;
  DecodeTask::Input input;
  input.payload = SharedBytes::from(std::move(coded->bytes));
  input.dimension = dimension;
  return DecodeTask(std::move(input)).cost_ns();
}

TEST(DecodeTask, ATinyFilterCostsTheScanOfItsDimension) {
  constexpr uint64_t kIndices = uint64_t{1} << 22;
  for (const char* codec : {"bloom_p0:1e-8+raw", "bloom_p1:1e-8+raw", "bloom_p2:1e-8+raw", "bloom_blocked:1e-8+raw"}) {
    EXPECT_GE(decode_cost_ns(codec, kIndices), kIndices) << codec;
  }
  EXPECT_LT(decode_cost_ns("gap+raw", kIndices), 1'000u);
  EXPECT_LT(decode_cost_ns("raw+raw", kIndices), 1'000u);
}

/// A sparse payload of these entries with all values 1, or a dense one of the dimension.
SharedBytes payload_of(const char* codec, const IndexBuffer& indices, uint64_t dimension) {
  Stream stream = Stream::empty(dimension);
  stream.dense = indices.empty();
  stream.indices = indices;
  stream.values.assign(indices.empty() ? dimension : indices.size(), 1.0F);
  auto coded = encode_container(stream.view(), {}, EncodeOptions{codec_from_text(codec).value(), {}, 0});
  EXPECT_TRUE(coded) << codec << ": " << coded.error().message;
  return SharedBytes::from(std::move(coded->bytes));
}

IndexBuffer first_indices(uint32_t count) {
  IndexBuffer indices(count);
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

TEST(DecodeTask, ItsCostFollowsTheEntriesOfASlowCode) {
  constexpr uint32_t kEntries = 1u << 22;
  const auto cost = [](const SharedBytes& payload) { return decode_cost_of(payload).ns; };
  const SharedBytes run = payload_of("run_length+sign_mean", first_indices(kEntries), kEntries);
  EXPECT_LT(run.bytes.size(), 100u);
  EXPECT_GT(cost(run), TaskPool::kLongNs);
  EXPECT_EQ(decode_cost_of(run).entries, kEntries);
  EXPECT_GT(cost(payload_of("raw+qsgd_elias4", {}, kEntries)), TaskPool::kLongNs);
  EXPECT_GE(cost(payload_of("raw+sign_mean", {}, kEntries)), kEntries) << "the memory that one mean fills";
  for (const char* codec : {"raw+raw", "raw+f16", "raw+bf16"}) {
    const SharedBytes dense = payload_of(codec, {}, kEntries);
    EXPECT_EQ(cost(dense), dense.bytes.size() / 4) << codec;
  }
  const SharedBytes gap = payload_of("gap+raw", first_indices(1'000), kTasksDimension);
  EXPECT_EQ(cost(gap), gap.bytes.size() / 4);
  MergeTask::Input merged;
  merged.payloads = {run, run};
  EXPECT_GT(MergeTask(std::move(merged)).cost_ns(), 2 * TaskPool::kLongNs);
  const StoreTask applied({.optimizer = {}, .arrays = std::make_shared<StoreArrays>(), .work = StoreTask::Apply{run}});
  EXPECT_GT(applied.cost_ns(), TaskPool::kLongNs);
}

TEST(ContributionMemory, IsTheLargestOfBeforeAndAfterTheDecoding) {
  const auto of = [](const SharedBytes& payload, uint64_t dimension) {
    return contribution_memory(payload, dimension, CodecSpec{}).value();
  };
  const IndexBuffer indices = first_indices(1'000);
  const SharedBytes coded = payload_of("gap+qsgd4", indices, kTasksDimension);
  EXPECT_EQ(of(coded, kTasksDimension).asked_bytes, coded.bytes.size() + 8'000);
  EXPECT_EQ(of(coded, kTasksDimension).charged_bytes, 8'000u);
  const SharedBytes dense = payload_of("raw+onebit", {}, kTasksDimension);
  EXPECT_EQ(of(dense, kTasksDimension).charged_bytes, 4 * kTasksDimension);
  const SharedBytes copied = payload_of("raw+raw", indices, kTasksDimension);
  ASSERT_LT(copied.bytes.size(), kViewBytesMin);
  EXPECT_EQ(of(copied, kTasksDimension).asked_bytes, copied.bytes.size() + 8'000);
  EXPECT_EQ(of(copied, kTasksDimension).charged_bytes, copied.bytes.size());
  for (const IndexBuffer& entries : {IndexBuffer{}, first_indices(3'000)}) {
    const SharedBytes in_place = payload_of("raw+raw", entries, kTasksDimension);
    EXPECT_EQ(of(in_place, kTasksDimension).asked_bytes, in_place.bytes.size());
    EXPECT_EQ(of(in_place, kTasksDimension).charged_bytes, in_place.bytes.size());
  }
}

TEST(ContributionMemory, OfAShortenedOneHasTheRestoredContainer) {
  constexpr uint64_t kDimension = 1u << 20;
  IndexHistory history(kDimension);
  const IndexBuffer indices = first_indices(3);
  history.advance(indices);
  const SharedBytes plain = payload_of("bitmap+raw", indices, kDimension);
  const SharedBytes shortened = SharedBytes::from(shorten_by_history(plain.bytes, indices, history).value());
  EXPECT_LT(shortened.bytes.size(), 200u);
  const ContributionMemory memory = contribution_memory(shortened, kDimension, CodecSpec{}).value();
  EXPECT_EQ(memory.asked_bytes, plain.bytes.size());
  EXPECT_EQ(memory.charged_bytes, plain.bytes.size());
}

TEST(ReduceTask, TheSumOfOneContributionIsThatContribution) {
  Stream full = Stream::empty(8);
  for (uint32_t index = 0; index < 8; ++index) {
    full.indices.push_back(index);
    full.values.push_back(index == 3 ? -0.0F : static_cast<float>(index));
  }
  // As many entries as the quick sum takes, and few enough to stay sparse.
  Stream sparse = Stream::empty(100'000);
  for (uint32_t index = 0; index < 1'000; ++index) {
    sparse.indices.push_back(7 * index);
    sparse.values.push_back(index == 3 ? -0.0F : static_cast<float>(index));
  }
  const Stream dense = to_dense(full.view());
  for (const Stream* one : std::initializer_list<const Stream*>{&sparse, &full, &dense}) {
    const std::vector<StreamView> views = {one->view()};
    const Stream expected = sum_many(views).value();
    ReduceTask::Input input;
    input.contributions = {SharedStream::from(Stream(*one))};
    ReduceTask task(std::move(input));
    task.run();
    ASSERT_TRUE(task.result());
    const StreamView& sum = task.result()->sum.view;
    EXPECT_EQ(sum.dimension, expected.dimension);
    EXPECT_EQ(sum.dense, expected.dense);
    EXPECT_TRUE(std::ranges::equal(sum.indices, expected.indices));
    EXPECT_TRUE(std::ranges::equal(
        sum.values, expected.values, {}, [](float x) { return std::bit_cast<uint32_t>(x); },
        [](float x) { return std::bit_cast<uint32_t>(x); }));
  }
}

}  // namespace
}  // namespace millrace::server
