#include "worker/bench/recover/recover_marks.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace millrace::bench {
namespace {

constexpr uint64_t kN = 4'000;
constexpr uint32_t kSerials = 3;

RecoverMarks marks() {
  auto made = RecoverMarks::make(kN, 0.01, {{0, 1'250}, {1'250, 2'000}, {2'000, kN}}, kSerials);
  EXPECT_TRUE(made);
  return *made;
}

/// The state of a job that counts every push once, for any distribution of pushes over steps.
struct Job {
  RecoverMarks made = marks();
  std::vector<float> weights = std::vector<float>(kN, 0.0f);
  std::vector<std::vector<uint64_t>> steps{kSerials};

  void push(uint32_t serial, uint64_t step) {
    add(serial, static_cast<uint32_t>(steps[serial].size()), step, 0, kN, 1);
    steps[serial].push_back(step);
  }
  void add(uint32_t serial, uint32_t push, uint64_t step, uint64_t begin, uint64_t end, float times) {
    const Stream pushed = made.pushed(serial, push, step);
    for (size_t at = 0; at < pushed.indices.size(); ++at) {
      if (pushed.indices[at] >= begin && pushed.indices[at] < end)
        weights[pushed.indices[at]] += times * pushed.values[at];
    }
  }
  RecoverVerdict verdict() const { return judge_recovery(made, weights, steps); }
};

/// As many steps as there are marks for, with a process that takes another's place in the middle.
Job whole_job() {
  Job job;
  for (uint64_t step = 0; step < job.made.pushes_max; ++step) {
    job.push(0, step);
    job.push(step < 9 ? 1 : 2, step);
  }
  return job;
}

TEST(RecoverMarks, APushIsOneClassAndAMarkInEachPartStrictlyIncreasing) {
  const RecoverMarks made = marks();
  EXPECT_EQ(made.stride, 100u);
  EXPECT_EQ(made.pushes_max, 16u);  // the part of 750 has 7 or 8 marks, two for each of three processes
  const Stream pushed = made.pushed(1, 9, 5);
  EXPECT_TRUE(std::ranges::is_sorted(pushed.indices, std::ranges::less_equal()));
  EXPECT_EQ(pushed.indices.size(), 40u + 3u);
  EXPECT_EQ(std::ranges::count(pushed.values, 8.0f), 3);
  EXPECT_EQ(std::ranges::count(pushed.values, 1.0f), 40);
}

TEST(RecoverMarks, NoTwoPushesShareAMark) {
  const RecoverMarks made = marks();
  std::vector<std::pair<uint64_t, float>> all;
  for (size_t part = 0; part < made.parts.size(); ++part) {
    for (uint32_t serial = 0; serial < kSerials; ++serial) {
      for (uint32_t push = 0; push < made.pushes_max; ++push) {
        const uint64_t index = made.mark(part, serial, push);
        EXPECT_GE(index, made.parts[part].first);
        EXPECT_LT(index, made.parts[part].second);
        EXPECT_EQ(index % made.stride, made.stride - 1);
        all.emplace_back(index, RecoverMarks::mark_value(push));
      }
    }
  }
  std::ranges::sort(all);
  EXPECT_EQ(std::ranges::adjacent_find(all), all.end());
}

TEST(JudgeRecovery, FindsNothingWhereAllWasCountedOnce) {
  const RecoverVerdict verdict = whole_job().verdict();
  EXPECT_EQ(verdict.steps_lost, 0u);
  EXPECT_EQ(verdict.double_counted, 0u);
  EXPECT_EQ(verdict.wrong_weights, 0u);
}

TEST(JudgeRecovery, APushThatOnePartLostIsLost) {
  Job job = whole_job();
  job.add(0, 7, 7, 1'250, 2'000, -1);
  job.add(2, 0, 9, 0, kN, -1);
  const RecoverVerdict verdict = job.verdict();
  EXPECT_EQ(verdict.steps_lost, 2u);
  EXPECT_EQ(verdict.double_counted, 0u);
  EXPECT_EQ(verdict.wrong_weights, 0u) << "marks and entries went together";
}

TEST(JudgeRecovery, APushThatOnePartCountedTwiceIsCountedTwice) {
  Job job = whole_job();
  job.add(1, 3, 3, 2'000, kN, 1);
  const RecoverVerdict verdict = job.verdict();
  EXPECT_EQ(verdict.steps_lost, 0u);
  EXPECT_EQ(verdict.double_counted, 1u);
}

TEST(JudgeRecovery, OneLostAndOneTwiceOfOneClassDoNotHideEachOther) {
  Job job = whole_job();
  job.add(0, 4, 4, 0, kN, -1);
  job.add(1, 4, 4, 0, kN, 1);
  const RecoverVerdict verdict = job.verdict();
  EXPECT_EQ(verdict.steps_lost, 1u);
  EXPECT_EQ(verdict.double_counted, 1u);
}

TEST(JudgeRecovery, AnEntryWithoutItsMarkIsAWrongWeight) {
  Job job = whole_job();
  const Stream pushed = job.made.pushed(0, 2, 2);
  job.weights[pushed.indices[0]] -= 1;
  job.weights[job.made.mark(1, 2, job.made.pushes_max - 1)] += 0.5f;
  EXPECT_EQ(job.verdict().wrong_weights, 2u);
}

TEST(JudgeRecovery, WeightsThatAreNoCountsAreWrong) {
  Job job = whole_job();
  job.weights[job.made.mark(0, 0, 0)] = -1;
  const RecoverVerdict verdict = job.verdict();
  EXPECT_EQ(verdict.steps_lost, 8u);
  EXPECT_GT(verdict.wrong_weights, 1u);
}

TEST(RecoverMarks, ADimensionWithoutRoomIsRefused) {
  const auto made = RecoverMarks::make(1'024, 0.01, {{0, 512}, {512, 1'024}}, 6);
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().message.find("no room to mark"), std::string::npos) << made.error().message;
}

}  // namespace
}  // namespace millrace::bench
