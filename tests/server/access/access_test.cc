#include "server/access/access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "protocol/keys/key_files.h"

/// The keys, rates and Hellos of a server, without a process.
namespace millrace::server {
namespace {

class AccessOfFiles : public ::testing::Test {
 protected:
  AccessOfFiles() {
    std::string pattern = (std::filesystem::temp_directory_path() / "millrace-access-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
    for (const char* name : {"cluster", "alice"}) EXPECT_TRUE(protocol::write_new_keys(path_ + "/keys", name));
    alice_before_ = alice();
  }
  ~AccessOfFiles() override { std::filesystem::remove_all(path_); }

  void policy(const std::string& rules) const { std::ofstream(path_ + "/policy") << R"({"rules": [)" + rules + "]}"; }
  std::unique_ptr<Access> open() const {
    return Access::open({path_ + "/keys/cluster.key", path_ + "/keys", path_ + "/policy", ""}).value();
  }
  protocol::PeerId alice() const {
    return {"a", protocol::read_public_key(path_ + "/keys/alice.pub").value(), "192.0.2.1"};
  }
  static protocol::Received received(protocol::PeerId peer, protocol::Body body, uint64_t bytes) {
    return {std::move(peer), protocol::Message{{}, std::move(body), {}}, bytes};
  }
  static protocol::Hello hello_for(const std::string& job) {
    protocol::Hello hello;
    hello.spec.name = job;
    return hello;
  }
  std::string path_;
  protocol::PeerId alice_before_;
};

TEST_F(AccessOfFiles, AHelloForAnotherJobChangesNoRate) {
  policy(R"({"keys": ["alice"], "jobs": ["slow"], "may": ["create"], "rate": "80kbit"},
            {"keys": ["*"], "jobs": ["*"], "may": ["create"]})");
  const auto access = open();
  const auto passes = [&](TimeNs now) {
    return !access->take(received(alice(), protocol::Contribution{}, 1'000'000), now).refusal;
  };
  EXPECT_TRUE(passes(0)) << "the bucket is full, whether or not a Hello came before";
  EXPECT_FALSE(passes(0));
  for (int at = 0; at < 10; ++at) {
    for (const char* job : {"fast", "slow", "fast"}) {
      EXPECT_FALSE(access->take(received(alice(), hello_for(job), 100), 0).refusal);
      EXPECT_TRUE(access->rights().judge(alice(), {.job = job}));
      EXPECT_FALSE(passes(0)) << job;
    }
  }
}

TEST_F(AccessOfFiles, EachMessageCountsAndAContributionWaits) {
  policy(R"({"keys": ["*"], "jobs": ["*"], "may": ["create"], "rate": "80kbit"})");
  const auto access = open();
  EXPECT_FALSE(access->take(received(alice(), protocol::Snapshot{}, 20'000), 0).refusal);
  const Access::Intake refused = access->take(received(alice(), protocol::Contribution{.step = 7}, 10), 0);
  ASSERT_TRUE(refused.refusal);
  const auto& refusal = std::get<protocol::Refuse>(refused.refusal->body);
  EXPECT_TRUE(refusal.retry && refusal.about_contribution);
  EXPECT_EQ(refusal.step, 7U);
  EXPECT_EQ(refused.label, "over_rate");
  protocol::Received malformed{alice(), fail(ErrorCode::kMalformed, "x"), 10'000'000};
  EXPECT_EQ(access->take(malformed, 0).ends_because, "over_rate") << "64 times its debt";
  EXPECT_EQ(access->take(received(alice(), protocol::Heartbeat{}, 10), 0).ends_because, "over_rate");
}

/// Its worker cannot send them later: it learns the reason, and its session ends.
TEST_F(AccessOfFiles, AFloodWithoutContributionsHasTheReasonBeforeItsEnd) {
  policy(R"({"keys": ["*"], "jobs": ["*"], "may": ["create"], "rate": "80kbit"})");
  const auto access = open();
  Access::Intake intake;
  int served = 0;
  for (; served < 10'000 && !intake.refusal; ++served)
    intake = access->take(received(alice(), protocol::Heartbeat{}, 1'000), 0);
  EXPECT_GT(served, 64 * 10);
  EXPECT_LT(served, 64 * 12);
  for (int again = 0; again < 3; ++again) {
    ASSERT_TRUE(intake.refusal) << "the core sees none of them";
    const auto& refusal = std::get<protocol::Refuse>(intake.refusal->body);
    EXPECT_EQ(refusal.code, ErrorCode::kLimitExceeded);
    EXPECT_FALSE(refusal.retry || refusal.about_contribution);
    EXPECT_THAT(refusal.sentence, ::testing::StartsWith("key 'alice' is over its rate"));
    EXPECT_EQ(intake.label, "over_rate");
    EXPECT_EQ(intake.ends_because, "over_rate");
    EXPECT_EQ(intake.ends_after, Access::kEndsAfterReason);
    intake = access->take(received(alice(), hello_for("j"), 10), 0);
  }
  EXPECT_TRUE(access->take({alice(), fail(ErrorCode::kMalformed, "x"), 10}, 0).refusal);
}

TEST_F(AccessOfFiles, MessagesThatTheProtocolRequiresEndNoSession) {
  policy(R"({"keys": ["*"], "jobs": ["*"], "may": ["create"], "rate": "80kbit"})");
  const auto passes = [&](Access& access, const protocol::Body& body) {
    const Access::Intake intake = access.take(received(alice(), body, 4'000'000), 0);
    return !intake.refusal && intake.ends_because.empty();
  };
  const std::vector<protocol::Body> bodies = {protocol::Place{},   protocol::State{},    protocol::Update{},
                                              protocol::Fetched{}, protocol::Snapshot{}, protocol::Synced{},
                                              protocol::Goodbye{}};
  for (const protocol::Body& body : bodies) {
    SCOPED_TRACE(protocol::body_name(body));
    const auto access = open();
    for (int run = 0; run < 100; ++run) ASSERT_TRUE(passes(*access, body)) << run;
    const Access::Intake heartbeat = access->take(received(alice(), protocol::Heartbeat{}, 100), 0);
    EXPECT_FALSE(heartbeat.refusal || !heartbeat.ends_because.empty()) << "it is no flood of heartbeats";
    const Access::Intake contribution = access->take(received(alice(), protocol::Contribution{}, 100), 0);
    ASSERT_TRUE(contribution.refusal) << "they count";
    EXPECT_TRUE(std::get<protocol::Refuse>(contribution.refusal->body).retry);
    EXPECT_EQ(contribution.ends_because, "") << "its connection stays";
  }
}

TEST_F(AccessOfFiles, AKeyThatFloodsMayConnectAndIsHeard) {
  policy(R"({"keys": ["*"], "jobs": ["*"], "may": ["create"], "rate": "80kbit"})");
  const auto access = open();
  EXPECT_FALSE(access->take(received(alice(), protocol::Contribution{}, 20'000), 0).refusal);
  // A worker sends each refused part again.
  Access::Intake again;
  for (int part = 0; part < 1'000 && again.ends_because.empty(); ++part)
    again = access->take(received(alice(), protocol::Contribution{}, 20'000), 0);
  EXPECT_EQ(again.ends_because, "over_rate");
  EXPECT_EQ(again.ends_after, 0);
  ASSERT_TRUE(again.refusal);
  EXPECT_TRUE(std::get<protocol::Refuse>(again.refusal->body).retry) << "it can come again";
  EXPECT_TRUE(access->admits({alice().key, "192.0.2.1"}, 0));
  EXPECT_FALSE(access->take(received(alice(), hello_for("j"), 10), 0).refusal);
  EXPECT_FALSE(access->take(received(alice(), protocol::Heartbeat{}, 10), 0).refusal) << "its job keeps it";
  EXPECT_EQ(access->take(received(alice(), protocol::Contribution{}, 10), 0).label, "over_rate");
}

TEST_F(AccessOfFiles, AnUnfinishedMessageCountsAndLengthensNoDebt) {
  policy(R"({"keys": ["*"], "jobs": ["*"], "may": ["create"], "rate": "80kbit"})");
  const auto access = open();
  const auto passes = [&](TimeNs now) {
    return !access->take(received(alice(), protocol::Contribution{}, 10), now).refusal;
  };
  access->charge_unfinished(alice(), 20'000, 0);
  EXPECT_FALSE(passes(0));
  for (int closed = 0; closed < 100; ++closed) access->charge_unfinished(alice(), 20'000, 0);
  EXPECT_EQ(access->take(received(alice(), protocol::Contribution{}, 10), 0).ends_because, "over_rate");
  EXPECT_TRUE(passes(2 * kNsPerS)) << "its own debt is paid";
}

TEST_F(AccessOfFiles, MessagesThatAreRefusedCountAsWell) {
  policy(R"({"keys": ["*"], "jobs": ["*"], "may": ["create"], "rate": "80kbit"})");
  const auto access = open();
  const auto forged = [&](uint64_t bytes) { return access->take(received(alice(), protocol::ShardHello{}, bytes), 0); };
  for (const uint64_t bytes : {20'000, 100'000}) {
    const Access::Intake intake = forged(bytes);
    ASSERT_TRUE(intake.refusal) << "a worker's key may not speak as a shard";
    EXPECT_EQ(intake.ends_because, "");
  }
  EXPECT_EQ(access->take(received(alice(), protocol::Contribution{}, 10), 0).label, "over_rate");
  EXPECT_EQ(forged(10'000'000).ends_because, "over_rate");
}

/// A connection that had not spoken when its key was taken away has no session that the reload could end.
TEST_F(AccessOfFiles, TheFirstMessageOfARevokedKeyEndsItsConnection) {
  policy(R"({"keys": ["*"], "jobs": ["*"], "may": ["create"]})");
  const auto access = open();
  const protocol::PeerId quiet = alice();
  EXPECT_EQ(access->take(received(quiet, hello_for("j"), 10), 0).ends_because, "");
  std::filesystem::remove(path_ + "/keys/alice.pub");
  ASSERT_TRUE(access->reload(0));
  const Access::Intake intake = access->take(received(quiet, hello_for("j"), 10), 0);
  EXPECT_TRUE(intake.refusal);
  EXPECT_EQ(intake.ends_because, "key_revoked");
  EXPECT_EQ(intake.ends_after, Access::kEndsAfterReason);
  protocol::Received malformed{quiet, fail(ErrorCode::kMalformed, "x"), 10};
  EXPECT_EQ(access->take(malformed, 0).ends_because, "key_revoked");
}

TEST_F(AccessOfFiles, ARateThatAReloadBringsHoldsForKeysThatSpokeBefore) {
  policy(R"({"keys": ["*"], "jobs": ["*"], "may": ["create"]})");
  const auto access = open();
  const auto passes = [&](TimeNs now) {
    return !access->take(received(alice(), protocol::Contribution{}, 1'000'000), now).refusal;
  };
  EXPECT_TRUE(passes(0) && passes(0));
  policy(R"({"keys": ["*"], "jobs": ["*"], "may": ["create"], "rate": "80kbit"})");
  ASSERT_TRUE(access->reload(0));
  EXPECT_TRUE(passes(0)) << "a full bucket";
  EXPECT_FALSE(passes(0));
  policy("damaged");
  EXPECT_FALSE(access->reload(0));
  EXPECT_FALSE(passes(0));
}

TEST_F(AccessOfFiles, HellosOfAKeyThatNeedTheTableAreBounded) {
  policy(R"({"keys": ["*"], "jobs": ["*"], "may": ["create"]})");
  const auto access = open();
  const Rights rights = access->rights();
  int admitted = 0;
  for (; admitted < 10'000 && rights.admit_to_table(alice(), 0); ++admitted) rights.refused_by_table(alice(), 0);
  EXPECT_EQ(admitted, 182);
  const Status refused = rights.admit_to_table(alice(), 0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable) << "it tries again";
  EXPECT_FALSE(access->take(received(alice(), hello_for("j"), 10), 0).refusal) << "a member may connect again";
  EXPECT_FALSE(Access::open({}).value()->rights().admit_to_table) << "without keys nothing is bounded";
}

TEST_F(AccessOfFiles, ActsOfNamedTokensAreJudgedAndRecorded) {
  policy(R"({"keys": ["ops"], "jobs": ["*"], "may": ["end"]})");
  const std::string log = path_ + "/audit";
  const auto access = Access::open({path_ + "/keys/cluster.key", path_ + "/keys", path_ + "/policy", log}).value();
  const ReaderRights rights = access->reader_rights();
  EXPECT_TRUE(rights.judge("ops", "j", ReaderRight::kEnd));
  EXPECT_FALSE(rights.judge("ops", "j", ReaderRight::kObserve));
  policy(R"({"keys": ["ops"], "jobs": ["*"], "may": ["observe"]})");
  ASSERT_TRUE(access->reload(0));
  EXPECT_FALSE(rights.judge("ops", "j", ReaderRight::kEnd)) << "a reload takes it away";
  EXPECT_TRUE(rights.judge("ops", "j", ReaderRight::kObserve));

  const auto record = [&](AuditEvent::What what) {
    return rights.record(
        {.what = what, .by = {.bytes = {}, .key = {}, .address = "192.0.2.9"}, .token = "ops", .job = "j"});
  };
  int refusals = 0;
  while (refusals < 1'000 && record(AuditEvent::What::kRefuse)) ++refusals;
  EXPECT_TRUE(rights.record({.what = AuditEvent::What::kRefuse, .by = {}, .token = "other", .job = "j"}));
  int orders = 0;
  while (orders < 1'000 && record(AuditEvent::What::kOrder)) ++orders;
  EXPECT_EQ(refusals, 5) << "one token leaves room for others";
  EXPECT_EQ(orders, 58);
  access->record_waiting(0);
  EXPECT_TRUE(record(AuditEvent::What::kOrder));
  access->end(0);
  std::ifstream in(log);
  std::map<std::string, int> counts;
  int left_out = 0;
  for (std::string line; std::getline(in, line);) {
    const auto said = nlohmann::json::parse(line);
    ++counts[said["event"]];
    left_out += said.value("refusals_left_out", 0);
    if (said["event"] != "order") continue;
    EXPECT_EQ(said["key"], "ops");
    EXPECT_EQ(said["address"], "192.0.2.9");
    EXPECT_FALSE(said.contains("public_key"));
  }
  EXPECT_EQ(counts["refuse"], 2) << "equal ones are one";
  EXPECT_EQ(left_out, 5) << "one that did not fit, and four equal ones";
  EXPECT_EQ(counts["order"], 59);
}

TEST_F(AccessOfFiles, AFolderWithoutWorkerKeysAllowsNoWorker) {
  policy(R"({"keys": ["*"], "jobs": ["*"], "may": ["create"]})");
  const auto access = open();
  EXPECT_FALSE(access->allows_nobody());
  std::filesystem::remove(path_ + "/keys/alice.pub");
  ASSERT_TRUE(access->reload(0));
  EXPECT_TRUE(access->allows_nobody());
  EXPECT_FALSE(access->may_speak(alice_before_));
}

TEST_F(AccessOfFiles, AKeyEndsOnItsDayAndStaysAwayAfterAReload) {
  policy(R"({"keys": ["*"], "jobs": ["*"], "may": ["create"]})");
  const std::chrono::sys_days today = protocol::present_day();
  const auto end = today + std::chrono::days(3);
  ASSERT_TRUE(protocol::write_new_keys(path_ + "/keys", "guest", end));
  ASSERT_TRUE(protocol::write_new_keys(path_ + "/keys", "gone", today));
  const protocol::PeerId guest{"g", protocol::read_public_key(path_ + "/keys/guest.pub").value(), "192.0.2.3"};
  const protocol::PeerId gone{"h", protocol::read_public_key(path_ + "/keys/gone.pub").value(), "192.0.2.4"};
  const auto access =
      Access::open({path_ + "/keys/cluster.key", path_ + "/keys", path_ + "/policy", path_ + "/audit"}).value();
  access->begin(0, 0);
  EXPECT_TRUE(access->may_speak(guest));
  EXPECT_FALSE(access->may_speak(gone)) << "it had ended before the start";
  EXPECT_FALSE(access->end_keys(today + std::chrono::days(2), 0));
  EXPECT_TRUE(access->end_keys(end, 0));
  EXPECT_FALSE(access->may_speak(guest));
  EXPECT_TRUE(access->may_speak(alice()));
  EXPECT_FALSE(access->end_keys(end, 0));
  ASSERT_TRUE(access->reload(0));
  EXPECT_FALSE(access->may_speak(gone)) << "a reload reads its file again";
  std::ifstream lines(path_ + "/audit");
  size_t ends = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto event = nlohmann::json::parse(line);
    if (event["event"] != "key_end") continue;
    ++ends;
    EXPECT_EQ(event["sentence"], "key 'guest' was allowed until " + protocol::key_end_text(end));
    EXPECT_EQ(event["key"], "guest");
    EXPECT_EQ(event["public_key"], protocol::key_digits(guest.key));
  }
  EXPECT_EQ(ends, 1U);
}

TEST_F(AccessOfFiles, TheClustersOwnKeyInAFolderIsNoWorkers) {
  policy(R"({"keys": ["*"], "jobs": ["*"], "may": ["create"], "rate": "80kbit"})");
  const auto access = open();
  const protocol::PeerId own{"c", protocol::read_public_key(path_ + "/keys/cluster.pub").value(), "192.0.2.2"};
  const Access::Intake as_worker = access->take(received(own, hello_for("j"), 10), 0);
  ASSERT_TRUE(as_worker.refusal);
  EXPECT_EQ(std::get<protocol::Refuse>(as_worker.refusal->body).code, ErrorCode::kUnauthenticated);
  for (int at = 0; at < 3; ++at)
    EXPECT_FALSE(access->take(received(own, protocol::ThresholdHistogram{}, 1'000'000), 0).refusal) << "no rate";
}

}  // namespace
}  // namespace millrace::server
