#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <string>
#include <vector>

#include "protocol/table/membership_table.h"
#include "protocol/table/table_rules.h"
#include "tests/protocol/temporary_directory.h"

/// SQLite tables that are lost, replaced by older ones, or damaged beneath a process.
namespace millrace::protocol {
namespace {

/// Runs statements on a table's file as another program would.
void run_sql(const std::string& path, const std::string& sql) {
  sqlite3* handle = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &handle), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(handle, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK) << sql;
  sqlite3_close(handle);
}

TEST(TableLoss, NoTwoTablesGiveOneNumberToTheirFirstJobs) {
  const TemporaryDirectory directory;
  std::vector<uint64_t> numbers;
  for (const char* name : {"one.db", "two.db"}) {
    const auto table = open_sqlite_table(directory.file(name)).value();
    numbers.push_back(table->create_job("train", ByteBuffer{1})->membership.job);
    EXPECT_EQ(numbers.back() >> kJobNumberRandomBits, 1u);
  }
  EXPECT_NE(numbers[0], numbers[1]);
}

TEST(TableLoss, AnotherTableInItsFileIsAConflictAndAnOlderOneIsStale) {
  const auto expect_error = [](const char* change, ErrorCode code) {
    const TemporaryDirectory directory;
    const std::string path = directory.file("table.db");
    const auto table = open_sqlite_table(path).value();
    ASSERT_EQ(table->start_shard(0, 1, "tcp://a:1"), 1u);
    ASSERT_TRUE(table->change_counter());
    run_sql(path, change);
    EXPECT_EQ(table->change_counter().error().code, code) << change;
    EXPECT_EQ(table->start_shard(0, 1, "tcp://a:1").error().code, code) << change;
    EXPECT_EQ(table->create_job("train", ByteBuffer{1}).error().code, code) << change;
  };
  expect_error("UPDATE counters SET value = value + 1 WHERE name = 'identity'", ErrorCode::kConflict);
  expect_error("DELETE FROM counters WHERE name = 'identity'", ErrorCode::kConflict);
  expect_error("UPDATE counters SET value = value - 1 WHERE name = 'changes'", ErrorCode::kStale);
}

TEST(TableLoss, ADamagedRowOfAShardIsAnErrorAndGivesNoIncarnationAgain) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("table.db");
  const auto table = open_sqlite_table(path).value();
  for (const uint32_t shard : {0u, 1u}) ASSERT_EQ(table->start_shard(shard, 2, "tcp://a:1", "192.0.2.1:7"), 1u);
  const auto expect_damaged = [](const Error& error) {
    EXPECT_EQ(error.code, ErrorCode::kMalformed);
    EXPECT_THAT(error.message, ::testing::HasSubstr("its row of shard 1 is damaged"));
  };
  // A flipped bit makes 0 of 1: SQLite has types of its own for both.
  for (const char* column : {"life = 0", "address = 'tcp://b:1'", "datagrams = ''", "hash = hash + 1"}) {
    run_sql(path, "CREATE TABLE kept AS SELECT * FROM shards");
    run_sql(path, "UPDATE shards SET " + std::string(column) + " WHERE shard = 1");
    expect_damaged(table->shard_map().error());
    expect_damaged(table->start_shard(1, 2, "tcp://a:1").error());
    expect_damaged(table->take_over_shard(1, 1, "tcp://a:1", "").error());
    expect_damaged(table->read_drain(1).error());
    expect_damaged(table->set_drain(1, 1, DrainNote{1, ""}).error());
    run_sql(path, "DELETE FROM shards; INSERT INTO shards SELECT * FROM kept; DROP TABLE kept");
  }
  EXPECT_EQ(table->start_shard(1, 2, "tcp://a:1"), 2u);
}

}  // namespace
}  // namespace millrace::protocol
