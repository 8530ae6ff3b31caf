#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

#include "tests/support/oracles/stream_oracle.h"
#include "tests/worker/peer/cases.h"
#include "tests/worker/peer/pump.h"
#include "worker/peer/collectives/reduce_scatter.h"

/// Split allgathers whose sums are quantized on their way to all ranks.
namespace millrace::peer::testing {
namespace {

constexpr uint64_t kDsarDimension = 6'000;

AllreduceSettings quantized(const char* codec) {
  AllreduceSettings settings;
  settings.dimension = kDsarDimension;
  settings.dense_quantizer = codec_from_text(codec).value();
  settings.wire.random = RandomKey::from(3);
  return settings;
}

std::vector<SharedStream> dsar_contributions(uint32_t size, uint64_t count) {
  std::vector<SharedStream> own;
  for (uint32_t rank = 0; rank < size; ++rank) {
    own.push_back(contribution_of(Spread::kUniform, rank, size, kDsarDimension, count, size));
  }
  return own;
}

constexpr AlgorithmId kQuantizing[]{AlgorithmId::kDsarSplitAllgather, AlgorithmId::kSsarSplitAllgather};

class QuantizedSums : public ::testing::TestWithParam<std::tuple<AlgorithmId, uint32_t>> {};
INSTANTIATE_TEST_SUITE_P(Ranks, QuantizedSums,
                         ::testing::Combine(::testing::ValuesIn(kQuantizing), ::testing::Values(1, 2, 3, 4, 5, 8)));

TEST_P(QuantizedSums, TheRoundingErrorOfASumIsReturnedToItsOwner) {
  const auto [algorithm, size] = GetParam();
  // Of many entries slices are dense, of few they are coded with their indices.
  for (const uint64_t count : {uint64_t{4'000}, uint64_t{40}}) {
    const AllreduceSettings settings = quantized("gap+qsgd4");
    PumpedAllreduce all(size, algorithm, settings, size);
    const std::vector<SharedStream> own = dsar_contributions(size, count);
    std::map<uint32_t, double> exact;
    for (const SharedStream& one : own) {
      for (size_t i = 0; i < one.view.count(); ++i) exact[one.view.indices[i]] += one.view.values[i];
    }
    const auto results = all.step(own);
    std::map<uint32_t, double> returned;
    const Slices slices(kDsarDimension, size);
    for (uint32_t rank = 0; rank < size; ++rank) {
      ASSERT_TRUE(results[rank].has_value()) << results[rank].error().message;
      ASSERT_TRUE(millrace::testing::same_bits(results[rank]->sum.view, results[0]->sum.view));
      const StreamView mine = results[rank]->returned.view();
      ASSERT_TRUE(validate(mine).has_value());
      EXPECT_GT(mine.count(), 0u);
      for (size_t i = 0; i < mine.count(); ++i) {
        ASSERT_GE(mine.indices[i], slices.begin(rank));
        ASSERT_LT(mine.indices[i], slices.end(rank));
        returned[mine.indices[i]] = mine.values[i];
      }
    }
    // The sums are exact; the subtraction from them is rounded once.
    EXPECT_EQ(results[0]->sum.view.dense, algorithm == AlgorithmId::kDsarSplitAllgather || count > kDsarDimension / 2);
    const Stream sum = to_dense(results[0]->sum.view);
    for (uint32_t index = 0; index < kDsarDimension; ++index) {
      const double error = returned.contains(index) ? returned[index] : 0;
      ASSERT_LE(std::abs(exact[index] - (sum.values[index] + error)), std::abs(error) * std::ldexp(1.0, -24))
          << "index " << index;
    }
  }
}

TEST(Ssar, AQuantizedSumKeepsItsSparseFormAndSendsFourBitsAValue) {
  constexpr uint32_t kSize = 4;
  constexpr uint64_t kCount = 100;
  const std::vector<SharedStream> own = dsar_contributions(kSize, kCount);
  const auto gathered_by_all = [&own](const std::optional<CodecSpec>& quantizer) {
    AllreduceSettings settings = quantized("raw+qsgd4");
    settings.dense_quantizer = quantizer;
    PumpedAllreduce all(kSize, AlgorithmId::kSsarSplitAllgather, settings, 1);
    for (const auto& result : all.step(own)) EXPECT_TRUE(result.has_value() && !result->sum.view.dense);
    return std::accumulate(all.pump.body_bytes.begin(), all.pump.body_bytes.end(), uint64_t{0});
  };
  const uint64_t count = kSize * kCount;  // hardly any index is in two
  const uint64_t lossless = gathered_by_all({}), four_bits = gathered_by_all(codec_from_text("raw+qsgd4").value());
  // Of 32 bits of a value 4 are left; and a container's 128 bytes at most for each slice that is sent.
  EXPECT_GE(lossless - four_bits, (kSize - 1) * (count * 9 / 10 * 28 / 8 - kSize * 128));
}

TEST(Dsar, QuantizedSlicesAreAnEighthOfDenseOnes) {
  constexpr uint32_t kSize = 4;
  const std::vector<SharedStream> own = dsar_contributions(kSize, 4'000);
  const auto sent_by_all = [&own](const AllreduceSettings& settings) {
    PumpedAllreduce all(kSize, AlgorithmId::kDsarSplitAllgather, settings, 1);
    for (const auto& result : all.step(own)) EXPECT_TRUE(result.has_value());
    return std::accumulate(all.pump.body_bytes.begin(), all.pump.body_bytes.end(), uint64_t{0});
  };
  AllreduceSettings lossless = quantized("gap+qsgd4");
  lossless.dense_quantizer.reset();
  const uint64_t gathered = (kSize - 1) * kDsarDimension * sizeof(float);
  const uint64_t saved = sent_by_all(lossless) - sent_by_all(quantized("gap+qsgd4"));
  // 4 bits a value, a scale of 32 bits for 512 of them, and a container's 64 bytes for each slice.
  EXPECT_GE(saved, gathered - gathered / 8 - gathered / 512 - (kSize - 1) * kSize * 128);
}

TEST(Dsar, LosslessSlicesTravelInTheSmallerForm) {
  constexpr uint32_t kSize = 4;
  AllreduceSettings settings;
  settings.dimension = kDsarDimension;
  PumpedAllreduce all(kSize, AlgorithmId::kDsarSplitAllgather, settings, 1);
  const std::vector<SharedStream> own = dsar_contributions(kSize, 20);
  const auto results = all.step(own);
  for (const auto& result : results) {
    ASSERT_TRUE(result.has_value());
    EXPECT_TRUE(result->sum.view.dense);
    EXPECT_EQ(result->returned.count(), 0u);
  }
  const uint64_t sent = std::accumulate(all.pump.body_bytes.begin(), all.pump.body_bytes.end(), uint64_t{0});
  EXPECT_LE(sent, 2 * (kSize - 1) * kSize * 20 * 8 + kSize * (kSize - 1) * 16);
}

TEST(SumQuantizer, IsRefusedForOperationsOtherThanSum) {
  for (const AlgorithmId algorithm : kQuantizing) {
    AllreduceSettings settings = quantized("gap+qsgd4");
    settings.op = max_op();
    const auto made = make_allreduce(algorithm, settings);
    ASSERT_FALSE(made.has_value());
    EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
    settings = quantized("gap+qsgd4");
    settings.dense_quantizer->qsgd_bits = 9;
    EXPECT_FALSE(make_allreduce(algorithm, settings).has_value());
  }
}

}  // namespace
}  // namespace millrace::peer::testing
