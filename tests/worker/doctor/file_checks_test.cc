#include "worker/doctor/file_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "protocol/keys/key_files.h"

namespace millrace::doctor {
namespace {

using enum Verdict;

/// Every check has a finding, and every warning and problem a change.
void expect_advice(const std::vector<Check>& checks) {
  for (const Check& check : checks) {
    EXPECT_FALSE(check.found.empty()) << check.name;
    EXPECT_TRUE(check.verdict < kWarning || !check.change.empty()) << check.name;
  }
}

TEST(FileChecks, PathsThatAreNotThereAreProblems) {
  std::optional<protocol::TransportKeys> keys;
  const std::vector<Check> checks = check_key_files("/nowhere/a.key", "/nowhere/b.pub", keys);
  EXPECT_EQ(checks.size(), 2u);
  EXPECT_FALSE(keys.has_value());
  for (const std::vector<Check>& one :
       {checks, check_allowed_keys("/nowhere", ""), check_job_keys("/nowhere"),
        std::vector{check_listen("192.0.2.1:7600")}, std::vector{check_listen("no port")}}) {
    EXPECT_EQ(worst_of(one), kProblem);
    expect_advice(one);
  }
  EXPECT_TRUE(check_key_files("", "", keys).empty());
}

TEST(FileChecks, AListenAddressThatIsLoopbackIsAProblem) {
  const protocol::HostResolver resolver = [](const std::string& host) {
    const char* number = host == "node0" ? "127.0.1.1" : "127.0.0.1";
    return Result<std::vector<protocol::HostAddress>>({{.text = number}});
  };
  const Check check = check_listen("node0:7600", resolver);
  EXPECT_EQ(check.verdict, kProblem);
  EXPECT_THAT(check.found, ::testing::HasSubstr("127.0.1.1"));
  EXPECT_THAT(check.change, ::testing::HasSubstr("the name node0 from its line"));
  EXPECT_THAT(check.change, ::testing::HasSubstr("0.0.0.0:7600, with --advertise node0:7600"));
}

/// Draws a worker's key. Its secret is on the worker's machine.
void allow(const std::string& folder, const std::string& name, protocol::KeyEnd end = {}) {
  const auto files = protocol::write_new_keys(folder, name, end);
  ASSERT_TRUE(files) << files.error().message;
  std::filesystem::remove(files->secret_path);
}

TEST(FileChecks, KeysThatEndSoonAreAWarning) {
  std::string pattern = (std::filesystem::temp_directory_path() / "millrace-doctor-XXXXXX").string();
  const std::string folder = ::mkdtemp(pattern.data());
  const std::chrono::sys_days today = protocol::present_day();
  allow(folder, "later", today + std::chrono::days(20));
  allow(folder, "cluster");
  const std::vector<Check> late = check_allowed_keys(folder, "");
  EXPECT_EQ(worst_of(late), Verdict::kOk);
  EXPECT_THAT(late.back().found, ::testing::HasSubstr(protocol::key_end_text(today + std::chrono::days(20))));
  allow(folder, "soon", today + std::chrono::days(13));
  EXPECT_EQ(worst_of(check_allowed_keys(folder, "")), Verdict::kWarning);
  std::filesystem::remove(folder + "/soon.pub");
  allow(folder, "gone", today);
  const std::vector<Check> ended = check_allowed_keys(folder, "");
  EXPECT_EQ(worst_of(ended), Verdict::kWarning);
  EXPECT_THAT(ended.front().found, ::testing::HasSubstr("'gone' was allowed until"));
  EXPECT_THAT(ended.back().found, ::testing::HasSubstr("it allows 2 keys"));
  for (const auto& checks : {late, ended}) expect_advice(checks);
  std::filesystem::remove_all(folder);
}

TEST(FileChecks, TheClustersOwnKeyLetsNoWorkerIn) {
  std::string pattern = (std::filesystem::temp_directory_path() / "millrace-doctor-XXXXXX").string();
  const std::string folder = ::mkdtemp(pattern.data());
  ASSERT_TRUE(protocol::write_new_keys(folder, "cluster"));
  const Check none = check_allowed_keys(folder, "").back();
  EXPECT_EQ(none.verdict, kProblem);
  EXPECT_EQ(none.found, "it allows no key beside 'cluster', whose secret is here");
  allow(folder, "worker-0");
  EXPECT_EQ(check_allowed_keys(folder, "").back().found, "it allows 1 keys beside 'cluster', whose secret is here");
  ASSERT_TRUE(protocol::write_new_keys(folder, "worker-1"));  // a trial: all files in one folder
  EXPECT_EQ(check_allowed_keys(folder, "").back().found,
            "it allows 3 keys, the cluster's own among them if its file is there");
  EXPECT_EQ(check_allowed_keys(folder, folder + "/cluster.pub").back().found,
            "it allows 2 keys beside the cluster's own");
  std::filesystem::remove_all(folder);
}

TEST(FileChecks, AFolderWithoutTheClustersSecretIsNotJudgedByIt) {
  std::string pattern = (std::filesystem::temp_directory_path() / "millrace-doctor-XXXXXX").string();
  const std::string folder = ::mkdtemp(pattern.data());
  EXPECT_EQ(check_allowed_keys(folder, "").back().found, "it allows no key");
  allow(folder, "cluster");  // its secret is in another folder
  const std::vector<Check> one = check_allowed_keys(folder, "");
  EXPECT_EQ(one.back().verdict, kWarning);
  expect_advice(one);
  ASSERT_TRUE(protocol::write_new_keys(folder, "worker-0"));
  EXPECT_EQ(check_allowed_keys(folder, "").back().found, "it allows 1 keys beside 'worker-0', whose secret is here");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace millrace::doctor
