#include "server/page/shard_paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "monitoring/http/http_port.h"
#include "protocol/address/stream_sockets.h"
#include "tests/support/memory_table.h"

namespace millrace::server {
namespace {

using ::testing::HasSubstr;

/// A shard 0 that asks, and a shard 1 with a port for workers and an HTTP port.
class ShardPathsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto listeners = protocol::listen_on_host({.host = "127.0.0.1", .port = 0});
    ASSERT_TRUE(listeners);
    workers_ = std::move(*listeners);
    monitoring::HttpHandlers handlers{.metrics_text = [] { return std::string(); },
                                      .unhealthy = [] { return std::optional<std::string>(); },
                                      .status_json = [] { return std::string("{}"); }};
    handlers.more_json["/probe"] = [this] {
      ++probes_;
      return std::string(kProbeBytes, '0');
    };
    auto port = monitoring::HttpPort::start("127.0.0.1:0", "--http", std::move(handlers));
    ASSERT_TRUE(port);
    http_ = std::move(*port);
    introduce(0, kOwn, "127.0.0.1:1");
    introduce(1, "tcp://127.0.0.1:" + std::to_string(workers_.port), http_->address());
  }
  /// Gives a shard a process, in the place of an earlier one.
  void introduce(uint32_t shard, const std::string& address, const std::string& http) {
    tables_[shard].reset();
    tables_[shard] = testing::open_memory_table(state_);
    tables_[shard]->introduce({address, http, "millrace"});
    const auto incarnation = tables_[shard]->start_shard(shard, kShards, address);
    ASSERT_TRUE(incarnation);
    ASSERT_TRUE(tables_[shard]->hold_lease(shard, *incarnation));
  }
  nlohmann::json measured() {
    const auto said = paths_.json("shard=1");
    EXPECT_TRUE(said) << (said ? "" : said.error().message);
    return said ? nlohmann::json::parse(*said) : nlohmann::json::object();
  }
  std::string trouble(const char* key) { return measured().value(key, std::string()); }

  static constexpr uint32_t kShards = 3;
  static constexpr size_t kProbeBytes = 5'000;
  static constexpr const char* kOwn = "tcp://host0:7600";
  std::shared_ptr<testing::MemoryTableState> state_ = testing::make_memory_table_state();
  std::array<std::unique_ptr<protocol::MembershipTable>, kShards> tables_;
  protocol::StreamListeners workers_;
  std::atomic<int> probes_ = 0;
  std::unique_ptr<monitoring::HttpPort> http_;
  bool table_opens_ = true;
  std::function<void()> on_open_;  ///< called once, while a path is measured
  ShardPaths paths_{{.open_table = [this]() -> Result<std::unique_ptr<protocol::MembershipTable>> {
                       if (const auto once = std::exchange(on_open_, {})) once();
                       if (!table_opens_) return fail(ErrorCode::kIo, "no such table");
                       return testing::open_memory_table(state_);
                     },
                     .caller = [] { return nullptr; },
                     .own_address = kOwn}};
};

TEST_F(ShardPathsTest, MeasuresOneShardWhenAsked) {
  EXPECT_EQ(probes_, 0);
  const nlohmann::json said = measured();
  EXPECT_EQ(said["shard"], 1);
  EXPECT_FALSE(said.contains("connect_problem")) << said;
  // A busy machine may need longer than the time for a transfer.
  if (said.contains("late_ms")) {
    EXPECT_GE(said["late_ms"], ShardPaths::kTimeoutMs);
  } else {
    EXPECT_EQ(said["bytes"], kProbeBytes) << said;
    EXPECT_GT(said["best_ms"], 0);
    EXPECT_GE(probes_, 1);
  }
  EXPECT_LE(probes_, ShardPaths::kTransfers);
}

TEST_F(ShardPathsTest, ARefusedConnectionAndAnAbsentHttpPortAreProblems) {
  workers_ = {};
  EXPECT_THAT(trouble("connect_problem"), HasSubstr("tcp://127.0.0.1:"));
  introduce(1, "tcp://127.0.0.1:1", "");
  EXPECT_THAT(trouble("transfer_problem"), HasSubstr("--http"));
  EXPECT_FALSE(measured().contains("bytes"));
}

TEST_F(ShardPathsTest, AnHttpPortForItsOwnHostAloneIsNotTakenForOneHere) {
  introduce(1, "tcp://255.255.255.255:7600", http_->address());  // no connection goes there
  EXPECT_THAT(trouble("transfer_problem"), HasSubstr("its own host alone"));
  EXPECT_EQ(probes_, 0);
}

TEST_F(ShardPathsTest, AnotherQueryIsAnError) {
  for (const char* query :
       {"", "shard=", "shard=x", "shard=-1", "shard=1&shard=1", "http=127.0.0.1:1", "shard=4294967296"})
    EXPECT_EQ(paths_.json(query).error().code, ErrorCode::kInvalidArgument) << query;
  for (const char* query : {"shard=0", "shard=3"})
    EXPECT_EQ(paths_.json(query).error().code, ErrorCode::kInvalidArgument) << query;
  EXPECT_EQ(paths_.json("shard=2").error().code, ErrorCode::kUnavailable);  // it never started
  tables_[1].reset();
  EXPECT_EQ(paths_.json("shard=1").error().code, ErrorCode::kUnavailable);
  table_opens_ = false;
  EXPECT_EQ(paths_.json("shard=1").error().code, ErrorCode::kIo);
  EXPECT_EQ(probes_, 0);
}

TEST_F(ShardPathsTest, OnePathIsMeasuredAtATime) {
  Result<std::string> second = "not asked";
  on_open_ = [&] { std::jthread([&] { second = paths_.json("shard=1"); }).join(); };
  EXPECT_TRUE(paths_.json("shard=1"));
  ASSERT_FALSE(second) << *second;
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(paths_.json("shard=1"));
}

}  // namespace
}  // namespace millrace::server
