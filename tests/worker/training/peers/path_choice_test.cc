#include "worker/training/exchange/path_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "tests/worker/option_texts.h"
#include "tests/worker/training/peers/on_ranks.h"
#include "tests/worker/training/peers/shards.h"
#include "tests/worker/training/peers/toy_data.h"
#include "worker/training/exchange/path_measure.h"

/// --path auto: the choice of made-up speeds, and what ranks and real shards measure of each other.
namespace millrace::training {
namespace {

using peer::AlgorithmId;
using ::testing::HasSubstr;
using testing::on_ranks;
using testing::share_of;
using testing::toy_data;

/// A gigabit link among ranks; servers' hosts answer as fast.
PathQuestion lan(uint64_t dimension, uint64_t k, uint32_t ranks) {
  return {.shape = {.dimension = dimension, .k = k, .ranks = ranks},
          .speeds = {.latency_s = 30e-6, .byte_s = 8e-9, .add_entry_s = 2e-9, .add_value_s = 1e-9},
          .server_latency_s = 30e-6,
          .shards = 2};
}

TEST(PathChoice, ItIsThePathThatTakesLessTimeByThePlannersModels) {
  for (const uint32_t ranks : {2U, 3U, 8U, 64U}) {
    for (const uint32_t shards : {1U, 2U, 8U, 64U}) {
      for (const uint64_t k : {1U, 1U << 8, 1U << 14, 1U << 20}) {
        for (const auto& [algorithm, keeps_topk] :
             {std::pair{AlgorithmId::kAuto, false}, std::pair{AlgorithmId::kDenseRing, false},
              std::pair{AlgorithmId::kRedsyncAllgather, false}, std::pair{AlgorithmId::kOktopk, true}}) {
          PathQuestion asked = lan(1 << 20, k, ranks);
          asked.shards = shards;
          asked.algorithm = algorithm;
          asked.keeps_topk = keeps_topk;
          const PathChoice choice = choose_path(asked);
          const auto ranking =
              peer::rank_with_servers(asked.shape, asked.speeds, peer::Wanted::kAnyResult, asked.shards);
          const auto first = std::ranges::find_if(ranking, [&](const peer::PlannedCost& one) {
            if (one.info.name == (keeps_topk ? "servers_topk" : "servers")) return true;
            if (one.info.name.starts_with("servers")) return false;
            if (algorithm == AlgorithmId::kAuto) return one.info.result == peer::ResultKind::kExactSum;
            return one.info.id == algorithm;
          });
          SCOPED_TRACE(path_choice_text(choice));
          const bool over_servers = first->info.name.starts_with("servers");
          EXPECT_EQ(path_name(choice.path), over_servers ? "server" : "peers");
          EXPECT_EQ((over_servers ? choice.servers : choice.peers).total_s(), first->total_s());
          EXPECT_LE(first->total_s(), (over_servers ? choice.peers : choice.servers).total_s());
        }
      }
    }
  }
}

TEST(PathChoice, AnAlgorithmThatSendsMuchMoreLosesToServers) {
  PathQuestion asked = lan(1 << 22, 100, 4);
  asked.algorithm = AlgorithmId::kDenseRing;
  EXPECT_EQ(choose_path(asked).path, ExchangePath::kServers) << "16 MiB around a ring, for 100 entries";
  asked.algorithm = AlgorithmId::kAuto;
  EXPECT_EQ(choose_path(asked).path, ExchangePath::kPeers) << "two messages along the longest chain, to servers eight";
  EXPECT_DOUBLE_EQ(choose_path(asked).peers.latency_s, 2 * 30e-6);
  EXPECT_DOUBLE_EQ(choose_path(asked).servers.latency_s, 8 * 30e-6);
}

TEST(PathChoice, TheFartherTheServersTheLessTheyAreTaken) {
  PathQuestion asked = lan(1 << 22, 100, 4);
  asked.algorithm = AlgorithmId::kDenseRing;
  const double peers_s = choose_path(asked).peers.total_s();
  double before = 0;
  bool was_peers = false;
  for (const double latency_s : {0.0, 30e-6, 1e-3, 0.1, 10.0}) {
    asked.server_latency_s = latency_s;
    const PathChoice choice = choose_path(asked);
    EXPECT_GE(choice.servers.total_s(), before);
    EXPECT_EQ(choice.peers.total_s(), peers_s);
    const bool peers = choice.path == ExchangePath::kPeers;
    EXPECT_TRUE(peers || !was_peers) << latency_s;
    before = choice.servers.total_s();
    was_peers = peers;
  }
  EXPECT_TRUE(was_peers);
}

TEST(PathChoice, AServerMessageTakesAtLeastAsLongAsAPeerMessage) {
  PathQuestion asked = lan(1 << 20, 1'000, 8);
  const double alike = choose_path(asked).servers.total_s();
  asked.server_latency_s = 0;  // the kernel accepts a connection: no process was woken for it
  EXPECT_EQ(choose_path(asked).servers.total_s(), alike);
  asked.server_latency_s = 60e-6;
  EXPECT_DOUBLE_EQ(choose_path(asked).servers.latency_s, 2 * 8 * 60e-6);
  EXPECT_DOUBLE_EQ(choose_path(asked).peers.latency_s, choose_path(lan(1 << 20, 1'000, 8)).peers.latency_s);
}

TEST(PathChoice, WhereBothTakeTheSameItIsPeers) {
  PathQuestion asked = lan(1'000, 10, 4);
  asked.speeds = {.latency_s = 0, .byte_s = 0, .add_entry_s = 0, .add_value_s = 0};
  asked.server_latency_s = 0;
  EXPECT_EQ(choose_path(asked).path, ExchangePath::kPeers);
  PathQuestion alone = lan(1'000, 10, 1);
  alone.algorithm = AlgorithmId::kDenseRing;
  EXPECT_EQ(choose_path(alone).path, ExchangePath::kPeers) << "one rank has the sum already";
}

TEST(PathChoice, TheTextHasBothTimesAndTheNumbersBehindThem) {
  PathQuestion asked = lan(1 << 20, 1'000, 8);
  asked.algorithm = AlgorithmId::kOktopk;
  const std::string text = path_choice_text(choose_path(asked));
  EXPECT_THAT(text, HasSubstr("(oktopk)"));
  EXPECT_THAT(text, HasSubstr("(2 shards)"));
  EXPECT_THAT(text, HasSubstr("1000 of 1048576 entries a rank"));
  EXPECT_THAT(text, HasSubstr("0.125 GB/s"));
}

TEST(EntriesOfAStep, AStepHasTheEntriesOfTheFirstBatchOrTheSelection) {
  const Dataset data = toy_data(50, 40, 1);
  OptimizerOptions options;
  for (const uint32_t batch : {1U, 2U, 20U, 1'000U}) {
    options.batch_rows = batch;
    millrace::testing::set_option(options.job, "select", "none");
    std::set<uint32_t> features;
    for (size_t row = 0; row < std::min<size_t>(batch, 50); ++row) {
      for (const uint32_t index : data.row(row).indices) features.insert(index);
    }
    const uint64_t all = features.size() + 1;
    EXPECT_EQ(entries_of_a_step(data, options), all);
    millrace::testing::set_option(options.job, "select", "topk:6");
    EXPECT_EQ(entries_of_a_step(data, options), std::min<uint64_t>(6, all));
    millrace::testing::set_option(options.job, "momentum", "correction:0.9");
    EXPECT_EQ(entries_of_a_step(data, options), 6) << "a velocity has more entries than a batch";
    millrace::testing::set_option(options.job, "momentum", "none");
    millrace::testing::set_option(options.job, "select", "threshold:0.5");
    EXPECT_EQ(entries_of_a_step(data, options), all) << "at most";
  }
  EXPECT_EQ(entries_of_a_step(toy_data(0, 40, 1), options), 1) << "a rank without rows has the intercept";
}

TEST(MeasurePaths, AllRanksHaveOneChoiceOfNumbersThatTheyMeasured) {
  const testing::Shards shards(2);
  const Dataset data = toy_data(60, 30, 1);
  for (const uint32_t ranks : {1U, 3U}) {
    for (const auto& [algorithm, select, codec] :
         {std::tuple{AlgorithmId::kAuto, "none", "raw"}, std::tuple{AlgorithmId::kDenseRing, "topk:5", "gap+qsgd4"},
          std::tuple{AlgorithmId::kOktopk, "topk:5", "gap+raw"}}) {
      OptimizerOptions options;
      options.me.shards = shards.addresses();
      options.algorithm = algorithm;
      millrace::testing::set_option(options.job, "select", select);
      if (std::string(codec) != "raw") millrace::testing::set_option(options.job, "codec_up", codec);
      const auto all = on_ranks<Result<PathChoice>>(ranks, peer::Progress::kByCaller, [&](peer::PeerGroup& group) {
        return measure_paths(group, share_of(data, group.rank(), ranks), options);
      });
      for (const Result<PathChoice>& one : all) {
        ASSERT_TRUE(one.has_value()) << one.error().message;
        const PathQuestion& asked = one->question;
        EXPECT_EQ(one->path, all.front()->path);
        EXPECT_EQ(path_choice_text(*one), path_choice_text(*all.front()));
        EXPECT_EQ(choose_path(asked).path, one->path);
        EXPECT_EQ(asked.shape.dimension, data.dimension + 1);
        EXPECT_EQ(asked.shape.ranks, ranks);
        EXPECT_EQ(asked.shards, 2);
        EXPECT_EQ(asked.algorithm, algorithm);
        EXPECT_EQ(asked.keeps_topk, algorithm == AlgorithmId::kOktopk);
        EXPECT_GT(asked.server_latency_s, 0);
        EXPECT_GT(asked.speeds.latency_s, 0);
        EXPECT_EQ(asked.speeds.select.topk_s > 0, algorithm == AlgorithmId::kOktopk);
        EXPECT_EQ(asked.speeds.contribution.encode_s > 0, std::string(codec) != "raw");
        EXPECT_EQ(asked.shape.k, std::string(select) == "none" ? 31U : 5U);
      }
    }
  }
}

TEST(MeasurePaths, AServerThatCannotBeReachedIsEveryRanksError) {
  const testing::Shards shards(1);
  OptimizerOptions options;
  options.me.shards = {shards.addresses().front(), "tcp://127.0.0.1:1"};
  options.me.connect_timeout = std::chrono::milliseconds(1);
  const Dataset data = toy_data(10, 5, 1);
  const auto all = on_ranks<Result<PathChoice>>(
      2, peer::Progress::kByCaller, [&](peer::PeerGroup& group) { return measure_paths(group, data, options); });
  for (const Result<PathChoice>& one : all) {
    ASSERT_FALSE(one.has_value());
    EXPECT_EQ(one.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(one.error().message, HasSubstr("shard 1 at tcp://127.0.0.1:1 could not be reached"));
  }
}

}  // namespace
}  // namespace millrace::training
