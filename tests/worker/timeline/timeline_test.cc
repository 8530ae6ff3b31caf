#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "worker/timeline/chrome_trace.h"
#include "worker/timeline/clock_alignment.h"
#include "worker/timeline/process_trace.h"

namespace millrace::timeline {
namespace {

constexpr const char* kAnswer =
    R"({"now":1000,"process":{"kind":"shard"},"lost":2,"next":"0.1","spans":[[0,"admit",10,20,7,"part",2,-1,3]]})";

TEST(ClockAlignment, TheShortestRoundTripGivesTheOffset) {
  ClockAlignment clock;
  EXPECT_FALSE(clock.known());
  clock.add(100, 300, 1'180);
  clock.add(1'000, 1'020, 2'005);
  clock.add(2'000, 2'100, 3'060);
  EXPECT_EQ(clock.offset(), 995);
  EXPECT_EQ(clock.error(), 10);
  EXPECT_EQ(clock.to_own(2'005), 1'010);
}

TEST(ClockAlignment, TheTrueOffsetIsWithinTheErrorForEverySplitOfTheRoundTrip) {
  constexpr TimeNs kTrue = -12'345;
  for (TimeNs there = 0; there <= 101; ++there) {
    ClockAlignment clock;
    clock.add(50, 50 + 101, 50 + there + kTrue);
    const TimeNs apart = clock.offset() - kTrue;
    EXPECT_LE(std::max(apart, -apart), clock.error()) << there;
  }
}

TEST(ClockAlignment, AProvenDriftRaisesTheError) {
  ClockAlignment clock;
  clock.add(0, 10, 5);
  clock.add(1'000'000, 1'000'010, 1'000'505);  // 500 apart
  EXPECT_EQ(clock.error(), 495);
}

TEST(TraceAnswer, IsReadWhole) {
  const auto answer = read_trace_answer(kAnswer);
  ASSERT_TRUE(answer.has_value()) << answer.error().message;
  EXPECT_EQ(answer->now, 1'000);
  EXPECT_EQ(answer->lost, 2u);
  EXPECT_EQ(answer->next, "0.1");
  ASSERT_EQ(answer->spans.size(), 1u);
  EXPECT_EQ(answer->spans[0].name, "admit");
  EXPECT_EQ(answer->spans[0].worker, -1);
  EXPECT_EQ(answer->spans[0].job, 3u);
}

TEST(TraceAnswer, ClocksAreBoundedSoThatTheirDifferencesDoNotOverflow) {
  constexpr int64_t kMost = int64_t{1} << 62;
  for (const char* clock : {"now", "unix"}) {
    nlohmann::json answer = nlohmann::json::parse(kAnswer);
    answer[clock] = kMost;
    EXPECT_TRUE(read_trace_answer(answer.dump()).has_value()) << clock;
    for (const nlohmann::json& value : {nlohmann::json(kMost + 1), nlohmann::json(-1), nlohmann::json("1")}) {
      answer[clock] = value;
      EXPECT_FALSE(read_trace_answer(answer.dump()).has_value()) << answer;
    }
  }
  EXPECT_EQ(read_trace_answer(kAnswer)->unix_ns, 0);
}

TEST(TraceAnswer, HostileAnswersAreRefused) {
  const nlohmann::json whole = nlohmann::json::parse(kAnswer);
  for (const char* field : {"now", "process", "lost", "next", "spans"}) {
    for (const nlohmann::json& value : {nlohmann::json(), nlohmann::json("&x=1"), nlohmann::json(-1.5),
                                        nlohmann::json::array({1}), nlohmann::json(true)}) {
      nlohmann::json changed = whole;
      changed[field] = value;
      EXPECT_FALSE(read_trace_answer(changed.dump()).has_value()) << changed;
    }
    nlohmann::json without = whole;
    without.erase(field);
    EXPECT_FALSE(read_trace_answer(without.dump()).has_value()) << without;
  }
  for (size_t field = 0; field < whole["spans"][0].size(); ++field) {
    nlohmann::json changed = whole;
    changed["spans"][0][field] = nlohmann::json::object();
    EXPECT_FALSE(read_trace_answer(changed.dump()).has_value()) << changed;
  }
  nlohmann::json backwards = whole;
  backwards["spans"][0][3] = 5;
  EXPECT_FALSE(read_trace_answer(backwards.dump()).has_value());
  nlohmann::json long_name = whole;
  long_name["spans"][0][1] = std::string(33, 'x');
  EXPECT_FALSE(read_trace_answer(long_name.dump()).has_value());
  for (const char* text : {"", "[]", "null", "{", "\xff"}) EXPECT_FALSE(read_trace_answer(text).has_value()) << text;
}

Timeline example_timeline(const std::string& job) {
  Timeline timeline;
  timeline.job = job;
  timeline.job_numbers = {3};
  timeline.collection.begin = 1'000;
  timeline.collection.end = 9'000;
  ProcessTrace shard{.address = "127.0.0.1:7700", .process = {{"kind", "shard"}}};
  shard.clock.add(0, 10, 100'005);  // 100,000 ahead
  shard.lost = 4;
  const auto span = [](TimeNs begin, uint64_t job_number, const char* name) {
    return TracedSpan{.unit = 2,
                      .begin = begin,
                      .end = begin + 500,
                      .job = job_number,
                      .worker = 1,
                      .name = name,
                      .unit_kind = "part"};
  };
  shard.spans = {span(102'000, 3, "admit"), span(103'000, 4, "reduce"), span(100'000, 3, "early"),
                 span(109'000, 3, "late")};
  timeline.collection.processes = {shard, {.address = "gone:1", .trouble = "it does not answer"}};
  timeline.labels = {"shard 0", "worker 1"};
  return timeline;
}

TEST(ChromeTrace, HasTheSpansOfTheJobInItsTimeOnTheOwnClock) {
  const nlohmann::json trace = nlohmann::json::parse(chrome_trace(example_timeline("train")));
  std::vector<nlohmann::json> spans;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] == "X") spans.push_back(event);
  }
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0]["name"], "admit");
  EXPECT_EQ(spans[0]["ts"], 1.0);
  EXPECT_EQ(spans[0]["dur"], 0.5);
  EXPECT_EQ(spans[0]["args"], nlohmann::json::parse(R"({"step":0,"part":2,"worker":1})"));
  const nlohmann::json& processes = trace["otherData"]["processes"];
  EXPECT_EQ(processes[0]["spans"], 1);
  EXPECT_EQ(processes[0]["spans_lost"], 4);
  EXPECT_EQ(processes[0]["clock_error_us"], 0.005);
  EXPECT_EQ(processes[0]["clock_offset_us"], 100.0);
  EXPECT_EQ(processes[1]["trouble"], "it does not answer");
  EXPECT_FALSE(processes[1].contains("clock_error_us"));
}

TEST(ChromeTrace, HostileNamesStayText) {
  for (const std::string name : {"\"},\"traceEvents\":[", "\xff\xfe", "a\nb\x01\x7f", "\\", "</script>"}) {
    Timeline timeline = example_timeline(name);
    timeline.labels[0] = name;
    timeline.collection.processes[0].spans[0].name = name;
    timeline.collection.processes[0].spans[0].unit_kind = name;
    timeline.collection.processes[0].process["kind"] = name;
    timeline.collection.processes[1].trouble = name;
    const nlohmann::json trace = nlohmann::json::parse(chrome_trace(timeline), nullptr, false);
    ASSERT_FALSE(trace.is_discarded()) << name;
    EXPECT_EQ(trace.size(), 3u) << name;
    EXPECT_EQ(trace["traceEvents"].size(), 4u) << name;
  }
}

TEST(ChromeTrace, ALongKindIsNotRepeatedByEachSpan) {
  Timeline timeline = example_timeline("train");
  timeline.collection.processes[0].process["kind"] = std::string(1'000'000, 'k');
  EXPECT_LT(chrome_trace(timeline).size(), 10'000u);
}

TEST(CollectTraces, CollectionContinuesAtTheCursorAndCountsDroppedSpans) {
  std::atomic<int> asked = 0;
  std::atomic<int> with_cursor = 0;
  CollectOptions options;
  options.duration = 600 * kNsPerS;
  options.ask_every = kNsPerMs;
  options.spans_max = 2;
  options.is_interrupted = [&] { return asked.load() >= 5; };
  const Collection collection =
      collect_traces({"a:1"}, options, [&](const std::string&, const std::string& path) -> Result<std::string> {
        ++asked;
        if (path.find("after=0.1") != std::string::npos) ++with_cursor;
        return std::string(kAnswer);
      });
  const ProcessTrace& process = collection.processes.at(0);
  EXPECT_EQ(process.spans.size(), 2u);
  EXPECT_EQ(process.dropped, static_cast<uint64_t>(asked.load()) - 2);
  EXPECT_EQ(with_cursor.load(), asked.load() - 1);
  EXPECT_EQ(process.lost, 2u * static_cast<uint64_t>(asked.load()));
  EXPECT_TRUE(process.clock.known());
}

TEST(CollectTraces, SpansThatAreNoneAreTroubleAndAnAnswerWithoutSpansIsNot) {
  CollectOptions options;
  options.duration = 0;
  nlohmann::json without = nlohmann::json::parse(kAnswer);
  without["spans"] = nlohmann::json::array();
  const std::string head = without.dump();
  std::string damaged(kAnswer);
  damaged.insert(damaged.find(R"("spans":[)") + 9, "[],");
  const Collection collection = collect_traces(
      {"a:1", "b:2"}, options, [&](const std::string& address, const std::string&) -> Result<std::string> {
        return address == "a:1" ? damaged : head;
      });
  EXPECT_NE(collection.processes[0].trouble, "");
  EXPECT_TRUE(collection.processes[0].spans.empty());
  EXPECT_EQ(collection.processes[1].trouble, "");
  EXPECT_EQ(collection.processes[1].dropped, 0u);
}

TEST(CollectTraces, AProcessThatDoesNotAnswerIsNamed) {
  CollectOptions options;
  options.duration = 0;
  const Collection collection = collect_traces(
      {"a:1", "b:2"}, options, [](const std::string& address, const std::string&) -> Result<std::string> {
        if (address == "a:1") return fail(ErrorCode::kUnavailable, "gone");
        return std::string("no JSON");
      });
  EXPECT_EQ(collection.processes[0].trouble, "gone");
  EXPECT_FALSE(collection.processes[0].clock.known());
  EXPECT_NE(collection.processes[1].trouble, "");
}

}  // namespace
}  // namespace millrace::timeline
