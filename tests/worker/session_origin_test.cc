#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>

#include "millrace/millrace.h"
#include "tests/worker/session_jobs.h"

/// An error of a session says whether this worker's options and files are its cause, or the job.
namespace millrace::testing {
namespace {

std::optional<JobErrorOrigin> origin_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const JobError& error) {
    return error.origin();
  }
  return std::nullopt;
}

class SessionOrigin : public ::testing::Test {
 protected:
  void SetUp() override {
    job_.shards = {"tcp://127.0.0.1:1"};
    job_.connect_timeout_ms = 50;
  }
  void TearDown() override { std::filesystem::remove(path_); }
  std::optional<JobErrorOrigin> origin() const {
    return origin_of([this] { Session::connect(job_, kSessionTwoTensors); });
  }

  const std::string path_ = ::testing::TempDir() + "millrace_session_origin_" + std::to_string(::getpid());
  JobOptions job_ = session_job_of(1);
};

TEST_F(SessionOrigin, ADamagedSavedStateIsThisWorkers) {
  job_.load_path = path_;
  for (const char* content : {"", "MLRSAVE3", "something else"}) {
    std::ofstream(path_) << content;
    EXPECT_EQ(origin(), JobErrorOrigin::kWorker) << "'" << content << "'";
  }
}

TEST_F(SessionOrigin, AnOptionThatCannotBeIsThisWorkers) {
  job_.select = "no such word";
  EXPECT_EQ(origin(), JobErrorOrigin::kWorker);
  EXPECT_EQ(origin_of([this] { Session::check(job_, kSessionTwoTensors); }), JobErrorOrigin::kWorker);
}

TEST_F(SessionOrigin, APlaceWhereNoStateCanBeSavedIsThisWorkers) {
  job_.save_path = ::testing::TempDir();
  EXPECT_EQ(origin(), JobErrorOrigin::kWorker) << "found out before a server is asked";
}

TEST_F(SessionOrigin, AServerThatIsNotThereIsTheJobs) { EXPECT_EQ(origin(), JobErrorOrigin::kJob); }

}  // namespace
}  // namespace millrace::testing
