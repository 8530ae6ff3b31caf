#include "server/access/audit_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace millrace::server {
namespace {

using Act = AuditEvent::What;

/// Bytes of a file after the line of a start, within the next line.
constexpr rlim_t kWithinSecondLine = 80;

class AuditFolder : public ::testing::Test {
 protected:
  AuditFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "millrace-audit-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~AuditFolder() override { std::filesystem::remove_all(path_); }
  static std::vector<nlohmann::json> lines_of(const std::string& path) {
    std::vector<nlohmann::json> lines;
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }
  /// Returns the lines as they are, also those that are no JSON.
  static std::vector<std::string> texts_of(const std::string& path) {
    std::vector<std::string> lines;
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }
  std::string path_;
};

/// A disk that is full once a file has `file_bytes`.
class SmallDisk {
 public:
  explicit SmallDisk(rlim_t file_bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    rlimit small = before_;
    small.rlim_cur = file_bytes;
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  }
  ~SmallDisk() {
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before_), 0);
    std::signal(SIGXFSZ, handler_);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(AuditLine, HasOnlyTheKnownFields) {
  const protocol::PublicKey key = protocol::draw_key_pair().public_key;
  const AuditEvent event{.what = Act::kJoin, .by = {"id", key, "192.0.2.7"}, .job = "j", .worker = 3, .incarnation = 9};
  const std::string line = audit_line(event, "worker-3", 1, {}, 1'700'000'000'042);
  EXPECT_EQ(line, R"({"time":"2023-11-14T22:13:20.042Z","event":"join","shard":1,"key":"worker-3","public_key":")" +
                      protocol::key_digits(key) + R"(","address":"192.0.2.7","job":"j","worker":3,"incarnation":9})" +
                      "\n");
  EXPECT_EQ(audit_line({.what = Act::kStop}, "", 0, {}, 0),
            R"({"time":"1970-01-01T00:00:00.000Z","event":"stop","shard":0})"
            "\n");
}

TEST(AuditLine, TextOfPeersStaysOneLineOfValidJson) {
  const AuditEvent event{.what = Act::kRefuse, .job = "a\nb\"\xff", .code = "stale", .sentence = "x\r\n{\"event\":1}"};
  const std::string line = audit_line(event, "", 0, {.refusals_left_out = 3, .lines_lost = 2}, 0);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const auto parsed = nlohmann::json::parse(line);
  EXPECT_EQ(parsed["event"], "refuse");
  EXPECT_EQ(parsed["refusals_left_out"], 3);
  EXPECT_EQ(parsed["lines_lost"], 2);
}

TEST(RefusalLimit, EqualRefusalsWithinAMinuteAreOne) {
  RefusalLimit limit;
  AuditEvent event{.what = Act::kRefuse, .by = {"", {}, "a"}, .code = "stale", .sentence = "free in 3 s"};
  EXPECT_TRUE(limit.admit(event, "", kNsPerS));
  event.sentence = "free in 2 s";
  EXPECT_FALSE(limit.admit(event, "", 2 * kNsPerS));
  EXPECT_FALSE(limit.admit(event, "", RefusalLimit::kSameWithin));
  EXPECT_EQ(limit.take_left_out(), 2U);
  EXPECT_EQ(limit.take_left_out(), 0U);
  EXPECT_TRUE(limit.admit(event, "", kNsPerS + RefusalLimit::kSameWithin));
  event.worker = 1;
  EXPECT_TRUE(limit.admit(event, "", kNsPerS + RefusalLimit::kSameWithin));
}

TEST(RefusalLimit, AFloodOfDifferentOnesIsBounded) {
  RefusalLimit limit;
  uint64_t admitted = 0;
  for (uint32_t at = 0; at < 100'000; ++at) {
    const AuditEvent event{.what = Act::kRefuse, .job = "j" + std::to_string(at), .code = "stale"};
    admitted += limit.admit(event, "", at * (10 * kNsPerS / 100'000)) ? 1 : 0;
  }
  EXPECT_EQ(admitted, 10 * RefusalLimit::kPerSecond);
  EXPECT_EQ(limit.take_left_out(), 100'000 - admitted);
}

TEST(RefusalLimit, StrangersHideNoRefusalOfAKey) {
  RefusalLimit limit;
  uint32_t number = 0;
  const auto admitted = [&](const std::string& key) {
    const AuditEvent event{.what = Act::kRefuse, .job = "j" + std::to_string(++number), .code = "stale"};
    return limit.admit(event, key, kNsPerS);
  };
  for (int at = 0; at < 10'000; ++at) admitted("");
  EXPECT_FALSE(admitted(""));
  for (uint32_t at = 0; at < RefusalLimit::kPerSecondOfKey; ++at) EXPECT_TRUE(admitted("bob"));
  EXPECT_FALSE(admitted("bob"));
  EXPECT_TRUE(admitted("alice"));
}

TEST(RefusalLimit, AMemberThatJoinsAgainAndAgainHasOneLineAMinute) {
  RefusalLimit limit;
  AuditEvent event{.what = Act::kJoin, .job = "j", .worker = 1, .incarnation = 1};
  EXPECT_TRUE(limit.admit_act(event, kNsPerS));
  for (int at = 0; at < 100; ++at) EXPECT_FALSE(limit.admit_act(event, 2 * kNsPerS));
  event.incarnation = 2;
  EXPECT_TRUE(limit.admit_act(event, 2 * kNsPerS)) << "another process";
  event.incarnation = 1;
  EXPECT_TRUE(limit.admit_act(event, kNsPerS + RefusalLimit::kSameWithin));
}

TEST_F(AuditFolder, AFloodOfRefusedKeysAndEndedConnectionsHasFewLinesAndACount) {
  const std::string path = path_ + "/audit.log";
  const auto log = AuditLog::open(path).value();
  constexpr uint32_t kFlood = 1'000;
  for (uint32_t at = 0; at < kFlood; ++at) {
    const protocol::PeerId by{"", {}, "192.0.2." + std::to_string(at)};
    ASSERT_TRUE(log->write({.what = Act::kRefuse, .by = by, .code = "unauthenticated"}, "", 0, kNsPerS));
    ASSERT_TRUE(log->write({.what = Act::kClose, .by = by, .code = "never_spoke"}, "", 0, kNsPerS));
  }
  ASSERT_TRUE(log->write({.what = Act::kStop}, "", 0, kNsPerS));
  const auto lines = lines_of(path);
  ASSERT_EQ(lines.size(), RefusalLimit::kPerSecond + 1);
  EXPECT_EQ(lines[0]["event"], "refuse");
  EXPECT_EQ(lines[1]["event"], "close");
  EXPECT_EQ(lines[1]["code"], "never_spoke");
  EXPECT_EQ(lines[1]["address"], "192.0.2.0");
  EXPECT_EQ(lines.back()["refusals_left_out"], 2 * kFlood - RefusalLimit::kPerSecond);
}

TEST_F(AuditFolder, ALineThatAKilledProcessLeftIsEnded) {
  const std::string path = path_ + "/audit.log";
  std::ofstream(path) << R"({"event":"sta)";
  const auto log = AuditLog::open(path).value();
  ASSERT_TRUE(log->write({.what = Act::kStart}, "", 0, 0));
  std::ofstream(path, std::ios::app) << R"({"event":"jo)";
  ASSERT_TRUE(log->reopen());
  ASSERT_TRUE(log->write({.what = Act::kStop}, "", std::nullopt, 0));
  const std::vector<std::string> lines = texts_of(path);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(nlohmann::json::parse(lines[1])["event"], "start");
  EXPECT_FALSE(nlohmann::json::parse(lines[3]).contains("shard")) << "of a spare that waits";
}

TEST_F(AuditFolder, ItsGroupMayReadTheFileUnderAnyUmask) {
  const mode_t before = ::umask(0077);
  const auto log = AuditLog::open(path_ + "/audit.log").value();
  ::umask(before);
  struct stat status{};
  ASSERT_EQ(::stat((path_ + "/audit.log").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640U);
}

TEST_F(AuditFolder, ARotatedFileIsLeftAndANewOneBegun) {
  const std::string path = path_ + "/audit.log";
  const auto log = AuditLog::open(path).value();
  struct stat status{};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0007, 0U) << "it names jobs and addresses";
  ASSERT_TRUE(log->write({.what = Act::kStart}, "", 0, 0));
  std::filesystem::rename(path, path + ".1");
  ASSERT_TRUE(log->write({.what = Act::kJoin}, "", 0, 0));
  ASSERT_TRUE(log->reopen());
  ASSERT_TRUE(log->write({.what = Act::kStop}, "", 0, 0));
  EXPECT_EQ(lines_of(path + ".1").size(), 2U);
  ASSERT_EQ(lines_of(path).size(), 1U);
  EXPECT_EQ(lines_of(path)[0]["event"], "stop");
  // Shards share a file.
  const auto other = AuditLog::open(path).value();
  ASSERT_TRUE(other->write({.what = Act::kStart}, "", 1, 0));
  ASSERT_TRUE(log->write({.what = Act::kStart}, "", 0, 0));
  EXPECT_EQ(lines_of(path).size(), 3U);
}

TEST_F(AuditFolder, AFolderOrAPipeIsRefusedAndAFailedReopenKeepsTheFile) {
  ASSERT_EQ(::mkfifo((path_ + "/pipe").c_str(), 0600), 0);
  EXPECT_FALSE(AuditLog::open(path_ + "/pipe"));
  EXPECT_FALSE(AuditLog::open(path_));
  EXPECT_EQ(AuditLog::open(path_ + "/no/such/audit.log").error().code, ErrorCode::kIo);
  const std::string folder = path_ + "/folder";
  std::filesystem::create_directory(folder);
  const auto log = AuditLog::open(folder + "/audit.log").value();
  std::filesystem::rename(folder, path_ + "/moved");
  EXPECT_FALSE(log->reopen());
  ASSERT_TRUE(log->write({.what = Act::kStop}, "", 0, 0));
  EXPECT_EQ(lines_of(path_ + "/moved/audit.log").size(), 1U);
}

TEST_F(AuditFolder, LinesThatCannotBeWrittenAreCountedAndSaidOnce) {
  const std::string path = path_ + "/audit.log";
  const auto log = AuditLog::open(path).value();
  {
    const SmallDisk disk(kWithinSecondLine);
    EXPECT_TRUE(log->write({.what = Act::kStart}, "", 0, 0));
    EXPECT_FALSE(log->write({.what = Act::kStop}, "", 0, 0));
    EXPECT_TRUE(log->write({.what = Act::kStop}, "", 0, 0)) << "said again";
  }
  EXPECT_EQ(log->lines_lost(), 2U);
  ASSERT_TRUE(log->write({.what = Act::kJoin}, "", 0, 0));
  const std::vector<std::string> lines = texts_of(path);
  ASSERT_EQ(lines.size(), 3U) << "the torn line has one of its own";
  EXPECT_EQ(nlohmann::json::parse(lines[2])["lines_lost"], 2);
}

TEST_F(AuditFolder, ATornLineSwallowsNoLineOfAnotherShard) {
  const std::string path = path_ + "/audit.log";
  const auto log = AuditLog::open(path).value();
  const auto other = AuditLog::open(path).value();
  {
    const SmallDisk disk(kWithinSecondLine);
    EXPECT_TRUE(log->write({.what = Act::kStart}, "", 0, 0));
    EXPECT_FALSE(log->write({.what = Act::kStop}, "", 0, 0));
  }
  ASSERT_TRUE(other->write({.what = Act::kStart}, "", 1, 0));
  ASSERT_TRUE(log->write({.what = Act::kStart}, "", 0, 0));
  const std::vector<std::string> lines = texts_of(path);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(nlohmann::json::parse(lines[2])["shard"], 1);
  EXPECT_EQ(nlohmann::json::parse(lines[3])["shard"], 0);
}

TEST_F(AuditFolder, AFullDiskLosesNoCountOfRefusals) {
  const std::string path = path_ + "/audit.log";
  const auto log = AuditLog::open(path).value();
  for (int at = 0; at < 3; ++at) ASSERT_TRUE(log->write({.what = Act::kRefuse, .code = "stale"}, "", 0, kNsPerS));
  {
    const SmallDisk disk(1);
    EXPECT_FALSE(log->write({.what = Act::kStop}, "", 0, kNsPerS));
  }
  ASSERT_TRUE(log->write({.what = Act::kStart}, "", 0, kNsPerS));
  const auto lines = lines_of(path);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[1]["refusals_left_out"], 2);
  EXPECT_EQ(lines[1]["lines_lost"], 1);
}

}  // namespace
}  // namespace millrace::server
