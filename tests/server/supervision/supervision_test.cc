#include "server/supervision/supervision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "tests/monitoring/notify_socket.h"

namespace millrace::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;

StatusReport with_table_failures(int64_t first_ms, int64_t last_ms) {
  StatusReport report;
  report.table_error = "the disk is full";
  report.table_failures = TableFailuresStatus{"io", 7, first_ms, last_ms};
  return report;
}

TEST(UnreadyReason, AnIdleShardIsReady) { EXPECT_EQ(unready_reason(StatusReport()), std::nullopt); }

TEST(UnreadyReason, AShardThatDrainsIsNot) {
  StatusReport report;
  report.shutting_down = true;
  EXPECT_THAT(unready_reason(report), Optional(std::string("shutting down")));
}

TEST(UnreadyReason, AShardThatLeavesItsNumberIsNot) {
  StatusReport report;
  report.leaving = true;
  EXPECT_THAT(unready_reason(report), Optional(std::string("leaves its number to a spare")));
}

TEST(UnreadyReason, AJobInRecoveryIsNamed) {
  StatusReport report;
  report.jobs.emplace_back().name = "whole";
  EXPECT_EQ(unready_reason(report), std::nullopt);
  report.jobs.emplace_back().name = "late";
  report.jobs.back().recovering = true;
  EXPECT_THAT(unready_reason(report), Optional(HasSubstr("job 'late' is in recovery")));
}

TEST(UnreadyReason, ATableThatFailsForASecondIsUnreachable) {
  EXPECT_THAT(unready_reason(with_table_failures(1'200, 200)), Optional(HasSubstr("the disk is full")));
  EXPECT_EQ(unready_reason(with_table_failures(1'199, 200)), std::nullopt) << "a lock of another process";
  EXPECT_EQ(unready_reason(with_table_failures(60'000, 3'000)), std::nullopt) << "it answers again";
}

TEST(SupervisionTest, TellsTheManagerAndProbesTheSame) {
  const std::string name = "@millrace-supervision-" + std::to_string(::getpid());
  NotifySocket socket(name);
  auto manager = monitoring::ServiceNotifier::from({.notify_socket = name.c_str()}, ::getpid());
  ASSERT_TRUE(manager.has_value());
  Supervision supervision(std::move(*manager), {"millrace-some", monitoring::ErrorPlace::kShard});
  EXPECT_THAT(supervision.unready(), Optional(std::string("starting")));
  supervision.as_spare();
  EXPECT_EQ(socket.now(), "READY=1\nSTATUS=a spare without a number");
  EXPECT_THAT(supervision.unready(), Optional(std::string("a spare without a number")));
  supervision.serving();
  EXPECT_EQ(socket.now(), "READY=1\nSTATUS=starting");
  EXPECT_THAT(supervision.unready(), Optional(std::string("starting")));

  supervision.update(StatusReport());
  EXPECT_EQ(socket.now(), "STATUS=ready");
  EXPECT_EQ(supervision.unready(), std::nullopt);
  supervision.update(StatusReport());
  EXPECT_EQ(socket.now(), "nothing") << "nothing has changed";

  supervision.reloading(3'000);
  supervision.reloaded();
  EXPECT_EQ(socket.now(), "RELOADING=1\nMONOTONIC_USEC=3");
  EXPECT_EQ(socket.now(), "READY=1\nSTATUS=ready");
  supervision.draining();
  EXPECT_EQ(socket.now(), "STOPPING=1\nSTATUS=shutting down");
  EXPECT_THAT(supervision.unready(), Optional(std::string("shutting down")));
}

}  // namespace
}  // namespace millrace::server
