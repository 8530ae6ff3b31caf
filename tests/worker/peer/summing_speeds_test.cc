#include "worker/peer/algorithms/summing_speeds.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <vector>

/// Speeds by a clock that the test moves: the time of a sum is that of the clock.
namespace millrace::peer::testing {
namespace {

TEST(KernelSpeeds, TheFastestRoundDeterminesTheKernelSpeeds) {
  // Pairs of calls: before and after a sum. Sparse rounds take 500, 400, 300, ... us, dense ones 5,000, 4,000, ...
  TimeNs now = 0;
  int calls = 0;
  const auto clock = [&] {
    if (calls % 2 == 1) {
      const int round = calls / 2;
      now += round < 5 ? (5 - round) * 100 * kNsPerUs : (10 - round) * kNsPerMs;
    } else {
      now += 7 * kNsPerS;  // between sums: counts nowhere
    }
    ++calls;
    return now;
  };
  const KernelSpeeds speeds = measure_kernel_speeds(clock);
  EXPECT_EQ(calls, 20);
  EXPECT_DOUBLE_EQ(speeds.add_entry_s, 100e-6 / (2 << 15));
  EXPECT_DOUBLE_EQ(speeds.add_value_s, 1e-3 / (2 << 19));
}

TEST(KernelSpeeds, AStoppedClockYieldsZeroSpeeds) {
  int calls = 0;
  const KernelSpeeds speeds = measure_kernel_speeds([&] {
    ++calls;
    return TimeNs{42};
  });
  EXPECT_EQ(speeds.add_entry_s, 0);
  EXPECT_EQ(speeds.add_value_s, 0);
  EXPECT_EQ(calls, 2) << "one sum is enough to see it";
}

/// Returns a clock that moves by `by` with each call.
std::function<TimeNs()> ticking(TimeNs by) {
  return [now = TimeNs{0}, by]() mutable { return now += by; };
}

Stream every_tenth(uint32_t count) {
  Stream stream = Stream::empty(uint64_t{10} * count);
  for (uint32_t i = 0; i < count; ++i) {
    stream.indices.push_back(10 * i);
    stream.values.push_back(1.5F);
  }
  return stream;
}

TEST(MeasureCoding, IsOfAnEntryByTheClockAndTheBytesThatTravel) {
  const Stream stream = every_tenth(1'000);
  const auto codec = codec_from_text("gap+raw").value();
  const EntryCoding coding = measure_coding(codec, stream.view(), ticking(50 * kNsPerUs)).value();
  EXPECT_DOUBLE_EQ(coding.encode_s, 50e-9);
  EXPECT_DOUBLE_EQ(coding.decode_s, 50e-9);
  EXPECT_GT(coding.bytes, 4) << "values as they are";
  EXPECT_LT(coding.bytes, 6) << "gaps of 10";
  const EntryCoding still = measure_coding(codec, stream.view(), [] { return TimeNs{7}; }).value();
  EXPECT_EQ(still.encode_s, 0);
  EXPECT_EQ(still.bytes, coding.bytes);
}

TEST(MeasureCoding, OfLongStreamsTheBeginIsMeasured) {
  const EntryCoding coding =
      measure_coding(codec_from_text("gap+raw").value(), every_tenth(100'000).view(), ticking(65'536)).value();
  EXPECT_DOUBLE_EQ(coding.encode_s, 1e-9) << "2^16 entries in 65.536 us";
}

TEST(MeasureCoding, WithoutACodecOrEntriesItIsPairs) {
  const auto is_pairs = [](const EntryCoding& coding) {
    return coding.bytes == 8 && coding.encode_s == 0 && coding.decode_s == 0;
  };
  EXPECT_TRUE(is_pairs(measure_coding(std::nullopt, every_tenth(5).view(), ticking(1)).value()));
  EXPECT_TRUE(
      is_pairs(measure_coding(codec_from_text("gap+raw").value(), Stream::empty(9).view(), ticking(1)).value()));
}

TEST(MeasureSelection, IsOfAValueByTheClock) {
  for (const SelectionId selection :
       {SelectionId::kTopK, SelectionId::kTrimmed, SelectionId::kGaussian, SelectionId::kThresholdReuse}) {
    SelectionSpec spec;
    spec.selection = selection;
    spec.k = 100;
    const SelectionSpeed speed = measure_selection(spec, 10'000, ticking(20 * kNsPerUs)).value();
    EXPECT_DOUBLE_EQ(speed.first_s, 2e-9);
    EXPECT_DOUBLE_EQ(speed.reuse_s, 2e-9);
    EXPECT_DOUBLE_EQ(speed.mean_s(32), 2e-9);
  }
  SelectionSpec none;
  EXPECT_EQ(measure_selection(none, 10'000, ticking(1)).value().first_s, 0);
  SelectionSpec wrong;
  wrong.selection = SelectionId::kTopK;
  wrong.density = 2;
  EXPECT_FALSE(measure_selection(wrong, 10'000, ticking(1)));
}

TEST(MeasureSelection, AThresholdThatIsReusedHasTwoSpeeds) {
  // Steps 0, 1 and 2 of three selectors: the first of each takes ten times as long.
  int calls = 0;
  TimeNs now = 0;
  const auto clock = [&] {
    if (calls % 2 == 1) now += calls / 2 % 3 == 0 ? 1'000'000 : 100'000;
    ++calls;
    return now;
  };
  SelectionSpec spec;
  spec.selection = SelectionId::kThresholdReuse;
  spec.k = 100;
  const SelectionSpeed speed = measure_selection(spec, 10'000, clock).value();
  EXPECT_DOUBLE_EQ(speed.first_s, 100e-9);
  EXPECT_DOUBLE_EQ(speed.reuse_s, 10e-9);
  EXPECT_DOUBLE_EQ(speed.mean_s(10), 19e-9);
}

}  // namespace
}  // namespace millrace::peer::testing
