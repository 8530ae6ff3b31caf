#include "worker/peer/algorithms/gradient_speeds.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>

/// Speeds of a gradient's shape, by a clock that the test moves.
namespace millrace::peer::testing {
namespace {

/// Returns a clock that moves by `by` with each call.
std::function<TimeNs()> steady_clock_of(TimeNs by) {
  return [now = TimeNs{0}, by]() mutable { return now += by; };
}

constexpr SumShape kTenThousand{.dimension = 10'000, .k = 100, .ranks = 4};

TEST(GradientSpeeds, SelectionsAreThoseThatThePlannerCharges) {
  const auto speeds = measure_selections(SelectionId::kTrimmed, kTenThousand, steady_clock_of(20 * kNsPerUs)).value();
  for (const double one : {speeds.callers_s, speeds.topk_s, speeds.gaussian_s, speeds.reevaluate_s, speeds.reuse_s}) {
    EXPECT_DOUBLE_EQ(one, 2e-9);
  }
  const auto none = measure_selections(SelectionId::kNone, kTenThousand, [] {
    ADD_FAILURE() << "nothing is to be measured";
    return TimeNs{0};
  });
  EXPECT_EQ(none->topk_s, 0) << "contributions come selected";
}

TEST(GradientSpeeds, TheCallersReusedThresholdIsTheMeanOverItsPeriod) {
  // A selector's first of three steps takes ten times as long: of twelve selectors, three for each of four selections.
  int calls = 0;
  TimeNs now = 0;
  const auto clock = [&] {
    if (calls % 2 == 1) now += calls / 2 % 3 == 0 ? 1'000'000 : 100'000;
    ++calls;
    return now;
  };
  SumShape shape = kTenThousand;
  shape.threshold_period = 10;
  const auto speeds = measure_selections(SelectionId::kThresholdReuse, shape, clock).value();
  EXPECT_DOUBLE_EQ(speeds.reevaluate_s, 100e-9);
  EXPECT_DOUBLE_EQ(speeds.reuse_s, 10e-9);
  EXPECT_DOUBLE_EQ(speeds.callers_s, 19e-9);
  EXPECT_DOUBLE_EQ(speeds.topk_s, 10e-9) << "its fastest step";
}

TEST(GradientSpeeds, CodingsAreOfTheContributionAndOfTheLosslessSum) {
  const auto codings =
      measure_codings(codec_from_text("gap+qsgd4").value(), kTenThousand, steady_clock_of(50 * kNsPerUs)).value();
  EXPECT_LT(codings.contribution.bytes, 3) << "4 bits a value, and a gap";
  EXPECT_GT(codings.sums.bytes, 4) << "values as they are";
  EXPECT_LT(codings.sums.bytes, 8);
  EXPECT_GT(codings.contribution.encode_s, 0);
  EXPECT_GT(codings.sums.decode_s, 0);
  SumShape denser = kTenThousand;
  denser.ranks = 64;
  const auto of_many =
      measure_codings(codec_from_text("gap+qsgd4").value(), denser, steady_clock_of(50 * kNsPerUs)).value();
  EXPECT_LT(of_many.sums.bytes, codings.sums.bytes) << "more ranks, a denser sum, shorter gaps";
  EXPECT_EQ(of_many.contribution.bytes, codings.contribution.bytes);
}

TEST(GradientSpeeds, WithoutACodecEntriesArePairs) {
  const auto codings = measure_codings(std::nullopt, kTenThousand, steady_clock_of(1)).value();
  for (const EntryCoding& one : {codings.contribution, codings.sums}) {
    EXPECT_EQ(one.bytes, 8);
    EXPECT_EQ(one.encode_s + one.decode_s, 0);
  }
}

}  // namespace
}  // namespace millrace::peer::testing
