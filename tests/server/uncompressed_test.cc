#include <tuple>
#include <utility>
#include <vector>

#include "kernels/base/random.h"
#include "tests/server/scripted_cluster.h"

/// Steps that workers send uncompressed return whole and unchanged: no re-selection, no code that changes a value.
namespace millrace::server {
namespace {

using protocol::Update;

constexpr uint64_t kUncompressedDimension = 20'000;
constexpr uint64_t kUncompressedK = 40;
constexpr uint64_t kUncompressedDenseSteps = 3;

protocol::JobSpec job_of(const char* select, const char* codec_down, uint32_t threshold_period) {
  protocol::JobSpec spec = ScriptedCluster::small_job(2, kUncompressedDimension);
  spec.parts_per_shard = 2;
  spec.select = selection_from_text(select).value();
  spec.reselect = {.reselect = protocol::Reselect::kTopK, .k = kUncompressedK, .threshold_period = threshold_period};
  spec.codec_up = codec_from_text("raw+raw").value();
  spec.codec_down = codec_from_text(codec_down).value();
  spec.audit = true;
  EXPECT_TRUE(protocol::validate(spec));
  return spec;
}

std::vector<float> gradient(uint32_t worker, uint64_t step) {
  RandomSequence random(random_key(5, worker, step));
  std::vector<float> values(kUncompressedDimension);
  for (float& value : values) value = static_cast<float>(static_cast<int64_t>(random.next_below(2001)) - 1000) / 64;
  return values;
}

std::vector<float> sum_of_both(uint64_t step) {
  std::vector<float> sum = gradient(0, step);
  const std::vector<float> other = gradient(1, step);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
  return sum;
}

class Uncompressed : public ::testing::TestWithParam<std::tuple<const char*, uint32_t>> {};

TEST_P(Uncompressed, DenseFirstStepsAreWholeAndExactAndTheStepsAfterThemAreCut) {
  const auto& [codec_down, period] = GetParam();
  ScriptedCluster cluster(job_of("topk:0.01:dense=3", codec_down, period), 2);
  cluster.join_all();
  for (uint64_t step = 0; step < kUncompressedDenseSteps + 4; ++step) {
    SCOPED_TRACE(step);
    for (const uint32_t worker : {0u, 1u}) cluster.push(worker, step, gradient(worker, step));
    std::vector<Update> updates;
    for (const uint32_t shard : {0u, 1u}) {
      for (const Update& update : cluster.take_of<Update>(1, shard)) updates.push_back(update);
    }
    ASSERT_EQ(updates.size(), 4u);
    const bool dense = step < kUncompressedDenseSteps;
    for (const Update& update : updates) EXPECT_EQ(update.whole_sum, dense);
    const auto got = cluster.gather(0, step);
    EXPECT_EQ(got.parts, 4u);
    if (dense) {
      EXPECT_EQ(got.dense, sum_of_both(step));
    } else {
      EXPECT_LE(got.entries,
                kUncompressedK + kUncompressedK / 20);  // a reused threshold holds a shard's share within 2 %
      EXPECT_GE(got.entries, kUncompressedK - kUncompressedK / 20);
    }
    for (const uint32_t worker : {0u, 1u}) cluster.ack(worker, step + 1);
  }
  EXPECT_EQ(cluster.counted(Metric::kExchangeFallbacks), 0);
}

INSTANTIATE_TEST_SUITE_P(Jobs, Uncompressed,
                         ::testing::Combine(::testing::Values("gap+raw", "gap+qsgd4", "auto+qsgd8", "auto"),
                                            ::testing::Values(1u, 4u)));

TEST(UncompressedTensors, ATensorThatBySizeSkipsIsSummedExactlyInEveryStep) {
  protocol::JobSpec spec = job_of("by_size:0.001", "bloom_p0:0.1+qsgd2", 1);
  spec.tensors[0].dimension = 4'000;
  ScriptedCluster cluster(spec, 2);
  cluster.join_all();
  const auto first = [](std::vector<float> values) {
    values.resize(4'000);
    return values;
  };
  for (uint64_t step = 0; step < 3; ++step) {
    for (const uint32_t worker : {0u, 1u}) cluster.push(worker, step, first(gradient(worker, step)));
    EXPECT_EQ(cluster.gather(0, step).dense, first(sum_of_both(step)));
    for (const uint32_t worker : {0u, 1u}) cluster.ack(worker, step + 1);
  }
}

TEST(UncompressedTensors, AContributionMayUseOtherCodecsThanItsJob) {
  protocol::JobSpec spec = ScriptedCluster::small_job(2);
  spec.codec_up = codec_from_text("raw+sign_mean").value();
  ScriptedCluster cluster(spec);
  cluster.join_all();
  const std::vector<float> values(64, 1.5F);
  Stream dense{64, true, {}, {}};
  dense.values.assign(values.begin(), values.end());
  for (const uint32_t worker : {0u, 1u}) {
    const auto coded =
        encode_container(std::as_const(dense).view(), {}, EncodeOptions{codec_from_text("gap+raw").value(), {}, 0});
    ASSERT_TRUE(coded);
    cluster.send(ScriptedCluster::peer(worker), 0,
                 cluster.contribution(worker, 0, 0, SharedBytes::from(ByteBuffer(coded->bytes))));
  }
  EXPECT_EQ(cluster.gather(0, 0).dense, std::vector<float>(64, 3.0F));
}

}  // namespace
}  // namespace millrace::server
