// `millrace status` beside real servers and workers: a worker that is lacking, one of another shape, one that is
// stopped.
#include <gmock/gmock.h>
#include <poll.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "kernels/base/clock.h"
#include "tests/integration/cluster_processes.h"
#include "tests/support/tree_paths.h"

namespace millrace::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kLookEveryMs = 20;

class StatusCommand : public ClusterProcesses {
 protected:
  /// Starts a worker that trains to the end of the test. Its output is not read that long: a full pipe would stop it.
  launch::ChildProcess start_endless(uint32_t worker, uint32_t workers) {
    return start_worker(worker, workers, 1'000'000, {"quiet_from=10"});
  }

  struct Said {
    nlohmann::json json;
    int exit_code = -1;
    const nlohmann::json& job() const { return json.at("jobs").at(0); }
    std::string verdict() const { return job().at("verdict"); }
  };

  Said ask(const std::vector<std::string>& flags) {
    launch::SpawnOptions options;
    options.argv = {built_file("bin/millrace"), "status", "--json", "--stalled-after", "0.3s"};
    options.argv.insert(options.argv.end(), flags.begin(), flags.end());
    options.stderr_path = path("status-" + std::to_string(logs_++) + ".log");
    auto child = launch::ChildProcess::spawn(options);
    Said said;
    if (!child) {
      ADD_FAILURE() << child.error().message;
      return said;
    }
    const auto line = child->read_line(kPatienceMs);
    EXPECT_TRUE(line.has_value());
    said.json = nlohmann::json::parse(line.value_or("{}"));
    said.exit_code = child->wait(kPatienceMs).value().exit_code;
    return said;
  }

  /// Asks until the job is in that state, and `also` holds.
  template <typename Condition>
  Said ask_until(const std::string& state, const Condition& also) {
    const TimeNs deadline = monotonic_now_ns() + kPatienceMs * kNsPerMs;
    Said said;
    do {
      said = ask(http_addresses_);
      if (said.json.contains("jobs") && !said.json["jobs"].empty() && said.job()["state"] == state && also(said))
        return said;
      ::poll(nullptr, 0, kLookEveryMs);
    } while (monotonic_now_ns() < deadline);
    ADD_FAILURE() << "never " << state << ": " << said.json.dump();
    return said;
  }
};

TEST_F(StatusCommand, WorkerThatIsLackingIsNamedAndOneOfAnotherShapeWithTheField) {
  ASSERT_NO_FATAL_FAILURE(start_shards(2));
  std::vector<launch::ChildProcess> workers;
  for (const uint32_t worker : {0u, 2u}) workers.push_back(start_endless(worker, 3));
  for (auto& worker : workers) wait_for_line(worker, "log joined job");
  const Said lacking = ask_until("waiting to start", [](const Said&) { return true; });
  EXPECT_THAT(lacking.verdict(), HasSubstr("worker 1 never said Hello"));
  EXPECT_EQ(lacking.exit_code, 10);
  EXPECT_EQ(lacking.job()["missing_workers"], nlohmann::json({1}));

  launch::ChildProcess other = start_worker(1, 3, 1, {"dimension=19999"});
  WorkerLog log;
  read_to_end(other, log);
  const Said refused = ask(http_addresses_);
  EXPECT_THAT(refused.verdict(), AllOf(HasSubstr("refused worker 1"), HasSubstr("dimension 20000 here, 19999 there")));
  EXPECT_EQ(refused.exit_code, 10);

  workers.push_back(start_endless(1, 3));
  const Said running =
      ask_until("running", [](const Said& said) { return said.job()["waits"][0]["steps_decided"] > 0; });
  EXPECT_EQ(running.exit_code, 0);
}

TEST_F(StatusCommand, StatusNamesAStoppedWorkerUntilItResumes) {
  ASSERT_NO_FATAL_FAILURE(start_shards(2));
  std::vector<launch::ChildProcess> workers;
  for (const uint32_t worker : {0u, 1u}) workers.push_back(start_endless(worker, 2));
  wait_for_line(workers[1], "pushed 3");
  ::kill(workers[1].pid(), SIGSTOP);
  const Said stopped = ask_until("stalled", [](const Said& said) {
    return said.verdict().contains("worker 1") && said.verdict().contains("last heard");
  });
  ::kill(workers[1].pid(), SIGCONT);
  EXPECT_THAT(stopped.verdict(), AllOf(HasSubstr("blocked on worker 1 in step"), HasSubstr("removed at 60 s")));
  EXPECT_EQ(stopped.exit_code, 9);
  const Said again = ask_until("running", [](const Said&) { return true; });
  EXPECT_EQ(again.exit_code, 0);
}

TEST_F(StatusCommand, StatusReadsTheTableAndListsShardsThatDoNotAnswer) {
  ASSERT_NO_FATAL_FAILURE(start_shards(1));
  EXPECT_EQ(ask(http_addresses_).exit_code, 0) << "no job is no trouble";
  const Said answers = ask({"--table", path("table.db")});  // at the free port that its process has written there
  EXPECT_EQ(answers.exit_code, 0);
  EXPECT_TRUE(answers.json["said"].contains(http_addresses_[0])) << answers.json.dump();
  shards_[0]->kill_now();
  const Said said = ask({"--table", path("table.db")});
  EXPECT_EQ(said.exit_code, 4);
  ASSERT_EQ(said.json["unanswered"].size(), 1u) << said.json.dump();
}

}  // namespace
}  // namespace millrace::testing
