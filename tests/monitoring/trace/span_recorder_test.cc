#include "monitoring/trace/span_recorder.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace millrace::monitoring {
namespace {

constexpr TimeNs kSoon = 1'000;

Span span_at(TimeNs begin, uint64_t step) { return {.begin = begin, .end = begin + 1, .step = step}; }

TEST(SpanRecorder, RecordsOnlyWhileItIsAsked) {
  SpanRecorder recorder;
  EXPECT_FALSE(recorder.on());
  recorder.record(span_at(1, 1));
  recorder.keep_on(10, kSoon);
  EXPECT_TRUE(recorder.on());
  recorder.record(span_at(20, 2));
  recorder.record(span_at(kSoon, 3));  // ends behind the time
  EXPECT_FALSE(recorder.on());
  recorder.record(span_at(kSoon + 5, 4));
  const SpanRecorder::Page page = recorder.read(std::nullopt, 100);
  ASSERT_EQ(page.spans.size(), 1u);
  EXPECT_EQ(page.spans[0].span.step, 2u);
  EXPECT_EQ(page.lost, 0u);
}

TEST(SpanRecorder, ALaterRequestProlongsAndNeverShortens) {
  SpanRecorder recorder;
  recorder.keep_on(0, kSoon);
  recorder.keep_on(10, 20);
  recorder.record(span_at(30, 1));
  EXPECT_TRUE(recorder.on());
  recorder.keep_on(40, 2 * kSoon);
  recorder.record(span_at(kSoon + 1, 2));
  EXPECT_EQ(recorder.read(std::nullopt, 100).spans.size(), 2u);
}

TEST(SpanRecorder, ARecordingThatBeginsAgainForgetsTheOneBefore) {
  SpanRecorder recorder;
  recorder.keep_on(0, kSoon);
  recorder.record(span_at(1, 1));
  const auto before = recorder.read(std::nullopt, 100).next;
  recorder.record(span_at(2, 2));
  recorder.keep_on(2 * kSoon, 3 * kSoon);
  recorder.record(span_at(2 * kSoon + 1, 3));
  const SpanRecorder::Page page = recorder.read(before, 100);
  ASSERT_EQ(page.spans.size(), 1u);
  EXPECT_EQ(page.spans[0].span.step, 3u);
  EXPECT_EQ(page.lost, 1u) << "step 2 was recorded behind the cursor, and is gone";
}

TEST(SpanRecorder, TheCursorGivesEverySpanOnceInPages) {
  SpanRecorder recorder;
  recorder.keep_on(0, kSoon);
  std::vector<uint64_t> steps;
  SpanRecorder::Cursor cursor = recorder.read(std::nullopt, 100).next;
  for (uint64_t round = 0; round < 5; ++round) {
    for (uint64_t at = 0; at < 7; ++at) recorder.record(span_at(1, 7 * round + at));
    for (bool more = true; more;) {
      SpanRecorder::Page page = recorder.read(cursor, 3);
      EXPECT_EQ(page.lost, 0u);
      more = !page.spans.empty();
      for (const auto& taken : page.spans) steps.push_back(taken.span.step);
      cursor = std::move(page.next);
    }
  }
  ASSERT_EQ(steps.size(), 35u);
  for (uint64_t step = 0; step < steps.size(); ++step) EXPECT_EQ(steps[step], step);
}

TEST(SpanRecorder, AFullRingKeepsTheNewestAndCountsTheOthersAsLost) {
  SpanRecorder recorder;
  recorder.keep_on(0, kSoon);
  recorder.record(span_at(1, 0));
  const auto cursor = recorder.read(std::nullopt, 100).next;
  constexpr uint64_t kLost = 10;
  for (uint64_t step = 1; step <= SpanRecorder::kSpansPerThread + kLost; ++step) recorder.record(span_at(1, step));
  const SpanRecorder::Page page = recorder.read(cursor, SIZE_MAX);
  EXPECT_EQ(page.lost, kLost);
  ASSERT_EQ(page.spans.size(), SpanRecorder::kSpansPerThread);
  EXPECT_EQ(page.spans.front().span.step, kLost + 1);
  EXPECT_EQ(page.spans.back().span.step, SpanRecorder::kSpansPerThread + kLost);
  EXPECT_EQ(recorder.read(page.next, SIZE_MAX).lost, 0u);
}

TEST(SpanRecorder, ThreadsBeyondTheLimitAreCountedAsLost) {
  SpanRecorder recorder;
  recorder.keep_on(0, kSoon);
  const auto cursor = recorder.read(std::nullopt, 100).next;
  std::atomic<size_t> arrived = 0;
  constexpr size_t kThreads = SpanRecorder::kThreadsMax + 3;
  {
    std::vector<std::jthread> threads;
    for (size_t at = 0; at < kThreads; ++at) {
      threads.emplace_back([&] {
        recorder.record(span_at(1, 1));
        ++arrived;
        while (arrived.load() < kThreads) std::this_thread::yield();  // a thread that has ended gives its number away
      });
    }
  }
  const SpanRecorder::Page page = recorder.read(cursor, 1'000);
  EXPECT_EQ(page.spans.size(), SpanRecorder::kThreadsMax);
  EXPECT_EQ(page.lost, kThreads - SpanRecorder::kThreadsMax);
}

TEST(SpanRecorder, AThreadThatRecordsIntoTwoRecordersKeepsThemApart) {
  SpanRecorder one;
  SpanRecorder two;
  one.keep_on(0, kSoon);
  two.keep_on(0, kSoon);
  for (uint64_t step = 0; step < 4; ++step) (step % 2 == 0 ? one : two).record(span_at(1, step));
  for (const auto& taken : one.read(std::nullopt, 100).spans) EXPECT_EQ(taken.span.step % 2, 0u);
  EXPECT_EQ(one.read(std::nullopt, 100).spans.size(), 2u);
  EXPECT_EQ(two.read(std::nullopt, 100).spans.size(), 2u);
}

TEST(SpanRecorder, ReadersAndWritersAtOnceLoseNothingUncounted) {
  SpanRecorder recorder;
  recorder.keep_on(0, kSoon);
  constexpr uint64_t kSpans = 20'000;
  SpanRecorder::Cursor cursor = recorder.read(std::nullopt, 100).next;
  uint64_t seen = 0;
  std::atomic<int> writing = 2;
  {
    std::vector<std::jthread> writers;
    for (int writer = 0; writer < 2; ++writer) {
      writers.emplace_back([&] {
        for (uint64_t step = 0; step < kSpans; ++step) recorder.record(span_at(1, step));
        --writing;
      });
    }
    for (bool more = true; more;) {
      more = writing.load() > 0;
      SpanRecorder::Page page = recorder.read(cursor, SIZE_MAX);
      seen += page.spans.size() + page.lost;
      cursor = std::move(page.next);
    }
  }
  EXPECT_EQ(seen, 2 * kSpans);
}

TEST(SpanTimer, OfARecorderThatIsOffRecordsNothing) {
  SpanRecorder recorder;
  SpanTimer timer(recorder);
  recorder.keep_on(monotonic_now_ns(), monotonic_now_ns() + kNsPerS);
  timer.end({.step = 1});
  EXPECT_FALSE(timer.on());
  EXPECT_TRUE(recorder.read(std::nullopt, 100).spans.empty());
}

TEST(SpanTimer, StagesFollowEachOther) {
  SpanRecorder recorder;
  recorder.keep_on(monotonic_now_ns(), monotonic_now_ns() + 60 * kNsPerS);
  SpanTimer timer(recorder);
  timer.end({.step = 1, .name = SpanName::kReduce});
  timer.end({.step = 1, .name = SpanName::kEncode});
  const auto page = recorder.read(std::nullopt, 100);
  ASSERT_EQ(page.spans.size(), 2u);
  EXPECT_EQ(page.spans[0].span.end, page.spans[1].span.begin);
  EXPECT_LE(page.spans[0].span.begin, page.spans[0].span.end);
}

}  // namespace
}  // namespace millrace::monitoring
