#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <initializer_list>

#include "worker/launch/child_process.h"
#include "worker/program/interruption.h"

namespace millrace::program {

using launch::ChildSession;

namespace {

constexpr TimeNs kStart = 50 * kNsPerS;

TEST(InterruptionRequests, TheSameSignalWithinASecondOfTheFirstIsTheSameRequest) {
  InterruptionRequests requests;
  EXPECT_EQ(requests.count(), 0);
  EXPECT_TRUE(requests.is_new(SIGTERM, kStart));
  EXPECT_FALSE(requests.is_new(SIGTERM, kStart));
  EXPECT_FALSE(requests.is_new(SIGTERM, kStart + kNsPerS - 1));
  EXPECT_EQ(requests.count(), 1);
  // A second of the first one, not of the last.
  EXPECT_TRUE(requests.is_new(SIGTERM, kStart + kNsPerS));
  EXPECT_EQ(requests.count(), 2);
  EXPECT_EQ(requests.last_signal(), SIGTERM);
}

TEST(InterruptionRequests, AnotherSignalIsAnotherRequestAtOnce) {
  InterruptionRequests requests;
  EXPECT_TRUE(requests.is_new(SIGTERM, kStart));
  EXPECT_TRUE(requests.is_new(SIGINT, kStart + 1));
  EXPECT_EQ(requests.count(), 2);
  EXPECT_EQ(requests.last_signal(), SIGINT);
}

TEST(InterruptionRequests, TheFirstOneIsNewAtAnyTime) {
  InterruptionRequests requests;
  EXPECT_TRUE(requests.is_new(SIGINT, 0)) << "a machine that has just started";
}

/// In a process of its own: signals and their effects belong to the process.
TEST(Interruption, SignalTwiceAtOnce_SetsTheFlagAndASecondRequestEndsProcess) {
  const auto raise_all = [](std::initializer_list<int> signals) {
    const std::atomic<bool>& interrupted = interruption_flag();
    for (const int signal : signals) std::raise(signal);
    _exit(interrupted.load() ? 0 : 1);
  };
  EXPECT_EXIT(raise_all({}), ::testing::ExitedWithCode(1), "");
  EXPECT_EXIT(raise_all({SIGTERM, SIGTERM}), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(raise_all({SIGTERM, SIGINT}), ::testing::KilledBySignal(SIGINT), "");
}

TEST(Interruption, Hangup_EndsTheProcessUnlessItIsIgnoredOrReadsFilesAgain) {
  const auto hang_up = [](auto disposition, auto take_signals, auto is_seen) {
    std::signal(SIGHUP, disposition);
    end_at_interruption();
    take_signals();
    std::raise(SIGHUP);
    _exit(is_seen() ? 0 : 1);
  };
  const auto is_interrupted = [] { return interruption_flag().load(); };
  const auto reads_again = [] { return reload_request_flag().load() && interruption_requests().count() == 0; };
  const auto take_nothing = [] {};
  const auto take_flag = [] { interruption_flag(); };
  const auto take_reload = [] {
    reload_request_flag();
    interruption_requests();
  };
  EXPECT_EXIT(hang_up(SIG_DFL, take_nothing, is_interrupted), ::testing::ExitedWithCode(7), "interrupted");
  EXPECT_EXIT(hang_up(SIG_DFL, take_flag, is_interrupted), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(hang_up(SIG_IGN, take_flag, is_interrupted), ::testing::ExitedWithCode(1), "");
  EXPECT_EXIT(hang_up(SIG_DFL, take_reload, reads_again), ::testing::ExitedWithCode(0), "");
}

TEST(ChildProcess, OwnSession_SignalsToTheParentsGroupDoNotReachIt) {
  constexpr int kPatienceMs = 60'000;
  for (const ChildSession session : {ChildSession::kParents, ChildSession::kOwn}) {
    launch::SpawnOptions options;
    options.argv = {"/bin/sh", "-c", "echo ready; exec sleep 600"};
    options.session = session;
    auto child = launch::ChildProcess::spawn(options);
    ASSERT_TRUE(child.has_value()) << child.error().message;
    ASSERT_EQ(child->read_line(kPatienceMs).value(), "ready");
    EXPECT_EQ(::getpgid(child->pid()), session == ChildSession::kOwn ? child->pid() : ::getpgrp());
    EXPECT_EQ(::getsid(child->pid()), session == ChildSession::kOwn ? child->pid() : ::getsid(0));
  }
}

}  // namespace
}  // namespace millrace::program
