#include "server/spare/spare_wait.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/failing_table.h"
#include "tests/support/memory_table.h"

namespace millrace::server {
namespace {

using testing::FailingTable;

/// A spare beside shard 0 of 1, which ends after the spare's first look.
class SpareWait : public ::testing::Test {
 protected:
  void SetUp() override {
    EXPECT_EQ(shard_->start_shard(0, 1, "tcp://127.0.0.1:1"), 1u);
    EXPECT_TRUE(shard_->hold_lease(0, 1));
    callbacks_.on_waiting = [] {};
    callbacks_.on_look = [this](TimeNs) { shard_.reset(); };
    callbacks_.say = [this](Severity, const std::string& text) { said_.push_back(text); };
    callbacks_.is_over = [this] { return monotonic_now_ns() > until_; };
  }

  auto wait() { return wait_for_number(table_, "tcp://127.0.0.1:2", "", callbacks_); }
  /// Expects that the spare takes the number as its second start.
  void expect_taken() {
    const auto taken = wait();
    ASSERT_TRUE(taken) << taken.error().message;
    ASSERT_TRUE(*taken) << "the wait was ended";
    EXPECT_EQ((*taken)->shard, 0u);
    EXPECT_EQ((*taken)->shards, 1u);
    EXPECT_EQ((*taken)->incarnation, 2u);
    EXPECT_EQ(table_.shard_map()->front(), (protocol::ShardEntry{"tcp://127.0.0.1:2", 2}));
  }
  void expect_ended(ErrorCode code) {
    const auto taken = wait();
    ASSERT_FALSE(taken);
    EXPECT_EQ(taken.error().code, code);
  }

  std::shared_ptr<testing::MemoryTableState> state_ = testing::make_memory_table_state();
  std::unique_ptr<protocol::MembershipTable> shard_ = testing::open_memory_table(state_);
  FailingTable table_{testing::open_memory_table(state_)};
  SpareCallbacks callbacks_;
  std::vector<std::string> said_;
  /// Less than the time after which a number whose lease was never seen is free.
  TimeNs until_ = monotonic_now_ns() + 8 * kNsPerS;
};

TEST_F(SpareWait, TakesTheNumberOfAShardThatIsGone) {
  expect_taken();
  EXPECT_TRUE(said_.empty());
}

TEST_F(SpareWait, ATableThatRefusesTheTakeOverIsAskedAgain) {
  for (const ErrorCode code : {ErrorCode::kIo, ErrorCode::kMalformed}) {
    SCOPED_TRACE(error_code_name(code));
    state_ = testing::make_memory_table_state();
    shard_ = testing::open_memory_table(state_);
    table_ = FailingTable(testing::open_memory_table(state_));
    said_.clear();
    SetUp();
    table_.take_over_error = Error{code, "database space exceeded"};
    expect_taken();
    EXPECT_EQ(said_, std::vector<std::string>{"spare: database space exceeded"});
  }
}

TEST_F(SpareWait, ATableThatHasNeverWorkedEndsTheWait) {
  for (const ErrorCode code : {ErrorCode::kIo, ErrorCode::kMalformed}) {
    table_.spare_lease_error = Error{code, "permission denied"};
    expect_ended(code);
  }
}

TEST_F(SpareWait, ATableThatFailsLaterIsAskedAgain) {
  callbacks_.on_waiting = [this] { table_.spare_lease_error = Error{ErrorCode::kIo, "no space left"}; };
  expect_taken();
  EXPECT_EQ(said_, std::vector<std::string>{"spare: no space left"});
}

TEST_F(SpareWait, ATakeOverWhoseAnswerIsLostIsKnownAtTheNextLook) {
  table_.take_over_error = Error{ErrorCode::kTimeout, "no member has answered"};
  expect_taken();
}

TEST_F(SpareWait, AnotherTableEndsTheWait) {
  table_.take_over_error = Error{ErrorCode::kConflict, "another table"};
  expect_ended(ErrorCode::kConflict);
}

TEST_F(SpareWait, AProcessThatCannotServeEndsTheWait) {
  callbacks_.may_take = [](uint32_t) -> Result<bool> { return fail(ErrorCode::kIo, "too few descriptors"); };
  expect_ended(ErrorCode::kIo);
}

}  // namespace
}  // namespace millrace::server
