#include "worker/cluster_status/cluster_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/plain_text.h"
#include "protocol/base/limits.h"
#include "tests/support/failing_table.h"
#include "tests/support/memory_table.h"
#include "worker/cluster_status/fetch_status.h"

namespace millrace::cluster_status {
namespace {

using program::ExitCode;
using protocol::DrainNote;
using ::testing::HasSubstr;

/// A cluster of two shards and a spare in a memory table: an object of the table for each process.
struct ClusterInTable : ::testing::Test {
  using Table = std::unique_ptr<protocol::MembershipTable>;

  ClusterInTable() {
    for (uint32_t shard = 0; shard < 2; ++shard) {
      const std::string address = "tcp://node:" + std::to_string(7600 + shard);
      EXPECT_EQ(shards[shard]->start_shard(shard, 2, address), 1u);
      shards[shard]->introduce({address, "0.0.0.0:" + std::to_string(7700 + shard), "millrace 9"});
      EXPECT_TRUE(shards[shard]->hold_lease(shard, 1));
    }
    spare->introduce({"tcp://spare:7600", "", "millrace 10"});
    EXPECT_TRUE(spare->hold_spare_lease());
  }

  /// `wait` acts for the drained process and the spare between two looks of the operator.
  DrainOptions options(uint32_t shard, std::function<void()> wait) {
    return {.shard = shard,
            .timeout = kNsPerS,
            .now = [this] { return now; },
            .wait =
                [this, wait] {
                  now += kNsPerS / 10;
                  wait();
                }};
  }
  void take_over(uint32_t shard) {
    ASSERT_TRUE(shards[shard]->hold_leaving_lease(shard, 1));
    ASSERT_EQ(spare->take_over_shard(shard, 1, "tcp://spare:7600", ""), 2u);
    ASSERT_TRUE(spare->hold_lease(shard, 2));
  }

  std::shared_ptr<testing::MemoryTableState> state = testing::make_memory_table_state();
  Table table = testing::open_memory_table(state);
  Table shards[2] = {testing::open_memory_table(state), testing::open_memory_table(state)};
  Table spare = testing::open_memory_table(state);
  TimeNs now = 0;
};

TEST_F(ClusterInTable, StatusHasShardsSparesAndJobs) {
  ASSERT_TRUE(table->create_job("night \x1b[31m", ByteBuffer{1}).error().code == ErrorCode::kInvalidArgument);
  ASSERT_TRUE(table->create_job("night", ByteBuffer{1}));
  ASSERT_EQ(table->set_drain(1, 1, DrainNote{1, "the weights of job 'night' are in no save"}), true);
  const ClusterTable seen = read_cluster_table(*table).value();
  EXPECT_TRUE(outcome_of(seen));
  const std::string text = cluster_text(seen);
  for (const char* part : {"node:7601", "0.0.0.0:7701", "millrace 9", "ready", "spare:7600", "millrace 10", "night",
                           "waiting to start", "shard 1 was asked to drain and refuses: the weights"})
    EXPECT_THAT(text, HasSubstr(part));
  const nlohmann::json json = cluster_json(seen);
  EXPECT_EQ(json["shards"].size(), 2u);
  EXPECT_EQ(json["shards"][1]["state"], "ready");
  EXPECT_EQ(json["shards"][1]["lease"], true);
  EXPECT_EQ(json["shards"][1]["software"], "millrace 9");
  EXPECT_THAT(json["shards"][1]["drain_refused"].get<std::string>(), HasSubstr("night"));
  EXPECT_EQ(json["spares"][0]["address"], "tcp://spare:7600");
  EXPECT_EQ(json["jobs"][0]["name"], "night");
}

TEST_F(ClusterInTable, AShardWithoutAProcessIsUnreachable) {
  shards[1].reset();
  const ClusterTable seen = read_cluster_table(*table).value();
  EXPECT_EQ(cluster_json(seen)["shards"][1]["state"], "gone");
  ASSERT_FALSE(outcome_of(seen));
  EXPECT_EQ(outcome_of(seen).error().code, ExitCode::kUnreachable);
  EXPECT_THAT(outcome_of(seen).error().message, HasSubstr("shard 1 has no process"));
}

TEST_F(ClusterInTable, HttpAddressesAreThoseThatTheProcessesWrote) {
  const auto view = table->read_cluster().value();
  EXPECT_EQ(http_address_in_table(view.shards[1]), "node:7701") << "0.0.0.0 is every address of that host";
  protocol::ClusterView::Shard silent = view.shards[1];
  silent.process = {};
  EXPECT_EQ(http_address_in_table(silent), "node:7701") << "at the distance of millrace serve";
  silent.process.http = "10.0.0.1:9";
  EXPECT_EQ(http_address_in_table(silent), "10.0.0.1:9");
}

TEST_F(ClusterInTable, ALoopbackHttpPortIsAskedOnItsOwnHostAlone) {
  for (uint32_t shard = 0; shard < 2; ++shard) {
    shards[shard] = testing::open_memory_table(state);
    shards[shard]->introduce({"tcp://node:" + std::to_string(7600 + shard), "127.0.0.1:7700", "millrace 9"});
    ASSERT_TRUE(shards[shard]->hold_lease(shard, 1));
  }
  int asked = 0;
  std::string address = "tcp://node:7600";
  const Fetch fetch = [&](const std::string& http) -> Result<nlohmann::json> {
    ++asked;
    EXPECT_EQ(http, "127.0.0.1:7700");
    return nlohmann::json{{"shard", 0}, {"shard_count", 2}, {"address", address}};
  };
  std::vector<ShardHttp> ports = http_ports_of(table->read_cluster().value(), fetch);
  EXPECT_EQ(asked, 1);
  ASSERT_EQ(ports.size(), 2u);
  EXPECT_EQ(ports[0].address, "127.0.0.1:7700") << "the process there is shard 0";
  EXPECT_EQ(ports[0].trouble, "");
  EXPECT_EQ(ports[1].address, "");
  EXPECT_THAT(ports[1].trouble, HasSubstr("127.0.0.1:7700 is for its own host alone"));
  address = "tcp://other:7600";
  ports = http_ports_of(table->read_cluster().value(), fetch);
  EXPECT_EQ(ports[0].address + ports[1].address, "") << "another cluster's process";
  const Fetch refuse = [](const std::string&) -> Result<nlohmann::json> {
    return fail(ErrorCode::kUnavailable, "it asks for a token");
  };
  ports = http_ports_of(table->read_cluster().value(), refuse);
  EXPECT_EQ(ports[0].address, "");
  EXPECT_THAT(ports[0].trouble, HasSubstr("it asks for a token"));
}

TEST_F(ClusterInTable, ADrainEndsWhenTheSpareHoldsTheLease) {
  int looks = 0;
  const auto drained = drain_shard(*table, options(1, [&] {
    if (++looks == 1) {
      EXPECT_EQ(table->read_drain(1).value(), (DrainNote{1, ""}));
      EXPECT_EQ(cluster_json(read_cluster_table(*table).value())["shards"][1]["state"], "draining");
    }
    if (looks == 2) take_over(1);
  }));
  ASSERT_TRUE(drained) << drained.error().message;
  EXPECT_EQ(drained->from.address, "tcp://node:7601");
  EXPECT_EQ(drained->to, (protocol::ShardEntry{"tcp://spare:7600", 2}));
  EXPECT_EQ(cluster_json(read_cluster_table(*table).value())["shards"][1]["state"], "ready");
}

TEST_F(ClusterInTable, AProcessThatEndsAfterItGrantedADrainIsGone) {
  ASSERT_EQ(table->set_drain(1, 1, DrainNote{1, ""}), true);
  ASSERT_TRUE(shards[1]->hold_leaving_lease(1, 1));
  const auto row = [&] { return cluster_json(read_cluster_table(*table).value())["shards"][1]; };
  EXPECT_EQ(row()["state"], "draining");
  EXPECT_EQ(row()["http"], "0.0.0.0:7701") << "operators ask it there";
  EXPECT_TRUE(outcome_of(read_cluster_table(*table).value()));
  shards[1].reset();
  EXPECT_EQ(row()["state"], "gone");
  const auto outcome = outcome_of(read_cluster_table(*table).value());
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().message, "shard 1 has no process");
  EXPECT_THAT(drain_shard(*table, options(1, [] {})).error().message, HasSubstr("has no process that could leave"));
}

TEST_F(ClusterInTable, ARefusalIsTheOperatorsAnswerAndTheRequestIsGone) {
  const auto refused =
      drain_shard(*table, options(0, [&] { ASSERT_EQ(shards[0]->set_drain(0, 1, DrainNote{1, "a reason"}), true); }));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ExitCode::kRefused);
  EXPECT_EQ(refused.error().message, "a reason");
  EXPECT_EQ(table->read_drain(0).value(), std::nullopt);
}

TEST_F(ClusterInTable, ARequestThatIsNotGrantedInTimeIsWithdrawn) {
  const auto late = drain_shard(*table, options(0, [] {}));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ExitCode::kUnreachable);
  EXPECT_THAT(late.error().message, HasSubstr("or the shard still recovers or saves a job"));
  EXPECT_EQ(table->read_drain(0).value(), std::nullopt);
  DrainOptions interrupted = options(0, [] {});
  interrupted.is_interrupted = [] { return true; };
  EXPECT_EQ(drain_shard(*table, interrupted).error().code, ExitCode::kInterrupted);
  EXPECT_EQ(table->read_drain(0).value(), std::nullopt);
}

TEST_F(ClusterInTable, AnInterruptedDrainReportsTheNumbersHolder) {
  // The operator interrupts behind the first wait. The process gives its lease back in one, and `then` happens behind.
  const auto message_after = [&](uint32_t shard, const std::function<void()>& then, int released_in = 1) {
    int looks = 0;
    DrainOptions interrupted = options(shard, [&] {
      ++looks;
      if (looks == released_in) {
        EXPECT_TRUE(shards[shard]->hold_leaving_lease(shard, 1));
      }
      if (looks == released_in + 1) then();
    });
    interrupted.is_interrupted = [&] { return looks > 0; };
    const auto ended = drain_shard(*table, interrupted);
    if (ended) return std::string();
    EXPECT_EQ(ended.error().code, ExitCode::kInterrupted);
    EXPECT_EQ(table->read_drain(shard).value(), std::nullopt);
    return ended.error().message;
  };
  EXPECT_THAT(message_after(0, [] {}), HasSubstr("a spare may take the number"));
  EXPECT_TRUE(shards[0]->hold_lease(0, 1));
  EXPECT_THAT(message_after(0, [&] { EXPECT_TRUE(shards[0]->hold_lease(0, 1)); }), HasSubstr("its process keeps it"));
  EXPECT_THAT(message_after(1, [&] { take_over(1); }, 3), HasSubstr("a spare took the number of shard 1"));
}

TEST_F(ClusterInTable, ARefusedDrainReportsItsReason) {
  const auto refusal = [&](uint32_t shard) {
    const auto refused = drain_shard(*table, options(shard, [] { FAIL() << "nothing was asked"; }));
    return refused ? program::Failure{} : refused.error();
  };
  EXPECT_EQ(refusal(2).code, ExitCode::kUsage);
  EXPECT_THAT(refusal(2).message, HasSubstr("numbered 0 to 1"));
  shards[1].reset();
  EXPECT_EQ(refusal(1).code, ExitCode::kUnreachable);
  spare.reset();
  EXPECT_EQ(refusal(0).code, ExitCode::kRefused);
  EXPECT_THAT(refusal(0).message, HasSubstr("no spare waits"));
}

TEST_F(ClusterInTable, AClusterIsRemovedWhenNoProcessAndNoJobIsLeft) {
  ASSERT_TRUE(table->create_job("night", ByteBuffer{1}));
  const auto open = remove_cluster(*table, OpenJobs::kRefuse);
  ASSERT_FALSE(open);
  EXPECT_EQ(open.error().code, ExitCode::kRefused);
  EXPECT_THAT(open.error().message, HasSubstr("'night'"));
  const auto held = remove_cluster(*table, OpenJobs::kForget);
  ASSERT_FALSE(held);
  EXPECT_THAT(held.error().message, HasSubstr("leases"));
  for (Table& shard : shards) shard.reset();
  spare.reset();
  EXPECT_TRUE(remove_cluster(*table, OpenJobs::kForget));
  const ClusterTable seen = read_cluster_table(*table).value();
  EXPECT_THAT(cluster_text(seen), HasSubstr("no shard has started"));
  EXPECT_EQ(outcome_of(seen).error().code, ExitCode::kUnreachable);
}

TEST_F(ClusterInTable, AnEndedJobHasItsReasonAndFreesItsName) {
  const protocol::JobRecord job = table->create_job("night", ByteBuffer{1}).value();
  const std::string reason = "wrong data \x1b[31m" + std::string(2'000, 'x');
  ASSERT_TRUE(end_job(*table, "night", reason));
  const protocol::JobRecord ended = table->read_job(job.membership.job).value().value();
  EXPECT_TRUE(ended.membership.finished);
  EXPECT_EQ(ended.membership.epoch, job.membership.epoch + 1);
  EXPECT_EQ(ended.end_code, ErrorCode::kUnavailable);
  EXPECT_EQ(ended.end_reason, plain_text_of(reason, protocol::kSentenceBytesMax));
  EXPECT_TRUE(read_cluster_table(*table).value().jobs.empty());
  const auto again = end_job(*table, "night", "twice");
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ExitCode::kUsage);
  EXPECT_THAT(again.error().message, HasSubstr("no job 'night' is open"));
  EXPECT_NE(table->create_job("night", ByteBuffer{1})->membership.job, job.membership.job);
}

/// Another process changes the membership before each of the first swaps.
class ContendedTable : public testing::FailingTable {
 public:
  ContendedTable(std::shared_ptr<protocol::MembershipTable> table, int changes)
      : FailingTable(table), other_(std::move(table)), changes_(changes) {}
  Result<bool> compare_and_swap(uint64_t expected_epoch, const protocol::JobRecord& next) override {
    if (changes_-- > 0) {
      protocol::JobRecord changed = other_->read_job(next.membership.job).value().value();
      const uint64_t epoch = changed.membership.epoch++;
      EXPECT_EQ(other_->compare_and_swap(epoch, changed), true);
    }
    return FailingTable::compare_and_swap(expected_epoch, next);
  }

 private:
  std::shared_ptr<protocol::MembershipTable> other_;
  int changes_;
};

TEST_F(ClusterInTable, TheEndOfAJobWhoseMembershipChangesIsTriedAgain) {
  ASSERT_TRUE(table->create_job("night", ByteBuffer{1}));
  ContendedTable contended(testing::open_memory_table(state), 3);
  EXPECT_TRUE(end_job(contended, "night", "wrong data"));
  EXPECT_TRUE(read_cluster_table(*table).value().jobs.empty());
  ASSERT_TRUE(table->create_job("night", ByteBuffer{1}));
  ContendedTable always(testing::open_memory_table(state), 1'000'000);
  const auto refused = end_job(always, "night", "wrong data");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ExitCode::kRefused);
}

TEST_F(ClusterInTable, TheEndOfAJobOfASilentTableIsUnreachable) {
  ASSERT_TRUE(table->create_job("night", ByteBuffer{1}));
  testing::FailingTable silent(testing::open_memory_table(state));
  silent.mode = testing::FailingTable::Mode::kUnavailable;
  const auto ended = end_job(silent, "night", "wrong data");
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, ExitCode::kUnreachable);
  EXPECT_EQ(read_cluster_table(*table).value().jobs.size(), 1u);
}

}  // namespace
}  // namespace millrace::cluster_status
