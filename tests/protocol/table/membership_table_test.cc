#include "protocol/table/membership_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "protocol/base/limits.h"
#include "protocol/table/etcd_table.h"
#include "tests/protocol/temporary_directory.h"
#include "tests/support/etcd_server.h"
#include "tests/support/format_versions.h"
#include "tests/support/memory_table.h"

namespace millrace::protocol {
namespace {

using Open = std::function<std::unique_ptr<MembershipTable>()>;

/// The same behaviours of every implementation. `open` gives another object on the same table.
class MembershipTables : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "memory") {
      open_ = [state = testing::make_memory_table_state()] { return testing::open_memory_table(state); };
    } else if (GetParam() == "etcd") {
      // One etcd for all tests; each has a prefix of its own.
      static const std::unique_ptr<testing::EtcdServer> etcd = testing::EtcdServer::start();
      if (!etcd) GTEST_SKIP() << testing::kNoEtcd;
      static int tables = 0;
      EtcdOptions options;
      options.endpoints = {etcd->endpoint()};
      options.prefix = "/table" + std::to_string(++tables);
      options.wait_ms = 30'000;
      open_ = [options] {
        auto table = open_etcd_table(options);
        EXPECT_TRUE(table) << table.error().message;
        return std::move(*table);
      };
    } else {
      open_ = [path = directory_.file("table.db")] {
        auto table = open_sqlite_table(path);
        EXPECT_TRUE(table) << table.error().message;
        return std::move(*table);
      };
    }
    table_ = open_();
  }

  static ByteBuffer spec_bytes() { return {1, 2, 3}; }
  static std::vector<bool> held(MembershipTable& table) {
    std::vector<bool> held;
    for (const ClusterView::Shard& shard : table.read_cluster().value().shards) held.push_back(shard.held);
    return held;
  }

  TemporaryDirectory directory_;
  Open open_;
  std::unique_ptr<MembershipTable> table_;
};

INSTANTIATE_TEST_SUITE_P(, MembershipTables, ::testing::Values("memory", "sqlite", "etcd"),
                         [](const auto& test) { return test.param; });

/// Returns the answer to a query of one column, line by line.
std::string sqlite_text_of(const std::string& path, const char* query) {
  sqlite3* handle = nullptr;
  std::string text;
  EXPECT_EQ(sqlite3_open(path.c_str(), &handle), SQLITE_OK);
  const auto add = [](void* to, int, char** values, char**) {
    *static_cast<std::string*>(to) += std::string(values[0] == nullptr ? "" : values[0]) + "\n";
    return 0;
  };
  EXPECT_EQ(sqlite3_exec(handle, query, add, &text, nullptr), SQLITE_OK);
  sqlite3_close_v2(handle);
  return text;
}

TEST(SqliteTable, ItsSchemaIsThatOfItsVersion) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("table.db");
  ASSERT_TRUE(open_sqlite_table(path).has_value());
  const std::string schema = sqlite_text_of(path, "SELECT sql FROM sqlite_master WHERE name != 'notes' ORDER BY name") +
                             sqlite_text_of(path, "SELECT name FROM counters ORDER BY name");
  const uint64_t version = std::stoull(sqlite_text_of(path, "PRAGMA user_version"));
  millrace::testing::expect_format_version("membership_table", version,
                                           millrace::testing::Fingerprint().add_text(schema),
                                           "kSchemaVersion in protocol/table/sqlite_table.cc");
}

/// Changes a table's file as another program would.
void change_file(const std::string& path, const char* sql) {
  sqlite3* handle = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &handle), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(handle, sql, nullptr, nullptr, nullptr), SQLITE_OK) << sql;
  sqlite3_close(handle);
}

/// A process that was stopped in the middle of a write: its lock stays.
class StoppedWriter {
 public:
  explicit StoppedWriter(const std::string& path) {
    EXPECT_EQ(sqlite3_open(path.c_str(), &handle_), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(handle_, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  }
  ~StoppedWriter() { sqlite3_close_v2(handle_); }

 private:
  sqlite3* handle_ = nullptr;
};

TEST(SqliteTable, AStoppedWriterDelaysThreeCallsThenOneInElevenWaits) {
  constexpr uint32_t kWaitMs = 20;
  TimeNs now = kNsPerS;
  TemporaryDirectory directory;
  const auto table = open_sqlite_table(directory.file("table.db"), kWaitMs, [&now] { return now; }).value();
  JobRecord next = table->create_job("train", ByteBuffer{1}).value();
  ++next.membership.epoch;
  // Returns how many of `calls` failing writes waited.
  const auto waits = [&](int calls) {
    int waited = 0;
    for (int call = 0; call < calls; ++call) {
      const auto swapped = table->compare_and_swap(next.membership.epoch - 1, next);
      EXPECT_FALSE(swapped);
      if (swapped) break;
      EXPECT_EQ(swapped.error().code, ErrorCode::kTimeout);
      waited += swapped.error().message.contains("(waited 20 ms)") ? 1 : 0;
      EXPECT_TRUE(table->read_job("train")) << "reads go on";
    }
    return waited;
  };
  for (int again = 0; again < 2; ++again) {
    {
      const StoppedWriter writer(directory.file("table.db"));
      EXPECT_EQ(waits(2), 2) << "the call waits for plain contention";
    }
    ASSERT_EQ(table->compare_and_swap(next.membership.epoch - 1, next), true);
    ++next.membership.epoch;
  }
  {
    const StoppedWriter writer(directory.file("table.db"));
    EXPECT_EQ(waits(100), 3);
    now += 10 * TimeNs{kWaitMs} * kNsPerMs - 1;
    EXPECT_EQ(waits(100), 0);
    now += 1;
    EXPECT_EQ(waits(100), 1);
  }
  EXPECT_EQ(table->compare_and_swap(next.membership.epoch - 1, next), true);
}

TEST_P(MembershipTables, EveryStartOfAShardRaisesItsIncarnation) {
  EXPECT_EQ(table_->start_shard(0, 2, "tcp://a:1"), 1u);
  EXPECT_EQ(table_->start_shard(1, 2, "tcp://b:1"), 1u);
  EXPECT_EQ(open_()->start_shard(0, 2, "tcp://a:2"), 2u);
  const auto map = table_->shard_map();
  ASSERT_TRUE(map);
  EXPECT_THAT(*map, ::testing::ElementsAre(ShardEntry{"tcp://a:2", 2}, ShardEntry{"tcp://b:1", 1}));
}

TEST_P(MembershipTables, EveryStartSaysWhereItsDatagramsGo) {
  ASSERT_TRUE(table_->start_shard(0, 2, "tcp://a:1", "192.0.2.1:7800"));
  ASSERT_TRUE(table_->start_shard(1, 2, "tcp://b:1"));
  EXPECT_THAT(*open_()->shard_map(),
              ::testing::ElementsAre(ShardEntry{"tcp://a:1", 1, "192.0.2.1:7800"}, ShardEntry{"tcp://b:1", 1, ""}));
  EXPECT_EQ(table_->create_job("train", spec_bytes())->membership.shards[0].datagrams, "192.0.2.1:7800");
  ASSERT_TRUE(table_->start_shard(0, 2, "tcp://a:1"));
  EXPECT_EQ(table_->shard_map()->front(), (ShardEntry{"tcp://a:1", 2, ""})) << "a start without one has none";
  EXPECT_FALSE(table_->start_shard(0, 2, "tcp://a:1", std::string(kAddressBytesMax + 1, 'a')));
}

TEST_P(MembershipTables, JobBeginsWithThePathItWasCreatedWithAndASwapChangesIt) {
  JobRecord record = table_->create_job("train", spec_bytes(), Path::kSwitch).value();
  EXPECT_EQ(record.membership.path, Path::kSwitch);
  EXPECT_EQ(table_->create_job("train", spec_bytes(), Path::kServer)->membership.path, Path::kSwitch)
      << "it is open already";
  EXPECT_EQ(table_->create_job("other", spec_bytes())->membership.path, Path::kServer);
  record.membership.path = Path::kServer;
  ++record.membership.epoch;
  ASSERT_EQ(table_->compare_and_swap(record.membership.epoch - 1, record), true);
  EXPECT_EQ((*open_()->read_job("train"))->membership.path, Path::kServer);
}

TEST_P(MembershipTables, AStartHoldsItsLeaseUntilItsProcessEnds) {
  ASSERT_EQ(table_->start_shard(0, 2, "tcp://a:1"), 1u);
  ASSERT_EQ(table_->start_shard(1, 2, "tcp://b:1"), 1u);
  const auto other = open_();
  EXPECT_THAT(held(*other), ::testing::ElementsAre(false, false));
  do {
    ASSERT_TRUE(table_->hold_lease(0, 1));
    std::this_thread::yield();
  } while (!other->read_cluster().value().shards[0].held);
  EXPECT_THAT(held(*other), ::testing::ElementsAre(true, false));
  table_.reset();
  while (other->read_cluster().value().shards[0].held) std::this_thread::yield();
  ASSERT_EQ(other->start_shard(0, 2, "tcp://a:2"), 2u);
  do {
    ASSERT_TRUE(other->hold_lease(0, 2));
    std::this_thread::yield();
  } while (!open_()->read_cluster().value().shards[0].held);
}

TEST_P(MembershipTables, AProcessThatLeavesItsNumberIsSeenUntilItEnds) {
  using State = ClusterView::Shard::State;
  const ProcessNote note{"tcp://a:1", "a:2", "millrace 7"};
  ASSERT_EQ(table_->start_shard(0, 1, note.address), 1u);
  table_->introduce(note);
  const auto other = open_();
  const auto state = [&] { return other->read_cluster()->shards[0].state(); };
  for (int again = 0; again < 2; ++again) {
    do {
      ASSERT_TRUE(table_->hold_lease(0, 1));
      std::this_thread::yield();
    } while (state() != State::kServes);
    do {
      ASSERT_TRUE(table_->hold_leaving_lease(0, 1));
      std::this_thread::yield();
      ASSERT_NE(state(), State::kGone);
    } while (held(*other)[0]);
    EXPECT_EQ(state(), State::kDraining);
    EXPECT_EQ(other->read_cluster()->shards[0].process, note);
  }
  EXPECT_EQ(other->remove_cluster(), false);
  table_.reset();
  while (state() != State::kGone) std::this_thread::yield();
  EXPECT_EQ(other->read_cluster()->shards[0].process, ProcessNote());
}

TEST_P(MembershipTables, TheTableListsTheNoteOfEachProcess) {
  const ProcessNote shard{"tcp://a:1", "a:2", "millrace 7"};
  const ProcessNote spare{"tcp://b:1", "", "millrace 8"};
  ASSERT_EQ(table_->start_shard(0, 2, shard.address), 1u);
  table_->introduce(shard);
  auto waits = open_();
  waits->introduce(spare);
  const auto other = open_();
  do {
    ASSERT_TRUE(table_->hold_lease(0, 1));
    ASSERT_TRUE(waits->hold_spare_lease());
    std::this_thread::yield();
  } while (!held(*other)[0] || other->read_cluster()->spares.empty());
  ClusterView view = other->read_cluster().value();
  EXPECT_EQ(view.shards[0].process, shard);
  EXPECT_EQ(view.shards[0].entry, (ShardEntry{"tcp://a:1", 1}));
  EXPECT_EQ(view.shards[1].process, ProcessNote());
  EXPECT_THAT(view.spares, ::testing::ElementsAre(spare));
  // The spare becomes a shard: it waits no more.
  ASSERT_EQ(waits->start_shard(1, 2, spare.address), 1u);
  do {
    ASSERT_TRUE(waits->hold_lease(1, 1));
    std::this_thread::yield();
    view = other->read_cluster().value();
  } while (!view.shards[1].held || !view.spares.empty());
  EXPECT_EQ(view.shards[1].process, spare);
}

TEST_P(MembershipTables, ARequestToDrainIsAboutOneStart) {
  const DrainNote asked{1, ""};
  const DrainNote refused{1, "a reason"};
  EXPECT_EQ(table_->set_drain(0, 1, asked), false) << "nothing has started";
  EXPECT_EQ(table_->read_drain(0).value(), std::nullopt);
  ASSERT_EQ(table_->start_shard(0, 2, "tcp://a:1"), 1u);
  const auto other = open_();
  EXPECT_EQ(other->set_drain(0, 2, DrainNote{2, ""}), false);
  const uint64_t before = table_->change_counter().value();
  EXPECT_EQ(other->set_drain(0, 1, asked), true);
  EXPECT_GT(table_->change_counter().value(), before) << "the shard must see it";
  EXPECT_EQ(table_->read_drain(0).value(), asked);
  EXPECT_EQ(table_->read_drain(1).value(), std::nullopt);
  EXPECT_EQ(table_->set_drain(0, 1, refused), true);
  EXPECT_EQ(other->read_cluster()->shards[0].drain, refused);
  EXPECT_EQ(table_->set_drain(0, 1, std::nullopt), true);
  EXPECT_EQ(other->read_cluster()->shards[0].drain, std::nullopt);
  EXPECT_EQ(table_->set_drain(0, 1, asked), true);
  ASSERT_EQ(other->take_over_shard(0, 1, "tcp://b:1", ""), 2u);
  EXPECT_EQ(table_->read_drain(0).value(), std::nullopt);
  EXPECT_EQ(table_->read_cluster()->shards[0].drain, std::nullopt);
}

TEST_P(MembershipTables, OpenJobsAreListedByNumber) {
  EXPECT_TRUE(table_->open_jobs().value().empty());
  for (const char* name : {"b", "a", "c"}) ASSERT_TRUE(table_->create_job(name, spec_bytes()));
  JobRecord done = table_->read_job("a").value().value();
  ++done.membership.epoch;
  done.membership.finished = true;
  ASSERT_EQ(table_->compare_and_swap(1, done), true);
  const auto jobs = open_()->open_jobs().value();
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0].name, "b");
  EXPECT_EQ(jobs[1].name, "c");
  EXPECT_LT(jobs[0].membership.job, done.membership.job);
  EXPECT_LT(done.membership.job, jobs[1].membership.job);
}

TEST_P(MembershipTables, AClusterIsRemovedOnceItsProcessesHaveEnded) {
  ASSERT_EQ(table_->start_shard(0, 2, "tcp://a:1"), 1u);
  const uint64_t job = table_->create_job("train", spec_bytes())->membership.job;
  ASSERT_EQ(table_->set_drain(0, 1, DrainNote{1, ""}), true);
  const auto other = open_();
  do {
    ASSERT_TRUE(table_->hold_lease(0, 1));
    std::this_thread::yield();
  } while (!held(*other)[0]);
  EXPECT_EQ(other->remove_cluster(), false);
  do {
    ASSERT_TRUE(table_->hold_spare_lease());
    std::this_thread::yield();
  } while (held(*other)[0] || other->read_cluster()->spares.empty());
  EXPECT_EQ(other->remove_cluster(), false);
  EXPECT_EQ(other->shard_map()->size(), 2u);
  table_.reset();
  while (!other->read_cluster()->spares.empty()) std::this_thread::yield();
  const uint64_t before = other->change_counter().value();
  EXPECT_EQ(other->remove_cluster(), true);
  EXPECT_GT(other->change_counter().value(), before);
  EXPECT_TRUE(other->shard_map().value().empty());
  EXPECT_EQ(other->read_job("train").value(), std::nullopt);
  EXPECT_EQ(other->read_job(job).value(), std::nullopt);
  EXPECT_EQ(other->start_shard(0, 3, "tcp://a:1"), 1u);
  EXPECT_EQ(other->read_drain(0).value(), std::nullopt);
  EXPECT_GT(other->create_job("train", spec_bytes()).value().membership.job, job) << "numbers are not given again";
}

TEST_P(MembershipTables, AClusterThatWasRemovedIsAnotherTableToItsProcesses) {
  ASSERT_EQ(table_->start_shard(0, 1, "tcp://a:1"), 1u);
  JobRecord record = table_->create_job("train", spec_bytes()).value();
  ASSERT_TRUE(table_->polled_change_counter());
  const auto other = open_();
  ASSERT_EQ(other->remove_cluster(), true);
  ASSERT_EQ(other->start_shard(0, 1, "tcp://a:1"), 1u) << "the same number, address and incarnation";
  const auto expect_conflict = [](const Error& error) {
    EXPECT_EQ(error.code, ErrorCode::kConflict);
    EXPECT_THAT(error.message, ::testing::HasSubstr("not the table that the process began with"));
  };
  expect_conflict(table_->change_counter().error());
  Result<uint64_t> polled = table_->polled_change_counter();
  while (polled) polled = table_->polled_change_counter();
  expect_conflict(polled.error());
  expect_conflict(table_->start_shard(0, 1, "tcp://a:1").error());
  expect_conflict(table_->take_over_shard(0, 1, "tcp://a:1", "").error());
  expect_conflict(table_->set_drain(0, 1, DrainNote{1, ""}).error());
  expect_conflict(table_->create_job("train", spec_bytes()).error());
  ++record.membership.epoch;
  expect_conflict(table_->compare_and_swap(1, record).error());
  expect_conflict(table_->remove_cluster().error());
  const auto later = open_();
  for (MembershipTable* of_next : {later.get(), other.get()}) {
    EXPECT_EQ(of_next->shard_map()->front(), (ShardEntry{"tcp://a:1", 1}));
    EXPECT_EQ(of_next->read_job("train").value(), std::nullopt);
  }
  EXPECT_TRUE(other->change_counter());
  EXPECT_TRUE(other->create_job("train", spec_bytes()));
}

TEST(SqliteTable, AFileOfABuildWithoutNotesIsTaken) {
  TemporaryDirectory directory;
  const std::string path = directory.file("table.db");
  ASSERT_TRUE(open_sqlite_table(path));
  change_file(path, "DROP TABLE notes");
  const auto table = open_sqlite_table(path).value();
  ASSERT_EQ(table->start_shard(0, 1, "tcp://a:1"), 1u);
  EXPECT_EQ(table->set_drain(0, 1, DrainNote{1, ""}), true);
}

TEST(SqliteTable, ALeaseIsHeldBeforeItsNoteIsWritten) {
  TemporaryDirectory directory;
  const std::string path = directory.file("table.db");
  const auto table = open_sqlite_table(path).value();
  const ProcessNote note{"tcp://a:1", "a:2", "millrace 7"};
  table->introduce(note);
  ASSERT_EQ(table->start_shard(0, 1, note.address), 1u);
  change_file(path, "CREATE TRIGGER refuses BEFORE INSERT ON notes BEGIN SELECT RAISE(FAIL, 'full'); END");
  EXPECT_TRUE(table->hold_lease(0, 1));
  const auto other = open_sqlite_table(path).value();
  ASSERT_TRUE(other->read_cluster());
  EXPECT_TRUE(other->read_cluster()->shards[0].held);
  EXPECT_EQ(other->read_cluster()->shards[0].process, ProcessNote());
  change_file(path, "DROP TRIGGER refuses");
  EXPECT_TRUE(table->hold_lease(0, 1));
  EXPECT_EQ(other->read_cluster()->shards[0].process, note);
}

TEST_P(MembershipTables, ATakeOverIsOfOneIncarnationAndSucceedsOnce) {
  EXPECT_EQ(table_->take_over_shard(0, 0, "tcp://c:1", "").error().code, ErrorCode::kInvalidArgument) << "no map yet";
  ASSERT_EQ(table_->start_shard(0, 2, "tcp://a:1"), 1u);
  const auto other = open_();
  const uint64_t before = other->change_counter().value();
  EXPECT_EQ(table_->take_over_shard(0, 1, "tcp://c:1", "192.0.2.1:7800"), 2u);
  EXPECT_GT(other->change_counter().value(), before);
  EXPECT_EQ(other->take_over_shard(0, 1, "tcp://d:1", ""), 0u);
  EXPECT_EQ(other->shard_map()->front(), (ShardEntry{"tcp://c:1", 2, "192.0.2.1:7800"}));
  EXPECT_EQ(other->take_over_shard(0, 2, "tcp://d:1", ""), 3u);
  EXPECT_EQ(other->take_over_shard(2, 1, "tcp://d:1", "").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(table_->start_shard(0, 2, "tcp://a:1"), 4u);
}

TEST_P(MembershipTables, ShardsThatNeverStartedAreEmptyInTheMap) {
  EXPECT_THAT(*table_->shard_map(), ::testing::IsEmpty());
  ASSERT_TRUE(table_->start_shard(1, 3, "tcp://b:1"));
  EXPECT_THAT(*table_->shard_map(), ::testing::ElementsAre(ShardEntry{}, ShardEntry{"tcp://b:1", 1}, ShardEntry{}));
}

TEST_P(MembershipTables, AnotherShardCountIsRefusedAndSaysWhatToDo) {
  ASSERT_TRUE(table_->start_shard(0, 2, "tcp://a:1"));
  const auto refused = table_->start_shard(0, 3, "tcp://a:1");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kShardMapMismatch);
  EXPECT_THAT(refused.error().message, ::testing::HasSubstr("2 shards"));
}

TEST_P(MembershipTables, ImpossibleShardsAreRefused) {
  EXPECT_EQ(table_->start_shard(2, 2, "tcp://a:1").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(table_->start_shard(0, 0, "tcp://a:1").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(table_->start_shard(0, 1'000'000, "tcp://a:1").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(table_->start_shard(0, 1, std::string(256, 'a')).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(table_->start_shard(0, 1, "tcp://a\n:1").error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(*table_->shard_map(), ::testing::IsEmpty());
}

TEST_P(MembershipTables, TheSecondCreatorGetsTheJobOfTheFirst) {
  ASSERT_TRUE(table_->start_shard(0, 1, "tcp://a:1"));
  const auto first = table_->create_job("train", spec_bytes());
  ASSERT_TRUE(first);
  EXPECT_EQ(first->membership.epoch, 1u);
  EXPECT_EQ(first->spec, spec_bytes());
  EXPECT_THAT(first->membership.shards, ::testing::ElementsAre(ShardEntry{"tcp://a:1", 1}));
  const auto second = open_()->create_job("train", ByteBuffer{9});
  ASSERT_TRUE(second);
  EXPECT_EQ(second->membership, first->membership);
  EXPECT_EQ(second->spec, spec_bytes());
}

TEST_P(MembershipTables, ImpossibleJobsAreRefused) {
  EXPECT_EQ(table_->create_job("", spec_bytes()).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(table_->create_job(std::string(256, 'a'), spec_bytes()).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(table_->create_job("a", ByteBuffer(5u << 20)).error().code, ErrorCode::kLimitExceeded);
}

TEST_P(MembershipTables, ASwapAtTheExpectedEpochIsSeenByAll) {
  JobRecord record = table_->create_job("train", spec_bytes()).value();
  record.membership.epoch = 2;
  record.membership.started = true;
  record.membership.members = {{.worker = 0, .incarnation = 1, .nonce = 77},
                               {.worker = 3, .incarnation = 2, .nonce = 78, .state = MemberState::kJoining}};
  record.membership.shards = {{"tcp://a:1", 1}};
  record.membership.branches = 1;
  record.membership.activations = {{0, 1, 0}};
  record.last_incarnations = {{0, 1}, {3, 2}, {4, 9}};
  ASSERT_EQ(table_->compare_and_swap(1, record), true);
  const auto read = open_()->read_job("train");
  ASSERT_TRUE(read && read->has_value());
  EXPECT_EQ((*read)->membership, record.membership);
  EXPECT_EQ((*read)->last_incarnations, record.last_incarnations);
  EXPECT_EQ((*read)->spec, record.spec);
  EXPECT_EQ((*read)->name, "train");
}

TEST_P(MembershipTables, ASwapAtAnOldEpochChangesNothing) {
  JobRecord record = table_->create_job("train", spec_bytes()).value();
  record.membership.epoch = 2;
  ASSERT_EQ(table_->compare_and_swap(1, record), true);
  record.membership.started = true;
  EXPECT_EQ(open_()->compare_and_swap(1, record), false);
  EXPECT_FALSE(table_->read_job("train").value()->membership.started);
}

TEST_P(MembershipTables, ASwapOfAnUnknownJobIsAnError) {
  JobRecord record;
  record.membership.job = 5;
  record.membership.epoch = 2;
  EXPECT_EQ(table_->compare_and_swap(1, record).error().code, ErrorCode::kInvalidArgument);
}

TEST_P(MembershipTables, AFinishedJobFreesItsNameAndKeepsItsNumber) {
  JobRecord record = table_->create_job("train", spec_bytes()).value();
  record.membership.epoch = 2;
  record.membership.finished = true;
  ASSERT_EQ(table_->compare_and_swap(1, record), true);
  EXPECT_EQ(table_->read_job("train").value(), std::nullopt);
  EXPECT_TRUE(table_->read_job(record.membership.job).value()->membership.finished);
  EXPECT_GT(table_->create_job("train", spec_bytes()).value().membership.job, record.membership.job);
}

TEST_P(MembershipTables, UnknownJobsAreAbsentNotErrors) {
  EXPECT_EQ(table_->read_job("nobody").value(), std::nullopt);
  EXPECT_EQ(table_->read_job(uint64_t{42}).value(), std::nullopt);
}

TEST_P(MembershipTables, TheChangeCounterGrowsWithEveryChangeAndOnlyThen) {
  const auto other = open_();
  uint64_t last = other->change_counter().value();
  const auto grew = [&] {
    const uint64_t now = other->change_counter().value();
    return now > std::exchange(last, now);
  };
  ASSERT_TRUE(table_->start_shard(0, 1, "tcp://a:1"));
  EXPECT_TRUE(grew());
  JobRecord record = table_->create_job("train", spec_bytes()).value();
  EXPECT_TRUE(grew());
  record.membership.epoch = 2;
  ASSERT_EQ(table_->compare_and_swap(1, record), true);
  EXPECT_TRUE(grew());
  ASSERT_EQ(table_->compare_and_swap(1, record), false);
  ASSERT_TRUE(table_->create_job("train", spec_bytes()));
  ASSERT_TRUE(table_->read_job("train"));
  EXPECT_FALSE(grew());
}

TEST(SqliteTable, AFileOfAnotherProgramIsLeftAlone) {
  TemporaryDirectory directory;
  const std::string path = directory.file("other.db");
  change_file(path, "CREATE TABLE mine (x)");
  const auto size_before = std::filesystem::file_size(path);
  const auto refused = open_sqlite_table(path);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(std::filesystem::file_size(path), size_before);
}

TEST(SqliteTable, AFileOfAnEarlierSchemaIsRefusedAndSaysWhatToDo) {
  TemporaryDirectory directory;
  const std::string path = directory.file("table.db");
  ASSERT_TRUE(open_sqlite_table(path));
  change_file(path, "PRAGMA user_version = 1");
  const auto refused = open_sqlite_table(path);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, ::testing::HasSubstr("name a new file"));
}

TEST(SqliteTable, AFileThatIsNoDatabaseIsAnErrorThatNamesIt) {
  TemporaryDirectory directory;
  const std::string path = directory.file("notes.txt");
  std::ofstream(path) << std::string(5'000, 'x');
  const auto refused = open_sqlite_table(path);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kMalformed);
  EXPECT_THAT(refused.error().message, ::testing::HasSubstr(path));
  EXPECT_THAT(refused.error().message, ::testing::HasSubstr("name another file"));
}

TEST(SqliteTable, AFileThatIsRemovedOrReplacedMeanwhileIsAnErrorUntilItIsBack) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("table.db");
  const auto table = open_sqlite_table(path).value();
  ASSERT_EQ(table->start_shard(0, 1, "tcp://a:1"), 1u);
  const JobRecord record = table->create_job("train", ByteBuffer{1}).value();
  const auto expect_refused = [&] {
    JobRecord next = record;
    ++next.membership.epoch;
    const Error error = table->change_counter().error();
    EXPECT_EQ(error.code, ErrorCode::kIo);
    EXPECT_THAT(error.message, ::testing::HasSubstr(path));
    EXPECT_THAT(error.message, ::testing::HasSubstr("start all shards again"));
    EXPECT_EQ(table->compare_and_swap(1, next).error().code, ErrorCode::kIo);
    EXPECT_EQ(table->create_job("other", ByteBuffer{1}).error().code, ErrorCode::kIo);
    EXPECT_EQ(table->start_shard(0, 1, "tcp://b:1").error().code, ErrorCode::kIo);
  };
  const auto move = [](const std::string& from, const std::string& to) {
    for (const char* part : {"", "-wal", "-shm"}) std::filesystem::rename(from + part, to + part);
  };
  move(path, path + ".away");
  expect_refused();
  {
    const auto later = open_sqlite_table(path).value();  // a new file, with incarnations of its own
    EXPECT_EQ(later->start_shard(0, 1, "tcp://b:1"), 1u);
    expect_refused();
  }
  move(path + ".away", path);
  EXPECT_TRUE(table->change_counter());
  EXPECT_EQ(table->shard_map()->front(), (ShardEntry{"tcp://a:1", 1}));
}

TEST(SqliteTable, AFolderThatIsNotThereIsAnErrorThatNamesTheFile) {
  const auto refused = open_sqlite_table("no/such/folder/table.db");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kIo);
  EXPECT_THAT(refused.error().message, ::testing::HasSubstr("no/such/folder/table.db"));
  EXPECT_THAT(refused.error().message, ::testing::HasSubstr("name a file in a folder that exists"));
}

TEST(SqliteTable, ADamagedRecordIsAnErrorNotACrash) {
  TemporaryDirectory directory;
  const std::string path = directory.file("table.db");
  auto table = open_sqlite_table(path).value();
  ASSERT_TRUE(table->create_job("train", ByteBuffer{1, 2, 3}));
  change_file(path, "UPDATE jobs SET record = substr(record, 1, 20)");
  change_file(path, "UPDATE counters SET value = 1000000000000 WHERE name = 'shard_count'");
  EXPECT_EQ(table->read_job("train").error().code, ErrorCode::kMalformed);
  EXPECT_EQ(table->shard_map().error().code, ErrorCode::kMalformed);
}

}  // namespace
}  // namespace millrace::protocol
