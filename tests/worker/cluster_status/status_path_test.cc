#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iterator>

#include "tests/worker/cluster_status/status_fixture.h"

/// Jobs whose steps go by datagrams: shards see none of them, and the workers report on which they are blocked.
namespace millrace::cluster_status {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct StatusOfPath : StatusFixture {
  /// Returns the status of a switch that has the job in both roles, and another job.
  static nlohmann::json switch_status(const std::string& address, const std::string& words) {
    return {{"lcores", {{{"address", address}}, {{"address", address}}}},
            {"jobs",
             {{{"job", kSwitchJob}, {"role", "combine"}, {"waiting_because", "a rack's"}},
              {{"job", kSwitchJob}, {"role", "reduce"}, {"waiting_because", words}},
              {{"job", 8}, {"role", "reduce"}, {"waiting_because", "another job's"}}}}};
  }
  void start_by_switch(const std::string& datagrams, const std::string& address = "192.0.2.7:7700") {
    protocol::JobSpec spec = job(2);
    spec.path = protocol::Path::kSwitch;
    spec.switch_path.address = address;
    spec.switch_path.job = kSwitchJob;
    ASSERT_TRUE(protocol::validate(spec).has_value());
    cluster = std::make_unique<ScriptedCluster>(spec, 1, server::Limits{}, server::JobStore::Saves{}, datagrams);
    shard_count = 1;
    cluster->join_all();
  }
  using Wait = protocol::Heartbeat::SwitchWait;
  static constexpr uint32_t kSwitchJob = 7;
  void waits(uint32_t worker, Wait wait, uint64_t steps) const {
    protocol::Heartbeat heartbeat;
    heartbeat.switch_wait = wait;
    heartbeat.switch_steps = steps;
    cluster->send(ScriptedCluster::peer(worker), 0, {cluster->header(worker), heartbeat, {}});
  }
  /// Says the same for 22 s.
  void stands_still(const std::function<void()>& say_it) {
    for (int second = 0; second < 22; ++second) {
      say_it();
      pass_with({}, 1'000);
    }
    say_it();
  }
  void say(uint32_t worker, protocol::Heartbeat::Switch word) const {
    protocol::Heartbeat heartbeat;
    heartbeat.switch_state = word;
    cluster->send(ScriptedCluster::peer(worker), 0, {cluster->header(worker), heartbeat, {}});
  }
};

TEST_F(StatusOfPath, TheReportNamesTheDeciderAndEachWorkersSwitchReport) {
  start_by_switch("192.0.2.1:7800");
  EXPECT_THAT(report_text(look(), {}), HasSubstr("path: the switch at 192.0.2.7:7700 decides\n"));
  say(1, protocol::Heartbeat::Switch::kSilent);
  EXPECT_THAT(report_text(look(), {}),
              AllOf(HasSubstr("path: shard 0 (192.0.2.1:7800) decides in place of the switch at 192.0.2.7:7700"),
                    HasSubstr("worker 1 says that the switch is silent")));
  say(0, protocol::Heartbeat::Switch::kAnswers);
  const nlohmann::json path = report_json(look(), {})["jobs"][0]["path"];
  EXPECT_EQ(path["decided_by"], "server");
  EXPECT_EQ(path["answers"], nlohmann::json::array({0}));
  EXPECT_EQ(path["changes"], 1);
}

TEST_F(StatusOfPath, ASwitchJobIsNotStalledBecauseTheShardsSeeNoSteps) {
  start_by_switch("192.0.2.1:7800");
  pass_with({0, 1}, 60'000);
  EXPECT_EQ(the_job().state, JobState::kRunning);
  EXPECT_EQ(code_of(look()), std::nullopt);
}

TEST_F(StatusOfPath, JobWhoseStepsGoOnIsRunningAtTheStepThatAllHaveGotTo) {
  start_by_switch("192.0.2.1:7800");
  for (uint64_t step = 0; step < 10; ++step) {
    waits(0, Wait::kContributions, step + 3);
    waits(1, Wait::kNothing, step + 2);
    pass_with({}, 1'000);
  }
  EXPECT_EQ(the_job().state, JobState::kRunning);
  EXPECT_THAT(the_job().verdict, HasSubstr("running: step 11 by datagrams, 2 of 2 workers"));
}

TEST_F(StatusOfPath, WorkerThatTheSwitchDoesNotAnswerHoldsUpTheJobAndIsNamed) {
  start_by_switch("");
  stands_still([this] {
    waits(0, Wait::kGreetings, 0);
    waits(1, Wait::kAnswer, 0);
  });
  EXPECT_THAT(
      the_job().verdict,
      AllOf(HasSubstr("stalled for 22.0 s: "),
            HasSubstr("the switch at 192.0.2.7:7700 does not answer worker 1: another key, or datagrams do not")));
  EXPECT_THAT(report_text(look(), {}),
              AllOf(HasSubstr("1           0      answer"), HasSubstr("0           0   greetings")));
  EXPECT_EQ(code_of(look()), program::ExitCode::kStalled);
  const nlohmann::json path = report_json(look(), {})["jobs"][0]["path"];
  EXPECT_EQ(path["waits"][1]["for"], "answer");
  EXPECT_NEAR(path["waits"][1]["seconds"].get<double>(), 22, 0.01);
  EXPECT_NEAR(path["moved_seconds"].get<double>(), 22, 0.01);
}

TEST_F(StatusOfPath, TheVerdictContainsTheSwitchsOwnReport) {
  start_by_switch("");
  stands_still([this] {
    waits(0, Wait::kGreetings, 0);
    waits(1, Wait::kAnswer, 0);
  });
  switch_jobs = monitoring::read_switch_jobs(switch_status("192.0.2.7:7700", "53 packets (bad_mac)"));
  EXPECT_EQ(switch_jobs.size(), 3u);
  EXPECT_THAT(the_job().verdict, HasSubstr("do not get there and back (the switch reports: 53 packets (bad_mac))"));
  EXPECT_TRUE(monitoring::read_switch_jobs({{"jobs", {{{"job", kSwitchJob}}}}}).empty()) << "no switch's status";
  EXPECT_TRUE(monitoring::read_switch_jobs(nlohmann::json::array()).empty());
}

TEST_F(StatusOfPath, WordsOfAnotherSwitchAreNotThoseOfTheJobs) {
  start_by_switch("");
  for (const char* other : {"192.0.2.8:7700", "192.0.2.7:7701", "[2001:db8::7]:7700", "", "no address"}) {
    switch_jobs = monitoring::read_switch_jobs(switch_status(other, "the other's"));
    EXPECT_EQ(the_job().switch_because, "") << other;
    std::ranges::copy(monitoring::read_switch_jobs(switch_status("192.0.2.7:7700", "its own")),
                      std::back_inserter(switch_jobs));
    EXPECT_EQ(the_job().switch_because, "its own") << other;
  }
  switch_jobs = monitoring::read_switch_jobs(switch_status("0.0.0.0:7700", "of all addresses"));
  EXPECT_EQ(the_job().switch_because, "of all addresses");
  switch_jobs = monitoring::read_switch_jobs(switch_status("[::]:7700", "of all addresses"));
  EXPECT_EQ(the_job().switch_because, "of all addresses");
}

TEST_F(StatusOfPath, ASwitchThatTheJobNamesByItsHostsNameIsKnownByThePort) {
  start_by_switch("", "tor-7.example:7700");
  switch_jobs = monitoring::read_switch_jobs(switch_status("192.0.2.8:7701", "the other's"));
  EXPECT_EQ(the_job().switch_because, "");
  switch_jobs = monitoring::read_switch_jobs(switch_status("192.0.2.7:7700", "its own"));
  EXPECT_EQ(the_job().switch_because, "its own");
}

TEST_F(StatusOfPath, AStalledJobsVerdictNamesTheProcessThatBlocksIt) {
  start_by_switch("192.0.2.1:7800");
  const auto verdict_of = [this](Wait first, Wait second, uint64_t steps) {
    stands_still([&] {
      waits(0, first, 7 + steps);
      waits(1, second, 6 + steps);
    });
    return the_job().verdict;
  };
  EXPECT_THAT(verdict_of(Wait::kGreetings, Wait::kNothing, 0),
              HasSubstr("is blocked on the greeting of worker 1 (heard"));
  EXPECT_THAT(verdict_of(Wait::kGreetings, Wait::kGreetings, 1),
              HasSubstr("opens no epoch, though workers 0 and 1 greet it"));
  EXPECT_THAT(verdict_of(Wait::kContributions, Wait::kNothing, 2),
              HasSubstr("worker 1 sends nothing to step 9 (heard"));
  EXPECT_THAT(verdict_of(Wait::kContributions, Wait::kContributions, 3),
              HasSubstr("are blocked on each other's contributions"));
  EXPECT_THAT(verdict_of(Wait::kContributions, Wait::kOtherJob, 4),
              HasSubstr("is with another job of number 7, as worker 1"));
}

TEST_F(StatusOfPath, AJobWhoseWorkersReportNoWaitCountsAsRunning) {
  start_by_switch("");
  stands_still([this] {
    waits(0, Wait::kNotReported, 0);
    waits(1, Wait::kNotReported, 0);
  });
  EXPECT_EQ(the_job().state, JobState::kRunning);
}

TEST_F(StatusOfPath, ASilentSwitchWithoutAFallbackIsInTheVerdict) {
  start_by_switch("");
  say(0, protocol::Heartbeat::Switch::kSilent);
  EXPECT_THAT(the_job().verdict, AllOf(HasSubstr("silent to worker 0"), HasSubstr("--datagrams")));
}

}  // namespace
}  // namespace millrace::cluster_status
