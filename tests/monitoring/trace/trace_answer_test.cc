#include "monitoring/trace/trace_answer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace millrace::monitoring {
namespace {

TimeNs at_100() { return 100; }

nlohmann::json answer_of(SpanRecorder& recorder, const std::string& query,
                         const TraceProcess& process = {.kind = "shard"}) {
  const auto text = answer_trace(recorder, query, process, at_100);
  EXPECT_TRUE(text.has_value()) << query;
  return nlohmann::json::parse(text.value_or("{}"));
}

TEST(TraceAnswer, HasEverySpanWithAllItsFields) {
  SpanRecorder recorder;
  (void)answer_of(recorder, "seconds=1");
  EXPECT_TRUE(recorder.on());
  recorder.record({.begin = 110,
                   .end = 120,
                   .step = 7,
                   .job = 3,
                   .unit = 2,
                   .worker = 5,
                   .name = SpanName::kAdmit,
                   .unit_kind = SpanUnit::kPart});
  const nlohmann::json said = answer_of(recorder, "");
  EXPECT_EQ(said["now"], 100);
  EXPECT_EQ(said["lost"], 0);
  EXPECT_EQ(said["process"]["kind"], "shard");
  EXPECT_EQ(said["spans"], nlohmann::json::parse(R"([[0,"admit",110,120,7,"part",2,5,3]])"));
  EXPECT_TRUE(answer_of(recorder, "after=" + said["next"].get<std::string>())["spans"].empty());
}

TEST(TraceAnswer, AQuestionWithoutSecondsTurnsNothingOn) {
  SpanRecorder recorder;
  (void)answer_of(recorder, "");
  (void)answer_of(recorder, "seconds=0");
  EXPECT_FALSE(recorder.on());
}

TEST(TraceAnswer, NamesOfAnyBytesAreValidJson) {
  SpanRecorder recorder;
  for (const std::string name : {"\"},{\"x\":\"", "\xff\xfe", "a\nb\x01", "</script>", "\\"}) {
    const nlohmann::json said = answer_of(recorder, "", {.kind = "worker", .job = name});
    EXPECT_EQ(said["process"]["kind"], "worker") << name;
    EXPECT_EQ(said["process"].size(), 2u);
    EXPECT_FALSE(said.contains("x"));
  }
}

TEST(TraceAnswer, AWrongQueryIsRefused) {
  SpanRecorder recorder;
  for (const char* query : {"seconds", "seconds=", "seconds=61", "seconds=-1", "seconds=1.5", "seconds=1x", "after=",
                            "after=1.", "after=.1", "after=a", "after=18446744073709551616", "job=x", "=", "&"}) {
    const auto said = answer_trace(recorder, query, {.kind = "shard"}, at_100);
    ASSERT_FALSE(said.has_value()) << query;
    EXPECT_EQ(said.error().code, ErrorCode::kInvalidArgument) << query;
  }
  std::string long_cursor = "after=1";
  for (size_t place = 0; place < 2 * SpanRecorder::kThreadsMax; ++place) long_cursor += ".1";
  EXPECT_FALSE(answer_trace(recorder, long_cursor, {.kind = "shard"}, at_100).has_value());
  EXPECT_FALSE(recorder.on());
}

TEST(TraceAnswer, ACursorOfAnotherProcessIsNoHarm) {
  SpanRecorder recorder;
  (void)answer_of(recorder, "seconds=1");
  recorder.record({.begin = 110, .end = 120});
  const nlohmann::json said = answer_of(recorder, "after=999.999.999");
  EXPECT_EQ(said["lost"], 0);
  EXPECT_TRUE(said["spans"].empty());
}

}  // namespace
}  // namespace millrace::monitoring
