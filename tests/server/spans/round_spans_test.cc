#include "server/spans/round_spans.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/stream/shared_stream.h"
#include "server/aggregation/tasks.h"

namespace millrace::server {
namespace {

using monitoring::Span;
using monitoring::span_name;
using monitoring::SpanRecorder;

SpanRecorder& switched_on(SpanRecorder& recorder) {
  recorder.keep_on(monotonic_now_ns(), monotonic_now_ns() + 60 * kNsPerS);
  return recorder;
}

std::vector<std::string> names_of(const SpanRecorder& recorder) {
  std::vector<std::string> names;
  for (const auto& taken : recorder.read(std::nullopt, 100).spans) names.emplace_back(span_name(taken.span.name));
  return names;
}

SharedStream stream_of(std::vector<float> values) {
  Stream stream = Stream::empty(8);
  for (size_t at = 0; at < values.size(); ++at) {
    stream.indices.push_back(static_cast<uint32_t>(at));
    stream.values.push_back(values[at]);
  }
  return SharedStream::from(std::move(stream));
}

ReduceTask::Input reduce_input() {
  ReduceTask::Input input;
  input.key = {.job = 4, .part = 2, .step = 9, .token = 1};
  input.contributions = {stream_of({1, 2, 3}), stream_of({3, 2, 1})};
  return input;
}

void run(SpanRecorder& recorder, Task& task) {
  const TaskSpans spans(recorder, task);
  task.run();
}

TEST(RoundSpans, ATaskThatSumsCutsAndEncodesHasThreeSpans) {
  SpanRecorder recorder;
  ReduceTask::Input input = reduce_input();
  input.plan = EncodePlan();
  input.plan->largest = 2;
  ReduceTask task(std::move(input));
  run(switched_on(recorder), task);
  ASSERT_TRUE(task.result().has_value());
  EXPECT_EQ(names_of(recorder), (std::vector<std::string>{"reduce", "threshold", "encode"}));
  for (const auto& taken : recorder.read(std::nullopt, 100).spans) {
    EXPECT_EQ(taken.span.job, 4u);
    EXPECT_EQ(taken.span.step, 9u);
    EXPECT_EQ(taken.span.unit, 2u);
  }
}

TEST(RoundSpans, TheResultIsTheSameWithoutARecorderThatIsOn) {
  SpanRecorder off;
  ReduceTask::Input input = reduce_input();
  input.plan = EncodePlan();
  ReduceTask watched(input);
  ReduceTask plain(input);
  run(off, plain);
  SpanRecorder on;
  run(switched_on(on), watched);
  EXPECT_TRUE(names_of(off).empty());
  EXPECT_EQ(names_of(on), (std::vector<std::string>{"reduce", "encode"}));
  const auto bytes = [](const ReduceTask& task) {
    const ByteSpan span = task.result()->update->container.bytes;
    return std::vector<uint8_t>(span.begin(), span.end());
  };
  EXPECT_EQ(bytes(watched), bytes(plain));
}

TEST(RoundSpans, ASumWhoseThresholdIsNotKnownCountsItsMagnitudes) {
  SpanRecorder recorder;
  ReduceTask::Input input = reduce_input();
  input.magnitudes = ReduceTask::Magnitudes::kCounted;
  ReduceTask task(std::move(input));
  run(switched_on(recorder), task);
  EXPECT_EQ(names_of(recorder), (std::vector<std::string>{"reduce", "threshold"}));
}

TEST(RoundSpans, MessagesOfRoundsAreNamedByTheirBodies) {
  SpanRecorder recorder;
  switched_on(recorder);
  protocol::Contribution contribution;
  contribution.part = 3;
  contribution.step = 5;
  protocol::Message message{{.job = 6, .worker = 1}, contribution, {}};
  {
    const MessageSpan span(recorder, message);
  }
  message.body = protocol::ThresholdHistogram();
  {
    const MessageSpan span(recorder, message);
  }
  message.body = protocol::Update();
  {
    const MessageSpan span(recorder, message);
  }
  message.body = protocol::Heartbeat();
  {
    const MessageSpan span(recorder, message);
  }
  EXPECT_EQ(names_of(recorder), (std::vector<std::string>{"admit", "threshold", "send"}));
  const Span admitted = recorder.read(std::nullopt, 1).spans.front().span;
  EXPECT_EQ(admitted.unit, 3u);
  EXPECT_EQ(admitted.step, 5u);
  EXPECT_EQ(admitted.job, 6u);
  EXPECT_EQ(admitted.worker, 1);
}

}  // namespace
}  // namespace millrace::server
