#include "protocol/table/lease_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "protocol/table/membership_table.h"
#include "tests/protocol/temporary_directory.h"

/// The file of leases beside an SQLite table: which process makes it, and for which user.
namespace millrace::protocol {
namespace {

class LeaseFiles : public ::testing::Test {
 protected:
  std::unique_ptr<MembershipTable> open() {
    auto table = open_sqlite_table(path_);
    EXPECT_TRUE(table) << table.error().message;
    return std::move(*table);
  }

  const TemporaryDirectory directory_;
  const std::string path_ = directory_.file("table.db");
  const std::string leases_ = path_ + "-leases";
};

TEST_F(LeaseFiles, AReaderOfTheClusterMakesNoFile) {
  ASSERT_EQ(open()->start_shard(0, 1, "tcp://a:1"), 1u);
  std::filesystem::remove(leases_);  // as beside a copy of the table
  const auto view = open()->read_cluster();
  ASSERT_TRUE(view) << view.error().message;
  EXPECT_FALSE(view->shards[0].held);
  EXPECT_FALSE(std::filesystem::exists(leases_));
}

TEST_F(LeaseFiles, AReaderThatWasThereFirstSeesALaterLease) {
  const auto reader = open();
  const auto shard = open();
  ASSERT_EQ(shard->start_shard(0, 1, "tcp://a:1"), 1u);
  std::filesystem::remove(leases_);
  ASSERT_FALSE(reader->read_cluster().value().shards[0].held);
  const auto later = open();
  ASSERT_TRUE(later->hold_lease(0, 1));
  EXPECT_TRUE(reader->read_cluster().value().shards[0].held);
}

TEST_F(LeaseFiles, AStartThatCannotOpenItCountsNothing) {
  ASSERT_EQ(open()->start_shard(0, 1, "tcp://a:1"), 1u);
  std::filesystem::remove(leases_);
  std::filesystem::create_directory(leases_);
  const auto refused = open()->start_shard(0, 1, "tcp://b:1");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kIo);
  EXPECT_EQ(open()->shard_map()->front(), (ShardEntry{"tcp://a:1", 1}));
}

TEST_F(LeaseFiles, RootMakesItForTheOwnerOfTheTable) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  constexpr uid_t kOther = 65'534;
  (void)open();
  ASSERT_EQ(::chown(path_.c_str(), kOther, kOther), 0);
  LeaseFile leases(path_);
  ASSERT_EQ(leases.hold(0), true);
  struct stat made{};
  ASSERT_EQ(::stat(leases_.c_str(), &made), 0);
  EXPECT_EQ(made.st_uid, kOther);
  EXPECT_EQ(made.st_gid, kOther);
}

}  // namespace
}  // namespace millrace::protocol
