#include "protocol/job/step_sends.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/select/select.h"
#include "tests/support/oracles/select_oracle.h"

/// step_sends() against the selections themselves.
namespace millrace::protocol {
namespace {

using testing::kPatterns;
using testing::listed;
using testing::Pattern;
using testing::top_k_oracle;
using testing::values_of;
using testing::without_zeros;

constexpr uint64_t kWarmUpSteps = 4;

/// Every selection of residuals: at amounts below all and at all, with signs and warm-ups where it takes them.
std::vector<SelectionSpec> specs_of_all(uint64_t dimension) {
  std::vector<SelectionSpec> specs;
  for (const SelectionInfo& info : selections()) {
    if (info.use == SelectionUse::kUnbiased) continue;
    std::vector<SelectionSpec> amounts;
    for (const double density : {0.01, 0.3, 1.0}) {
      amounts.push_back({.selection = info.selection, .density = density, .threshold = 0.5, .bucket_size = 64});
    }
    for (const uint64_t k : {uint64_t{2}, dimension, dimension + 5}) {
      amounts.push_back({.selection = info.selection, .k = k, .threshold = 0.5, .bucket_size = 64});
    }
    for (SelectionSpec spec : amounts) {
      for (const bool signs : {false, true}) {
        for (const WarmUp warm_up : {WarmUp::kNone, WarmUp::kDense, WarmUp::kExponential}) {
          spec.alternate_signs = signs;
          spec.warm_up = warm_up;
          spec.warm_up_steps = warm_up == WarmUp::kNone ? 0 : kWarmUpSteps;
          if (validate(spec)) specs.push_back(spec);
        }
      }
    }
  }
  return specs;
}

std::string text_of_steps(const SelectionSpec& spec, uint64_t dimension, uint64_t step) {
  return std::string(selection_name(spec.selection)) + " density " + std::to_string(spec.density) + " k " +
         std::to_string(spec.k) + (spec.alternate_signs ? " signs " : " ") + std::string(warm_up_name(spec.warm_up)) +
         " n " + std::to_string(dimension) + " step " + std::to_string(step);
}

TEST(StepSends, StepDeclaredDense_SendsEverythingForAnyValuesAndEarlierSteps) {
  uint64_t uncompressed = 0, everything = 0, some = 0;
  for (const uint64_t dimension : {1u, 50u, 300u, 4096u, 4097u, 6000u}) {
    std::vector<std::vector<float>> values;
    std::vector<std::vector<uint32_t>> not_zero;
    for (uint64_t step = 0; step < 2 * kWarmUpSteps; ++step) {
      values.push_back(values_of(kPatterns[(step + dimension) % std::size(kPatterns)], dimension, step));
      not_zero.push_back(without_zeros(values[step], top_k_oracle(values[step], dimension)));
    }
    for (const SelectionSpec& spec : specs_of_all(dimension)) {
      const auto selector = std::move(*make_selector(spec, dimension));
      for (uint64_t step = 0; step < 2 * kWarmUpSteps; ++step) {
        SCOPED_TRACE(text_of_steps(spec, dimension, step));
        IndexBuffer positions;
        ASSERT_TRUE(selector->select({dimension, true, {}, values[step]}, {.step = step, .random = random_key(step)},
                                     positions));
        const StepSends sends = step_sends(spec, dimension, step);
        (sends == StepSends::kSome ? some : sends == StepSends::kEverything ? everything : uncompressed) += 1;
        if (sends == StepSends::kSome) continue;
        ASSERT_EQ(listed(positions), not_zero[step]);
      }
    }
  }
  EXPECT_GT(uncompressed, 500u);
  EXPECT_GT(everything, 500u);
  EXPECT_GT(some, 500u);
}

TEST(StepSends, IsSomeForAStepThatOmitsEntries) {
  constexpr uint64_t kDimension = 6000;
  const auto values = values_of(Pattern::kGaussian, kDimension, 3);
  for (const SelectionSpec& spec : specs_of_all(kDimension)) {
    const auto selector = std::move(*make_selector(spec, kDimension));
    for (uint64_t step = 0; step < 2 * kWarmUpSteps; ++step) {
      IndexBuffer positions;
      ASSERT_TRUE(
          selector->select({kDimension, true, {}, values}, {.step = step, .random = random_key(step)}, positions));
      if (positions.size() == kDimension) continue;
      EXPECT_EQ(step_sends(spec, kDimension, step), StepSends::kSome) << text_of_steps(spec, kDimension, step);
    }
  }
}

TEST(StepSends, DenseFirstStepsAndTensorsOutsideBySize_Uncompressed) {
  const auto sends = [](const char* text, uint64_t dimension, uint64_t step) {
    return step_sends(selection_from_text(text).value(), dimension, step);
  };
  for (const char* text : {"topk:0.01:dense=3", "threshold:2:dense=3", "threshold_reuse:0.01:dense=3",
                           "gaussian:0.1:dense=3", "bucket_topk:0.01:dense=3", "trimmed:0.01:signs:dense=3",
                           "random:0.1:dense=3", "gspar:0.1:dense=3", "by_size:0.01:signs:dense=3"}) {
    for (const uint64_t step : {0u, 2u}) EXPECT_EQ(sends(text, 10'000, step), StepSends::kUncompressed) << text;
    EXPECT_EQ(sends(text, 10'000, 3), StepSends::kSome) << text;
    EXPECT_TRUE(sends_uncompressed(selection_from_text(text).value(), 10'000)) << text;
  }
  for (const char* text :
       {"by_size:0.001", "by_size:0.001:signs", "by_size:0.001:signs:dense=3", "by_size:3:warm_up=9"}) {
    for (const uint64_t step : {0u, 2u, 3u, 1'000u}) {
      EXPECT_EQ(sends(text, 1, step), StepSends::kUncompressed) << text;
      EXPECT_EQ(sends(text, 4096, step), StepSends::kUncompressed) << text;
    }
    EXPECT_EQ(sends(text, 4097, 1'000), StepSends::kSome) << text;
  }
  // An amount of everything keeps the job's codec.
  EXPECT_EQ(sends("topk:1", 100, 0), StepSends::kEverything);
  EXPECT_EQ(sends("topk:200", 100, 0), StepSends::kEverything);
  EXPECT_EQ(sends("topk:200", 201, 0), StepSends::kSome);
  EXPECT_EQ(sends("topk:1:signs", 100, 0), StepSends::kSome);
  EXPECT_EQ(sends("bucket_topk:1:64", 100, 0), StepSends::kEverything);
  EXPECT_EQ(sends("none", 100, 0), StepSends::kEverything);
  EXPECT_FALSE(sends_uncompressed(selection_from_text("topk:0.1:warm_up=9").value(), 100));
}

// --- the choice by size
// -----------------------------------------------------------------------------------------------

TEST(ResolvedBySize, EachSizeHasThePapersSelection) {
  const auto at = [](const char* text, uint64_t dimension) {
    return resolved_by_size(selection_from_text(text).value(), dimension);
  };
  for (const uint64_t small : {1u, 64u, 4096u}) {
    EXPECT_EQ(at("by_size:0.001", small), SelectionSpec{});
    EXPECT_EQ(at("by_size:0.001:signs:dense=9", small), SelectionSpec{})
        << "neither signs nor a warm-up: it is not compressed";
  }
  EXPECT_EQ(at("by_size:0.001", 4097), selection_from_text("radix:0.001"));
  EXPECT_EQ(at("by_size:7:signs", 32'768), selection_from_text("radix:7:signs"));
  EXPECT_EQ(at("by_size:0.001:dense=9", 32'769), selection_from_text("trimmed:0.001:dense=9"));
  EXPECT_EQ(at("by_size:0.001:signs", 1 << 22), selection_from_text("trimmed:0.001:signs"));
  EXPECT_EQ(at("by_size:0.001", (1 << 22) + 1), selection_from_text("sampled:0.001:5"));
  EXPECT_EQ(at("by_size:0.001:warm_up=9", 50'000'000), selection_from_text("sampled:0.001:5:warm_up=9"));
  EXPECT_EQ(at("by_size:0.001:signs", (1 << 22) + 1), selection_from_text("binary_search:0.001:signs"));
  EXPECT_EQ(at("topk:0.001:signs", 100), selection_from_text("topk:0.001:signs")) << "any other stays as it is";
}

TEST(ResolvedBySize, SelectsTheSameEntriesAsBySize) {
  for (const uint64_t n : {64u, 4096u, 4097u, 32'768u, 32'769u, (1u << 22) + 1}) {
    std::vector<std::vector<float>> values;
    for (uint64_t step = 0; step < 3; ++step) values.push_back(values_of(Pattern::kGaussian, n, step));
    for (const char* text :
         {"by_size:0.01", "by_size:0.01:signs", "by_size:20:dense=1", "by_size:0.01:signs:warm_up=2"}) {
      const SelectionSpec spec = selection_from_text(text).value();
      const auto by_size = std::move(*make_selector(spec, n));
      const auto named = std::move(*make_selector(resolved_by_size(spec, n), n));
      for (uint64_t step = 0; step < values.size(); ++step) {
        IndexBuffer positions, wanted;
        ASSERT_TRUE(by_size->select({n, true, {}, values[step]}, {.step = step}, positions));
        ASSERT_TRUE(named->select({n, true, {}, values[step]}, {.step = step}, wanted));
        EXPECT_EQ(positions, wanted) << text << ' ' << n << ' ' << step;
      }
    }
  }
}

}  // namespace
}  // namespace millrace::protocol
