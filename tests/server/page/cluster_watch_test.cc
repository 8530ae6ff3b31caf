#include "server/page/cluster_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <new>
#include <nlohmann/json.hpp>
#include <string>

#include "monitoring/status/status_json.h"
#include "tests/support/memory_table.h"

namespace millrace::server {
namespace {

using ::testing::HasSubstr;

std::string status_of(uint32_t shard, const std::string& address) {
  StatusReport report;
  report.shard = shard;
  report.shard_count = 3;
  report.address = address;
  report.software = "<b>build</b>";
  return monitoring::status_json(report);
}

/// Three shards in a table in memory, and the answers of the HTTP ports of the processes.
class ClusterWatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (uint32_t shard = 0; shard < 3; ++shard) {
      auto table = testing::open_memory_table(state_);
      table->introduce({address(shard), http(shard), "millrace"});
      const auto incarnation = table->start_shard(shard, 3, address(shard));
      ASSERT_TRUE(incarnation);
      ASSERT_TRUE(table->hold_lease(shard, *incarnation));
      tables_.push_back(std::move(table));
      answers_[http(shard)] = status_of(shard, address(shard));
    }
  }
  static std::string address(uint32_t shard) { return "tcp://host" + std::to_string(shard) + ":7600"; }
  static std::string http(uint32_t shard) { return "host" + std::to_string(shard) + ":7700"; }
  ClusterWatch::Sources sources(std::vector<std::string> workers) {
    return {
        .open_table = [this]() -> Result<std::unique_ptr<protocol::MembershipTable>> {
          if (!table_opens_) return fail(ErrorCode::kIo, "no such table");
          return testing::open_memory_table(state_);
        },
        .fetch = [this](const std::string& at) -> Result<std::string> {
          if (throws_) throw std::bad_alloc();
          const auto found = answers_.find(at);
          if (found == answers_.end() || !on_fetch_(at)) return fail(ErrorCode::kUnavailable, at + " does not answer");
          return found->second;
        },
        .own_address = address(0),
        .own_status = [] { return status_of(0, address(0)); },
        .workers = std::move(workers),
    };
  }
  nlohmann::json watched(std::vector<std::string> workers = {}) {
    ClusterWatch watch(sources(std::move(workers)));
    watch.await_collection();
    return nlohmann::json::parse(watch.json());
  }

  std::shared_ptr<testing::MemoryTableState> state_ = testing::make_memory_table_state();
  std::vector<std::unique_ptr<protocol::MembershipTable>> tables_;
  std::map<std::string, std::string> answers_;
  std::function<bool(const std::string& at)> on_fetch_ = [](const std::string&) { return true; };
  bool table_opens_ = true;
  bool throws_ = false;
};

TEST_F(ClusterWatchTest, CollectsEveryShardOfTheTable) {
  answers_.erase(http(0));  // its own status does not come over HTTP
  const auto said = watched();
  ASSERT_EQ(said["shards"].size(), 3u);
  for (uint32_t shard = 0; shard < 3; ++shard) {
    const auto& row = said["shards"][shard];
    EXPECT_EQ(row["shard"], shard);
    EXPECT_EQ(row["state"], "serving");
    EXPECT_EQ(row["http"], http(shard));
    EXPECT_EQ(row["status"]["shard"], shard);
    EXPECT_FALSE(row.contains("problem"));
  }
}

TEST_F(ClusterWatchTest, NamesAShardThatDoesNotAnswerOrIsAnotherOne) {
  answers_[http(1)] = status_of(2, address(2));
  answers_.erase(http(2));
  const auto said = watched();
  EXPECT_THAT(said["shards"][1]["problem"].get<std::string>(), HasSubstr("is not shard 1"));
  EXPECT_THAT(said["shards"][2]["problem"].get<std::string>(), HasSubstr("host2:7700 does not answer"));
  EXPECT_FALSE(said["shards"][1].contains("status"));
  EXPECT_FALSE(said["shards"][2].contains("status"));
}

TEST_F(ClusterWatchTest, AShardThatDrainsServesWithoutALease) {
  for (const uint32_t shard : {0u, 1u})
    ASSERT_EQ(tables_[shard]->set_drain(shard, 1, protocol::DrainNote{.incarnation = 1, .refusal = {}}), true);
  ASSERT_TRUE(tables_[0]->hold_leaving_lease(0, 1));
  // Once the first collection has read the table. At the second one the process does not answer.
  on_fetch_ = [this, asked = 0](const std::string& at) mutable {
    if (at != http(1)) return true;
    if (asked == 0) (void)tables_[1]->hold_leaving_lease(1, 1);
    return asked++ == 0;
  };
  ClusterWatch watch(sources({}));
  watch.await_collection();
  const auto first = nlohmann::json::parse(watch.json())["shards"];
  EXPECT_EQ(first[0]["state"], "draining");
  EXPECT_EQ(first[0]["status"]["shard"], 0) << "its own status needs no port";
  EXPECT_EQ(first[1]["state"], "draining");
  EXPECT_EQ(first[1]["status"]["shard"], 1);
  nlohmann::json next = first;
  for (const TimeNs until = monotonic_now_ns() + 10 * kNsPerS; next == first && monotonic_now_ns() < until;)
    next = nlohmann::json::parse(watch.json())["shards"];
  EXPECT_EQ(next[1]["state"], "draining");
  EXPECT_EQ(next[1]["http"], http(1));
  EXPECT_EQ(next[1]["problem"], http(1) + " does not answer") << "it is asked there";
  tables_[1].reset();
  EXPECT_EQ(watched()["shards"][1]["state"], "gone") << "its process has ended";
}

TEST_F(ClusterWatchTest, SurvivesAnswersThatAreNoStatus) {
  for (const std::string& answer :
       {std::string(), std::string("[]"), std::string("{"), std::string("\"x\""), std::string(100'000, '[')}) {
    answers_[http(1)] = answer;
    EXPECT_TRUE(watched()["shards"][1].contains("problem")) << answer.substr(0, 9);
  }
}

TEST_F(ClusterWatchTest, TakesKnownFieldsOfAWorkerAlone) {
  answers_["w0:1"] = R"({"job": "a\u0000b", "worker": 3, "rounds": 8, "residual_norm": 0.5, "select_seconds": 2e-9,)"
                     R"("dense_bytes": "x", "evil": {"a": [[]]}})";
  answers_["w1:1"] = R"({"worker": 3})";
  const auto said = watched({"w0:1", "w1:1", "w2:1"});
  EXPECT_EQ(
      said["workers"][0]["status"],
      nlohmann::json({{"job", "a?b"}, {"worker", 3}, {"rounds", 8}, {"residual_norm", 0.5}, {"select_seconds", 2e-9}}));
  EXPECT_EQ(said["workers"][1]["problem"], "no status of a worker");
  EXPECT_EQ(said["workers"][2]["problem"], "w2:1 does not answer");
}

TEST_F(ClusterWatchTest, SaysThatTheTableCannotBeRead) {
  table_opens_ = false;
  const auto said = watched();
  EXPECT_EQ(said["table_problem"], "no such table");
  EXPECT_TRUE(said["shards"].empty());
}

TEST_F(ClusterWatchTest, AShardWithoutALeaseIsGoneAndNotAsked) {
  tables_[1].reset();
  const auto said = watched();
  EXPECT_EQ(said["shards"][1]["state"], "gone");
  EXPECT_FALSE(said["shards"][1].contains("status"));
}

TEST_F(ClusterWatchTest, TellsShardsThatListenAtEveryAddressApart) {
  for (uint32_t shard = 0; shard < 3; ++shard) {
    tables_[shard] = testing::open_memory_table(state_);
    tables_[shard]->introduce({address(shard), "0.0.0.0:7700", "millrace"});
    ASSERT_TRUE(tables_[shard]->hold_lease(shard, 1));
  }
  answers_.erase(http(0));
  const auto said = watched();
  for (uint32_t shard = 0; shard < 3; ++shard) EXPECT_EQ(said["shards"][shard]["status"]["shard"], shard);
}

TEST_F(ClusterWatchTest, SurvivesASourceThatThrows) {
  throws_ = true;
  const auto said = watched();
  EXPECT_EQ(said["shards"][1]["problem"], "no memory");
  EXPECT_TRUE(said["shards"][0].contains("status"));
}

TEST_F(ClusterWatchTest, LeavesOutAStatusOverItsLimits) {
  answers_[http(1)].resize(ClusterWatch::kStatusBytesMax + 1, ' ');
  // Two bytes a member: a hostile process needs few bytes.
  std::string members = "0";
  for (int i = 1; i < 4'096; ++i) members += ",0";
  std::string jobs;
  for (int i = 0; i < 5; ++i) jobs += (i == 0 ? "" : ",") + std::string(R"({"members":[)") + members + "]}";
  answers_[http(2)] = R"({"shard":2,"shard_count":3,"address":")" + address(2) + R"(","jobs":[)" + jobs + "]}";
  const auto said = watched();
  EXPECT_EQ(said["shards"][1]["problem"], "left out: its status exceeds 2 MiB");
  EXPECT_THAT(said["shards"][2]["problem"].get<std::string>(), HasSubstr("members"));
  EXPECT_TRUE(said["shards"][0].contains("status"));
}

TEST(ReachableHttpTest, NamesAHostWhereTheProcessListensAtAll) {
  EXPECT_EQ(reachable_http({"tcp://host:7600", "0.0.0.0:7700", ""}), "host:7700");
  EXPECT_EQ(reachable_http({"tcp://host:7600", "[::]:7700", ""}), "host:7700");
  EXPECT_EQ(reachable_http({"tcp://host:7600", "10.0.0.1:7700", ""}), "10.0.0.1:7700");
  EXPECT_EQ(reachable_http({"tcp://host:7600", "", ""}), "");
  EXPECT_EQ(reachable_http({"nonsense", "0.0.0.0:7700", ""}), "");
}

}  // namespace
}  // namespace millrace::server
