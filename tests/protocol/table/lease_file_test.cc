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

TEST_F(LeaseFiles, AnEarlierProcessThatLeavesIsNotTheShard) {
  using State = ClusterView::Shard::State;
  const auto earlier = open();
  ASSERT_EQ(earlier->start_shard(0, 1, "tcp://a:1"), 1u);
  ASSERT_TRUE(earlier->hold_leaving_lease(0, 1));
  auto next = open();
  ASSERT_EQ(next->take_over_shard(0, 1, "tcp://b:1", ""), 2u);
  next->introduce({"tcp://b:1", "", ""});
  ASSERT_TRUE(next->hold_lease(0, 2));
  const auto other = open();
  EXPECT_EQ(other->read_cluster()->shards[0].state(), State::kServes);
  EXPECT_EQ(other->read_cluster()->shards[0].process.address, "tcp://b:1");
  ASSERT_TRUE(next->hold_leaving_lease(0, 2));
  EXPECT_FALSE(other->read_cluster()->shards[0].held) << "a spare may take the number";
  next.reset();
  ASSERT_TRUE(other->hold_spare_lease());
  EXPECT_EQ(other->read_cluster()->spares.size(), 1u);
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
