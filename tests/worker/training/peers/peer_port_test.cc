#include "worker/training/peers/peer_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "monitoring/http/http_client.h"
#include "tests/worker/training/peers/on_ranks.h"
#include "tests/worker/training/peers/toy_data.h"

/// The values that a rank of millrace-peer serves over HTTP, and the run's reports to it.
namespace millrace::training {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string peer_port_answer(const PeerPort& port, const std::string& path) {
  constexpr int kLimitMs = 20'000;
  const auto reply = monitoring::http_get("127.0.0.1:" + std::to_string(port.port()), path, kLimitMs);
  EXPECT_TRUE(reply.has_value()) << reply.error().message;
  return reply ? reply->body : std::string();
}

/// Sums in which every number is another one.
PeerProgress peer_port_example() {
  PeerProgress progress;
  progress.steps = 1001;
  progress.dense_bytes = 1002;
  progress.counts.compute_s = 1003;
  progress.counts.waiting_s = 1004;
  progress.counts.entries = 1005;
  progress.counts.sum_entries = 1006;
  progress.counts.residual_norm = 1007;
  progress.counts.bytes_sent = 5;
  progress.traffic.bytes_sent = 1008;
  progress.traffic.bytes_received = 1009;
  progress.traffic.messages_unexpected = 1010;
  return progress;
}

std::unique_ptr<PeerPort> started(ExchangePath path) {
  auto port = PeerPort::start({.address = "127.0.0.1:0"}, {.job = "train", .rank = 1, .ranks = 4, .path = path});
  EXPECT_TRUE(port.has_value()) << port.error().message;
  return std::move(*port);
}

TEST(PeerPort, ExportsEveryMetricOfTheCatalogAndEveryCountOnce) {
  const auto port = started(ExchangePath::kPeers);
  EXPECT_THAT(peer_port_answer(*port, "/metrics"), HasSubstr("millrace_peer_steps_total{job=\"train\"} 0\n"));
  port->update(peer_port_example());
  port->update(peer_port_example());
  port->step_done(0.5);
  const std::string metrics = peer_port_answer(*port, "/metrics");
  for (const monitoring::MetricInfo& info : monitoring::peer_metric_infos()) {
    const std::string series = info.kind == monitoring::MetricKind::kHistogram ? "_count" : "";
    EXPECT_THAT(metrics, HasSubstr("\n" + std::string(info.name) + series + "{")) << "no code sets it";
  }
  for (int number = 1001; number <= 1010; ++number)
    EXPECT_THAT(metrics, HasSubstr("} " + std::to_string(number) + "\n"));
  EXPECT_THAT(metrics, HasSubstr("millrace_peer_network_bytes_total{direction=\"out\",job=\"train\"} 1008\n"));
  EXPECT_THAT(metrics, HasSubstr("millrace_peer_step_seconds_count{job=\"train\"} 1\n"));
  EXPECT_THAT(metrics, HasSubstr("millrace_peer_ranks{job=\"train\"} 4\n"));
  EXPECT_THAT(metrics, Not(HasSubstr("millrace_worker_")));
  const std::string status = peer_port_answer(*port, "/status");
  for (const char* part : {"\"rank\":1", "\"ranks\":4", "\"steps\":1001", "\"sent_bytes\":1013", "\"path\":\"peers\""})
    EXPECT_THAT(status, HasSubstr(part));
}

TEST(PeerPort, OverServersTheSessionsMetricsAreThereAsWell) {
  const auto port = started(ExchangePath::kServers);
  EXPECT_THAT(peer_port_answer(*port, "/metrics"), HasSubstr("millrace_worker_steps_total{job=\"train\"} 0\n"));
  PeerProgress progress = peer_port_example();
  progress.counts.session.emplace().rounds = 7;
  port->update(progress);
  port->update_done(0.25);
  const std::string metrics = peer_port_answer(*port, "/metrics");
  EXPECT_THAT(metrics, HasSubstr("millrace_worker_steps_total{job=\"train\"} 7\n"));
  EXPECT_THAT(metrics, HasSubstr("millrace_worker_step_seconds_count{job=\"train\"} 1\n"));
  EXPECT_THAT(metrics, HasSubstr("millrace_peer_steps_total{job=\"train\"} 1001\n"));
}

TEST(PeerPort, ACounterStaysWhileUpdatesReturnEntries) {
  const auto port = started(ExchangePath::kServers);
  PeerProgress progress = peer_port_example();
  port->update(progress);
  progress.counts.entries = 900;
  port->update(progress);
  EXPECT_THAT(peer_port_answer(*port, "/metrics"),
              HasSubstr("millrace_peer_contribution_entries_total{job=\"train\"} 1005\n"));
  progress.counts.entries = 2005;
  port->update(progress);
  EXPECT_THAT(peer_port_answer(*port, "/metrics"),
              HasSubstr("millrace_peer_contribution_entries_total{job=\"train\"} 2005\n"));
}

TEST(PeerPort, EachRankHasAPortOfItsOwn) {
  EXPECT_EQ(http_address_of_rank("127.0.0.1:9401", 0).value(), "127.0.0.1:9401");
  EXPECT_EQ(http_address_of_rank("127.0.0.1:9401", 12).value(), "127.0.0.1:9413");
  EXPECT_EQ(http_address_of_rank("[::1]:9401", 2).value(), "[::1]:9403");
  EXPECT_EQ(http_address_of_rank("host:65533", 2).value(), "host:65535");
  EXPECT_EQ(http_address_of_rank("127.0.0.1:0", 3).value(), "127.0.0.1:0");
  EXPECT_THAT(http_address_of_rank("host:65533", 3).error().message,
              HasSubstr("rank 3 would listen on the port 65536"));
  for (const char* none : {"", "host", "host:", ":9401", "host:x", "::1:9401"})
    EXPECT_EQ(http_address_of_rank(none, 1).error().code, ErrorCode::kInvalidArgument) << none;
}

TEST(PeerPort, ServesTheTimelineOfARecorder) {
  monitoring::SpanRecorder spans;
  const auto port =
      PeerPort::start({.address = "127.0.0.1:0"}, {.job = "train", .rank = 1, .ranks = 4, .path = ExchangePath::kPeers},
                      {.progress = {}, .unhealthy = {}, .spans = &spans});
  ASSERT_TRUE(port.has_value()) << port.error().message;
  EXPECT_FALSE(spans.on());
  EXPECT_THAT(peer_port_answer(**port, "/trace?seconds=60"), HasSubstr("\"spans\":[]"));
  EXPECT_TRUE(spans.on());
  spans.record({.begin = 1, .end = 2, .step = 7, .name = monitoring::SpanName::kExchange});
  const std::string trace = peer_port_answer(**port, "/trace");
  for (const char* part : {"\"kind\":\"rank\"", "\"job\":\"train\"", "\"worker\":1", "\"exchange\",1,2,7,"})
    EXPECT_THAT(trace, HasSubstr(part));
  EXPECT_THAT(peer_port_answer(*started(ExchangePath::kPeers), "/trace"), HasSubstr("no such page"));
}

TEST(PeerRun, RecordsThePhasesOfEveryStepWhileTheRecorderIsOn) {
  constexpr uint32_t kRanks = 3;
  constexpr uint64_t kSteps = 8;
  using Counts = std::map<std::string_view, uint64_t>;
  const Dataset data = testing::toy_data(60, 40, 3);
  // The exchange takes the rest back into the residual, and the optimizer applies the sum.
  const std::map<std::string, Counts> expected = {
      {"sgd", {{"select", kSteps}, {"encode", kSteps}, {"exchange", kSteps}, {"apply", 2 * kSteps}}},
      {"scd", {{"encode", kSteps}, {"exchange", kSteps}, {"apply", kSteps}}}};
  for (const auto& [optimizer, counts] : expected) {
    for (const uint32_t asynchronous : {0U, 2U}) {
      for (const bool on : {false, true}) {
        PeerTrainOptions options;
        options.optimizer = find_optimizer(optimizer);
        options.options = default_options(*options.optimizer);
        options.options.batch_rows = 5;
        options.options.job.consistency = Synchronous{asynchronous};
        options.epochs = 100;
        options.steps_max = kSteps;
        const auto all = testing::on_ranks<Counts>(kRanks, peer::Progress::kByThread, [&](peer::PeerGroup& group) {
          monitoring::SpanRecorder spans;
          if (on) spans.keep_on(monotonic_now_ns(), monotonic_now_ns() + 3600 * kNsPerS);
          PeerTrainObserver observer;
          observer.spans = &spans;
          const std::atomic<bool> stop = false;
          const Dataset share = testing::share_of(data, group.rank(), kRanks);
          const auto result = train_over_peers(group, share, nullptr, options, observer, stop);
          EXPECT_TRUE(result.has_value()) << result.error().message;
          Counts found;
          uint64_t steps_seen = 0;
          TimeNs end = 0;
          for (const auto& taken : spans.read(std::nullopt, 1'000).spans) {
            ++found[monitoring::span_name(taken.span.name)];
            steps_seen |= uint64_t{1} << taken.span.step;
            EXPECT_GE(taken.span.begin, end) << "spans of the thread that trains are apart";
            end = taken.span.end;
          }
          EXPECT_EQ(steps_seen, on ? (uint64_t{1} << kSteps) - 1 : 0);
          return found;
        });
        for (const Counts& one : all) EXPECT_EQ(one, on ? counts : Counts()) << optimizer << ", " << asynchronous;
      }
    }
  }
}

TEST(PeerRun, TellsItsObserverOfEveryStepAndItsSums) {
  constexpr uint32_t kRanks = 3;
  constexpr uint64_t kDimension = 40;
  const Dataset data = testing::toy_data(60, kDimension, 3);
  struct Told {
    uint64_t steps = 0;
    double seconds = 0;
    uint64_t epochs = 0;
    PeerProgress last;
    std::string error;
  };
  for (const uint32_t asynchronous : {0U, 2U}) {
    PeerTrainOptions options;
    options.optimizer = find_optimizer("sgd");
    options.options.batch_rows = 5;
    options.options.job.consistency = Synchronous{asynchronous};
    options.options.job.select = Selection::top_k(Amount::count(10));
    options.epochs = 2;
    const auto all = testing::on_ranks<Told>(kRanks, peer::Progress::kByThread, [&](peer::PeerGroup& group) {
      Told told;
      PeerTrainObserver observer;
      observer.on_epoch = [&](const PeerEpoch&) { ++told.epochs; };
      observer.on_step = [&](double seconds) {
        ++told.steps;
        told.seconds += seconds;
      };
      observer.on_progress = [&](const PeerProgress& progress) { told.last = progress; };
      observer.on_update = [&](double) { told.error = "an update of a session, over peers"; };
      const std::atomic<bool> stop = false;
      const Dataset share = testing::share_of(data, group.rank(), kRanks);
      const auto result = train_over_peers(group, share, nullptr, options, observer, stop);
      if (!result) told.error = result.error().message;
      return told;
    });
    for (const Told& one : all) {
      EXPECT_EQ(one.error, "");
      EXPECT_EQ(one.epochs, 2u);
      EXPECT_EQ(one.steps, 8u);
      EXPECT_GT(one.seconds, 0);
      EXPECT_EQ(one.last.steps, 8u);
      EXPECT_EQ(one.last.dense_bytes, 8 * 4 * (kDimension + 1));
      EXPECT_LE(one.last.counts.entries, 8u * 10);
      EXPECT_GT(one.last.counts.entries, 0u);
      EXPECT_GE(one.last.counts.sum_entries, one.last.counts.entries) << "the sum has all that a rank has";
      EXPECT_GT(one.last.counts.residual_norm, 0);
      EXPECT_GT(one.last.traffic.bytes_sent, 0u);
      EXPECT_FALSE(one.last.counts.session.has_value());
    }
  }
}

}  // namespace
}  // namespace millrace::training
