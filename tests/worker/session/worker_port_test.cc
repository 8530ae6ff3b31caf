#include "worker/export/worker_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>

#include "monitoring/catalog.h"
#include "monitoring/http/http_client.h"
#include "worker/session/phase_times.h"

/// The values that a training worker serves over HTTP: every counted number of its session, and every metric of the
/// catalog.
namespace millrace::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// Sums in which every number is another one.
Stats worker_port_example() {
  Stats stats;
  stats.bytes_up = 1001;
  stats.bytes_down = 1002;
  stats.payload_bytes_up = 1003;
  stats.payload_bytes_down = 1004;
  stats.raw_bytes_up = 1005;
  stats.raw_bytes_down = 1006;
  stats.history_bytes_saved = 1007;
  stats.history_shortened = 1008;
  stats.history_refused = 1009;
  stats.dense_bytes = 1010;
  stats.rounds = 1011;
  stats.resends = 1012;
  stats.reconnects = 1013;
  stats.duplicates = 1014;
  stats.updates_dropped_stale = 1015;
  stats.updates_dropped_malformed = 1016;
  stats.messages_dropped_unexpected = 1017;
  stats.not_counted = 1018;
  stats.returns = 1019;
  stats.returns_asked_for = 1020;
  stats.entries_void = 1021;
  stats.audit.audits = true;
  stats.audit.checks = 1022;
  stats.by_switch = {.used = true,
                     .at_switch = true,
                     .turns = 1023,
                     .resends = 1024,
                     .timeouts = 1025,
                     .fallbacks = 1026,
                     .came_back = 1027,
                     .congestion_marks = 1028,
                     .packets_lost = 1029,
                     .events = {{"forged", 1030}, {"entries_left_over", 1031}}};
  TensorStats& tensor = stats.tensors.emplace_back();
  tensor.name = "w";
  tensor.entries_sent = 1032;
  tensor.entries_received = 1033;
  tensor.false_positives = 1034;
  tensor.entries_discarded = 1035;
  tensor.dropped_magnitude = 1036;
  tensor.residual_norm = 1037;
  return stats;
}

std::string worker_port_answer(const WorkerPort& port, const std::string& path) {
  constexpr int kLimitMs = 20'000;
  const auto reply = monitoring::http_get("127.0.0.1:" + std::to_string(port.port()), path, kLimitMs);
  EXPECT_TRUE(reply.has_value()) << reply.error().message;
  return reply ? reply->body : std::string();
}

TEST(WorkerPort, ExportsEveryMetricOfTheCatalogAndEveryCount) {
  auto port = WorkerPort::start("127.0.0.1:0", "--http", {.job = "train", .worker = 0, .workers = 1});
  ASSERT_TRUE(port.has_value()) << port.error().message;
  (*port)->update(worker_port_example());
  (*port)->step_done(0.5);
  const std::string metrics = worker_port_answer(**port, "/metrics");
  for (const monitoring::MetricInfo& info : monitoring::worker_metric_infos()) {
    const std::string series = info.kind == monitoring::MetricKind::kHistogram ? "_count" : "";
    EXPECT_THAT(metrics, HasSubstr("\n" + std::string(info.name) + series)) << "no code sets it";
  }
  for (const char* line : {"millrace_worker_dropped_total{reason=\"unexpected\"} 1017\n",
                           "millrace_worker_reconnects_total{job=\"train\"} 1013\n",
                           "millrace_worker_contribution_bytes_total{job=\"train\"} 1003\n",
                           "millrace_worker_update_bytes_total{job=\"train\"} 1004\n",
                           "millrace_worker_dense_bytes_total{job=\"train\"} 1010\n",
                           "millrace_worker_step_seconds_count{job=\"train\"} 1\n",
                           "millrace_worker_switch_total{event=\"packet_lost\",job=\"train\"} 1029\n",
                           "millrace_worker_switch_total{event=\"forged\",job=\"train\"} 1030\n"}) {
    EXPECT_THAT(metrics, HasSubstr(line));
  }
  // A number that is no metric is in the status: each number once at least.
  const std::string status = worker_port_answer(**port, "/status");
  for (int number = 1001; number <= 1037; ++number) {
    const std::string text = std::to_string(number);
    EXPECT_TRUE(metrics.find(" " + text + "\n") != std::string::npos || status.find(":" + text) != std::string::npos)
        << number;
  }
}

TEST(WorkerPort, CountsWhatGrew) {
  auto port = WorkerPort::start("127.0.0.1:0", "--http", {.job = "train", .worker = 0, .workers = 1});
  ASSERT_TRUE(port.has_value()) << port.error().message;
  Stats stats = worker_port_example();
  (*port)->update(stats);
  stats.by_switch.events["forged"] += 10;
  stats.by_switch.events["replayed"] = 3;
  (*port)->update(stats);
  (*port)->update(stats);
  const std::string metrics = worker_port_answer(**port, "/metrics");
  EXPECT_THAT(metrics, HasSubstr("millrace_worker_switch_total{event=\"forged\",job=\"train\"} 1040\n"));
  EXPECT_THAT(metrics, HasSubstr("millrace_worker_switch_total{event=\"replayed\",job=\"train\"} 3\n"));
}

TEST(WorkerPort, BeginsAtZero) {
  auto port = WorkerPort::start("127.0.0.1:0", "--http", {.job = "train", .worker = 0, .workers = 1});
  ASSERT_TRUE(port.has_value()) << port.error().message;
  const std::string metrics = worker_port_answer(**port, "/metrics");
  for (const char* line :
       {"millrace_worker_steps_total{job=\"train\"} 0\n", "millrace_worker_reconnects_total{job=\"train\"} 0\n",
        "millrace_worker_dropped_total{reason=\"malformed\"} 0\n",
        "millrace_worker_network_bytes_total{direction=\"out\",job=\"train\"} 0\n",
        "millrace_worker_step_seconds_count{job=\"train\"} 0\n"}) {
    EXPECT_THAT(metrics, HasSubstr(line));
  }
}

TEST(WorkerPort, AsksItsSourceForEveryAnswer) {
  Stats stats = worker_port_example();
  std::optional<std::string> unhealthy;
  auto port = WorkerPort::start("127.0.0.1:0", "WorkerConfig::http", {.job = "train", .worker = 0, .workers = 1},
                                {.stats = [&] { return stats; }, .unhealthy = [&] { return unhealthy; }, .trace = {}});
  ASSERT_TRUE(port.has_value()) << port.error().message;
  EXPECT_THAT(worker_port_answer(**port, "/metrics"), HasSubstr("millrace_worker_steps_total{job=\"train\"} 1011\n"));
  stats.rounds += 5;
  EXPECT_THAT(worker_port_answer(**port, "/status"), HasSubstr("\"rounds\":1016"));
  EXPECT_THAT(worker_port_answer(**port, "/metrics"), HasSubstr("millrace_worker_steps_total{job=\"train\"} 1016\n"));
  EXPECT_THAT(worker_port_answer(**port, "/healthz"), HasSubstr("ok"));
  unhealthy = "the session has ended";
  EXPECT_THAT(worker_port_answer(**port, "/healthz"), HasSubstr("the session has ended"));
}

TEST(WorkerPort, TheStatusHasTheTimesOfThePhases) {
  Result<std::string> said = fail(ErrorCode::kUnavailable, "this worker has not joined its job yet");
  std::string asked;
  const auto trace = [&](std::string_view query) {
    asked = query;
    return said;
  };
  auto port = WorkerPort::start("127.0.0.1:0", "--http", {.job = "train", .worker = 0, .workers = 1},
                                {.stats = {}, .unhealthy = {}, .trace = trace});
  ASSERT_TRUE(port.has_value()) << port.error().message;
  (*port)->update(worker_port_example());
  EXPECT_THAT(worker_port_answer(**port, "/status"), AllOf(HasSubstr("\"rounds\":1011"), Not(HasSubstr("select"))));
  PhaseTimes phases;
  phases.add(StepPhase::kSelect, 250'000'000);
  phases.add(StepPhase::kSelect, 250'000'000);
  phases.add(StepPhase::kEncode, 1'500'000'000);
  said = phases.json();
  EXPECT_THAT(worker_port_answer(**port, "/status"),
              AllOf(HasSubstr("\"rounds\":1011"), HasSubstr("\"select_seconds\":0.5"),
                    HasSubstr("\"encode_seconds\":1.5"), HasSubstr("\"apply_seconds\":0.0")));
  EXPECT_EQ(asked, "phases");
}

TEST(WorkerPort, AnAddressThatIsNoneNamesWhatGaveIt) {
  const auto port = WorkerPort::start("nowhere", "WorkerConfig::http", {});
  ASSERT_FALSE(port.has_value());
  EXPECT_THAT(port.error().message, HasSubstr("WorkerConfig::http"));
}

}  // namespace
}  // namespace millrace::worker
