#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/magnitude/magnitude_scan.h"
#include "kernels/select/registry.h"
#include "kernels/select/select.h"
#include "kernels/select/sign_filter.h"
#include "kernels/select/warm_up.h"
#include "tests/support/isa.h"
#include "tests/support/oracles/select_oracle.h"

/// What depends on the step: alternating signs and warm-up.
namespace millrace {
namespace {

using testing::for_each_isa;
using testing::kPatterns;
using testing::listed;
using testing::Pattern;
using testing::top_k_oracle;
using testing::values_of;
using testing::without_zeros;

StreamView schedule_dense_view(const std::vector<float>& values) { return {values.size(), true, {}, values}; }

std::unique_ptr<Selector> schedule_selector_for(const SelectionSpec& spec, uint64_t dimension) {
  auto made = make_selector(spec, dimension);
  EXPECT_TRUE(made.has_value()) << made.error().message;
  return std::move(*made);
}

std::vector<uint32_t> schedule_selected_by(Selector& selector, const std::vector<float>& values, uint64_t step) {
  IndexBuffer positions = {7};
  const auto done = selector.select(schedule_dense_view(values), {.step = step}, positions);
  EXPECT_TRUE(done.has_value()) << done.error().message;
  return listed(positions);
}

SelectionSpec example_of(const SelectionInfo& info) {
  return {.selection = info.selection, .density = 0.05, .threshold = 0.5, .variance = 1};
}

std::vector<float> of_one_sign(std::vector<float> values, uint64_t step) {
  for (float& value : values) {
    if (step % 2 == 0 ? value < 0 : value > 0) value = 0;
  }
  return values;
}

// --- alternating signs
// ------------------------------------------------------------------------------------------------

TEST(SelectSchedule, KeepSignKeepsOneSignAndNonFiniteValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for_each_isa([&](const std::string& isa) {
    SCOPED_TRACE(isa);
    for (size_t n = 0; n < 70; ++n) {
      auto values = values_of(Pattern::kDenormal, n, n);
      if (n > 5) values[n - 1] = -infinity, values[n / 2] = infinity, values[n / 3] = nan, values[0] = -nan;
      for (const Sign sign : {Sign::kPositive, Sign::kNegative}) {
        std::vector<float> filtered(n, 9.0F);
        keep_sign(values, sign, filtered);
        for (size_t i = 0; i < n; ++i) {
          const bool kept = !std::isfinite(values[i]) || (sign == Sign::kPositive ? values[i] > 0 : values[i] < 0);
          if (std::isnan(values[i])) {
            ASSERT_TRUE(std::isnan(filtered[i]));
          } else {
            ASSERT_EQ(filtered[i], kept ? values[i] : 0) << i;
          }
        }
      }
    }
  });
}

TEST(SelectSchedule, AlternatingSigns_SelectsAsIfTheOtherSignWereZero) {
  size_t seen = 0;
  for (const SelectionInfo& info : selections()) {
    if (!info.may_alternate_signs) continue;
    ++seen;
    SelectionSpec spec = example_of(info);
    const auto plain = schedule_selector_for(spec, 6000);
    spec.alternate_signs = true;
    const auto alternating = schedule_selector_for(spec, 6000);
    for (const Pattern pattern : kPatterns) {
      const auto values = values_of(pattern, 6000, 11);
      for (const uint64_t step : {0, 1, 2, 7}) {
        ASSERT_EQ(schedule_selected_by(*alternating, values, step),
                  schedule_selected_by(*plain, of_one_sign(values, step), step))
            << info.name << " step " << step << " " << testing::name_of(pattern, 6000, 300);
      }
    }
  }
  EXPECT_GE(seen, 6u);
}

TEST(SelectSchedule, AlternatingTopKIsTheLargestKAndThenTheSmallestK) {
  const auto values = values_of(Pattern::kGaussian, 5000, 3);
  auto selector = schedule_selector_for({.selection = SelectionId::kTopK, .k = 40, .alternate_signs = true}, 5000);
  std::vector<float> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  for (const uint64_t step : {4, 5}) {
    std::vector<float> got;
    for (const uint32_t position : schedule_selected_by(*selector, values, step)) got.push_back(values[position]);
    std::sort(got.begin(), got.end());
    const auto begin = step % 2 == 0 ? sorted.end() - 40 : sorted.begin();
    EXPECT_EQ(got, std::vector<float>(begin, begin + 40));
  }
}

TEST(SelectSchedule, AnySelectionWithTheLargestCollectedIsTheSame) {
  for (const Pattern pattern : {Pattern::kGaussian, Pattern::kFewDistinct}) {
    const auto values = values_of(pattern, 5000, 3);
    Candidates largest;
    ASSERT_EQ(collect_at_least(values, 1, values.size(), largest), ScanEnd::kComplete);
    for (const bool signs : {false, true}) {
      for (const uint64_t k : {1u, 40u, 5000u}) {
        const SelectionSpec spec = {.selection = SelectionId::kTopK, .k = k, .alternate_signs = signs};
        IndexBuffer with, without;
        auto selector = schedule_selector_for(spec, 5000);
        EXPECT_EQ(selector->largest_wanted(), signs ? 0 : k);
        ASSERT_TRUE(selector->select(schedule_dense_view(values), {.step = 3}, without));
        ASSERT_TRUE(selector->select(schedule_dense_view(values), {.step = 3, .largest = &largest}, with));
        EXPECT_EQ(with, without) << k;
      }
    }
  }
}

TEST(SelectSchedule, AlternatingFindsNaNAndInfinityOfEitherSignInEveryStep) {
  for (const SelectionInfo& info : selections()) {
    if (!info.may_alternate_signs) continue;
    SelectionSpec spec = example_of(info);
    spec.alternate_signs = true;
    for (const uint64_t step : {0, 1}) {
      for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()}) {
        for (const size_t n : {1, 5000}) {
          auto values = values_of(Pattern::kGaussian, n, 1);
          values[n / 2] = bad;
          IndexBuffer positions = {1};
          const auto done =
              schedule_selector_for(spec, n)->select(schedule_dense_view(values), {.step = step}, positions);
          ASSERT_FALSE(done.has_value()) << info.name;
          ASSERT_EQ(done.error().code, ErrorCode::kNonFinite);
          ASSERT_TRUE(positions.empty());
        }
      }
    }
  }
}

TEST(SelectSchedule, AlternatingOfASparseAccumulatorGivesPositionsOfIts) {
  const std::vector<float> values = {3, -5, 0, 1, -1, 2};
  const IndexBuffer indices = {1, 10, 100, 1000, 10'000, 99'999};
  const StreamView view{100'000, false, indices, values};
  auto selector = schedule_selector_for({.selection = SelectionId::kTopK, .k = 2, .alternate_signs = true}, 100'000);
  IndexBuffer positions;
  ASSERT_TRUE(selector->select(view, {.step = 0}, positions).has_value());
  EXPECT_EQ(listed(positions), (std::vector<uint32_t>{0, 5}));
  ASSERT_TRUE(selector->select(view, {.step = 1}, positions).has_value());
  EXPECT_EQ(listed(positions), (std::vector<uint32_t>{1, 4}));
}

// --- warm-up
// ----------------------------------------------------------------------------------------------------------

TEST(SelectWarmUp, TheExponentialScheduleIsThePapers) {
  const SelectionSpec spec{
      .selection = SelectionId::kTopK, .density = 0.001, .warm_up = WarmUp::kExponential, .warm_up_steps = 400};
  for (const auto& [step, density] : std::vector<std::pair<uint64_t, double>>{
           {0, 0.25}, {99, 0.25}, {100, 0.0625}, {200, 0.015625}, {300, 0.00390625}, {399, 0.00390625}}) {
    EXPECT_EQ(warm_up_density(spec, 10'000, step), density) << step;
  }
  EXPECT_EQ(warm_up_density(spec, 10'000, 400), std::nullopt);
  EXPECT_EQ(warm_up_density({.k = 10, .warm_up = WarmUp::kExponential, .warm_up_steps = 4}, 10'000, 3), 0.00390625);
}

TEST(SelectWarmUp, TheDensityNeverRisesNorFallsBelowTheSpecifiedDensity) {
  for (const double density : {1e-6, 0.001, 0.0625, 0.06, 0.25, 0.3, 1.0}) {
    for (const uint32_t steps : {1, 2, 3, 7, 1000}) {
      const SelectionSpec spec{
          .selection = SelectionId::kTopK, .density = density, .warm_up = WarmUp::kExponential, .warm_up_steps = steps};
      double before = 1;
      for (uint64_t step = 0; step < steps + 2; ++step) {
        const double now = warm_up_density(spec, 1000, step).value_or(density);
        ASSERT_LE(now, before);
        ASSERT_GE(now, density);
        ASSERT_TRUE(step < steps || now == density);
        before = now;
      }
    }
  }
}

TEST(SelectSchedule, EverySelectionWarmsUpDenseAndThenIsAsWithout) {
  const size_t n = 3000;
  for (const SelectionInfo& info : selections()) {
    if (info.selection == SelectionId::kNone || info.use == SelectionUse::kUnbiased) continue;
    SelectionSpec spec = example_of(info);
    const auto plain = schedule_selector_for(spec, n);
    spec.warm_up = WarmUp::kDense;
    spec.warm_up_steps = 3;
    const auto warming = schedule_selector_for(spec, n);
    for (uint64_t step = 0; step < 9; ++step) {
      const auto values = values_of(Pattern::kFewDistinct, n, step);
      const auto got = schedule_selected_by(*warming, values, step);
      if (step < 3) {
        ASSERT_EQ(got, without_zeros(values, top_k_oracle(values, n))) << info.name;
      } else {
        ASSERT_EQ(got, schedule_selected_by(*plain, values, step)) << info.name << " step " << step;
      }
    }
  }
}

TEST(SelectSchedule, ExponentialWarmUpSelectsAsTheStagesDensity) {
  const size_t n = 8000;
  for (const SelectionInfo& info : selections()) {
    if (info.amount() != SelectionAmount::kShare || info.use == SelectionUse::kUnbiased) continue;
    SelectionSpec spec = example_of(info);
    std::vector<std::unique_ptr<Selector>> stages;
    for (const double density : {0.25, 0.0625, 0.05}) {
      spec.density = density;
      stages.push_back(schedule_selector_for(spec, n));
    }
    spec.warm_up = WarmUp::kExponential;
    spec.warm_up_steps = 6;
    const auto warming = schedule_selector_for(spec, n);
    for (uint64_t step = 0; step < 12; ++step) {
      const auto values = values_of(Pattern::kGaussian, n, step);
      Selector& stage = *stages[std::min<uint64_t>(step / 3, 2)];
      ASSERT_EQ(schedule_selected_by(*warming, values, step), schedule_selected_by(stage, values, step))
          << info.name << " " << step;
    }
  }
}

TEST(SelectSchedule, WarmUpOfADrawingSelection_DrawsEverythingOnceThenAsUsual) {
  const size_t n = 5000;  // more than by_size sends whole
  const auto values = values_of(Pattern::kFewDistinct, n, 4);
  for (const SelectionInfo& info : selections()) {
    if (info.selection == SelectionId::kNone) continue;
    SelectionSpec spec = example_of(info);
    const auto plain = schedule_selector_for(spec, n);
    spec.warm_up = WarmUp::kDense;
    spec.warm_up_steps = 1;
    const auto warming = schedule_selector_for(spec, n);
    IndexBuffer positions, wanted_positions;
    Buffer<float> drawn, wanted;
    ASSERT_TRUE(warming->draw(schedule_dense_view(values), {.step = 0}, positions, drawn).has_value());
    EXPECT_EQ(listed(positions), without_zeros(values, top_k_oracle(values, n)));
    for (size_t i = 0; i < positions.size(); ++i) ASSERT_EQ(drawn[i], values[positions[i]]);
    const auto as_plain = plain->draw(schedule_dense_view(values), {.step = 1}, wanted_positions, wanted);
    const auto done = warming->draw(schedule_dense_view(values), {.step = 1}, positions, drawn);
    ASSERT_EQ(done.has_value(), info.use != SelectionUse::kWithResidual) << info.name;
    ASSERT_EQ(done.has_value(), as_plain.has_value());
    EXPECT_EQ(positions, wanted_positions);
    EXPECT_EQ(drawn, wanted);
  }
}

// [RedSync19, appendix C]: "we use original SGD optimizer synchronized by allreduce in first few epochs".
TEST(SelectSchedule, ADenseWarmUpSendsBothSignsAndTheStepsAfterItAlternate) {
  size_t seen = 0;
  for (const SelectionInfo& info : selections()) {
    if (!info.may_alternate_signs) continue;
    ++seen;
    SelectionSpec spec = example_of(info);
    spec.alternate_signs = true;
    const auto plain = schedule_selector_for(spec, 6000);
    spec.warm_up = WarmUp::kDense;
    spec.warm_up_steps = 3;
    const auto warming = schedule_selector_for(spec, 6000);
    const auto values = values_of(Pattern::kGaussian, 6000, 4);
    for (uint64_t step = 0; step < 6; ++step) {
      const auto wanted =
          step < 3 ? top_k_oracle(values, 6000) : schedule_selected_by(*plain, of_one_sign(values, step), step);
      EXPECT_EQ(schedule_selected_by(*warming, values, step), wanted) << info.name << " step " << step;
    }
  }
  EXPECT_GE(seen, 6u);
}

TEST(SelectSchedule, AnExponentialWarmUpAlternatesSignsInEveryStage) {
  const auto values = values_of(Pattern::kGaussian, 6000, 4);
  const SelectionSpec spec{.selection = SelectionId::kTrimmed,
                           .density = 0.01,
                           .alternate_signs = true,
                           .warm_up = WarmUp::kExponential,
                           .warm_up_steps = 6};
  const auto selector = schedule_selector_for(spec, 6000);
  for (uint64_t step = 0; step < 8; ++step) {
    const auto one_sign = of_one_sign(values, step);
    const auto k = k_of({.density = warm_up_density(spec, 6000, step).value_or(0.01)}, 6000);
    EXPECT_EQ(schedule_selected_by(*selector, values, step), top_k_oracle(one_sign, k)) << step;
  }
}

TEST(SelectSchedule, AWarmUpRefusesNonFiniteValues) {
  const SelectionSpec spec{
      .selection = SelectionId::kTopK, .density = 0.01, .warm_up = WarmUp::kDense, .warm_up_steps = 2};
  const auto selector = schedule_selector_for(spec, 50);
  std::vector<float> values(50, 1);
  values[49] = std::numeric_limits<float>::quiet_NaN();
  for (uint64_t step = 0; step < 4; ++step) {
    IndexBuffer positions = {1};
    const auto done = selector->select(schedule_dense_view(values), {.step = step}, positions);
    ASSERT_FALSE(done.has_value());
    EXPECT_EQ(done.error().code, ErrorCode::kNonFinite);
    EXPECT_TRUE(positions.empty());
  }
}

// --- retained state
// ---------------------------------------------------------------------------------------------------

/// Returns values whose scale drifts, so that a reused threshold is not the exact one.
std::vector<float> drifting_values(size_t n, uint64_t step) {
  auto values = values_of(Pattern::kGaussian, n, 100 + step);
  for (float& value : values) value *= 1 + 0.02F * static_cast<float>(step);
  return values;
}

TEST(SelectRetained, ARestoredSelectorSelectsAsTheOneThatWasNotInterrupted) {
  constexpr size_t kEntries = 6000;
  size_t stateful = 0;
  for (const SelectionInfo& info : selections()) {
    if (info.use == SelectionUse::kUnbiased) continue;
    for (const WarmUp warm_up : {WarmUp::kNone, WarmUp::kDense, WarmUp::kExponential}) {
      SelectionSpec spec = example_of(info);
      if (info.reuses_threshold) spec.period = 4;
      spec.warm_up = warm_up;
      spec.warm_up_steps = warm_up == WarmUp::kNone ? 0 : 6;
      if (!validate(spec)) continue;
      const auto whole = schedule_selector_for(spec, kEntries);
      for (uint64_t step = 0; step < 12; ++step) {
        const Retained retained = whole->retained();
        stateful += retained.empty() ? 0 : 1;
        const auto resumed = schedule_selector_for(spec, kEntries);
        ASSERT_TRUE(resumed->restore_retained(retained).has_value()) << info.name << " step " << step;
        EXPECT_EQ(resumed->retained(), retained);
        const auto values = drifting_values(kEntries, step);
        EXPECT_EQ(schedule_selected_by(*resumed, values, step), schedule_selected_by(*whole, values, step))
            << info.name << " step " << step;
      }
    }
  }
  EXPECT_GT(stateful, 0u);
}

TEST(SelectRetained, DamagedNumbersAreRefusedAndChangeNothing) {
  for (const SelectionId selection : {SelectionId::kThresholdReuse, SelectionId::kSampled}) {
    for (const WarmUp warm_up : {WarmUp::kNone, WarmUp::kExponential}) {
      const SelectionSpec spec{.selection = selection,
                               .density = 0.01,
                               .period = 8,
                               .warm_up = warm_up,
                               .warm_up_steps = warm_up == WarmUp::kNone ? 0U : 6U};
      const auto selector = schedule_selector_for(spec, 6000);
      for (uint64_t step = 0; step < 3; ++step) schedule_selected_by(*selector, drifting_values(6000, step), step);
      const Retained retained = selector->retained();
      for (size_t length = warm_up == WarmUp::kNone ? 0 : 1; length < retained.size(); ++length) {
        const Retained cut(retained.begin(), retained.begin() + static_cast<ptrdiff_t>(length));
        EXPECT_FALSE(selector->restore_retained(cut).has_value()) << length;
      }
      for (size_t at = 0; at < retained.size(); ++at) {
        Retained damaged = retained;
        damaged[at] = std::numeric_limits<uint64_t>::max();
        EXPECT_FALSE(selector->restore_retained(damaged).has_value()) << at;
      }
      Retained longer = retained;
      longer.push_back(0);
      EXPECT_FALSE(selector->restore_retained(longer).has_value());
      EXPECT_EQ(selector->retained(), retained);
    }
  }
}

// --- as text
// ----------------------------------------------------------------------------------------------------------

TEST(SelectScheduleText, TheOptionsAreWordsAfterTheNumbers) {
  EXPECT_EQ(selection_from_text("trimmed:0.001:signs:warm_up=500"), (SelectionSpec{.selection = SelectionId::kTrimmed,
                                                                                   .density = 0.001,
                                                                                   .alternate_signs = true,
                                                                                   .warm_up = WarmUp::kExponential,
                                                                                   .warm_up_steps = 500}));
  EXPECT_EQ(
      selection_from_text("threshold:0.5:dense=10"),
      (SelectionSpec{
          .selection = SelectionId::kThreshold, .threshold = 0.5, .warm_up = WarmUp::kDense, .warm_up_steps = 10}));
  EXPECT_EQ(selection_from_text("exact:0.01"), (SelectionSpec{.selection = SelectionId::kTopK, .density = 0.01}));
  EXPECT_EQ(selection_from_text("radix:100:signs"),
            (SelectionSpec{.selection = SelectionId::kRadix, .k = 100, .alternate_signs = true}));
  for (const char* bad :
       {"sampled:0.1:signs", "threshold_reuse:0.1:signs", "bucket_topk:0.1:64:signs", "none:dense=3", "none:signs",
        "threshold:0.5:warm_up=10", "topk:0.1:warm_up=0", "topk:0.1:dense", "topk:0.1:sign", "topk:signs", "trimmed",
        "binary_search:0", "by_size:1.5", "sampled:0.1:0", "topk:0.001:dense=100:warm_up=500",
        "topk:0.1:dense=5:dense=50", "topk:0.1:warm_up=5:signs:dense=5", "topk:0.1:signs:signs"}) {
    EXPECT_FALSE(selection_from_text(bad).has_value()) << bad;
  }
}

TEST(SelectScheduleText, SampledReusesForFiveStepsByDefault) {
  EXPECT_EQ(selection_from_text("sampled:0.01"),
            (SelectionSpec{.selection = SelectionId::kSampled, .density = 0.01, .period = 5}));
  EXPECT_EQ(selection_from_text("sampled:0.01:8"),
            (SelectionSpec{.selection = SelectionId::kSampled, .density = 0.01, .period = 8}));
  EXPECT_EQ(selection_from_text("threshold_reuse:0.01")->period, 32u);
}

TEST(SelectScheduleText, WarmUpsAndSignsThatCannotBeAreRefusedOfSpecificationsToo) {
  const SelectionSpec refused[] = {
      {.selection = SelectionId::kTopK, .density = 0.1, .warm_up = WarmUp::kDense},
      {.selection = SelectionId::kTopK, .density = 0.1, .warm_up_steps = 3},
      {.selection = SelectionId::kNone, .warm_up = WarmUp::kDense, .warm_up_steps = 3},
      {.selection = SelectionId::kThreshold, .threshold = 1, .warm_up = WarmUp::kExponential, .warm_up_steps = 3},
      {.selection = SelectionId::kSampled, .density = 0.1, .alternate_signs = true},
      {.selection = SelectionId::kNone, .alternate_signs = true}};
  for (const SelectionSpec& spec : refused) {
    EXPECT_EQ(validate(spec).error().code, ErrorCode::kInvalidArgument);
    EXPECT_FALSE(make_selector(spec, 100).has_value());
  }
}

}  // namespace
}  // namespace millrace
