#include "protocol/table/etcd_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "protocol/base/text.h"
#include "protocol/table/etcd_client.h"
#include "protocol/table/job_record.h"
#include "protocol/table/open_table.h"
#include "protocol/table/table_rules.h"
#include "tests/protocol/temporary_directory.h"
#include "tests/support/etcd_server.h"
#include "tests/support/format_versions.h"
#include "tests/support/lossy_proxy.h"

namespace millrace::protocol {
namespace {

using ::testing::HasSubstr;

/// No answer of a healthy etcd takes this long, also under sanitizers on a busy machine.
constexpr uint32_t kPatienceMs = 30'000;

TEST(EtcdAddress, NamesEndpointsAndAPrefix) {
  const auto one = parse_etcd_address("etcd://127.0.0.1:2379").value();
  EXPECT_THAT(one.endpoints, ::testing::ElementsAre("127.0.0.1:2379"));
  EXPECT_EQ(one.prefix, "/millrace");
  const auto three = parse_etcd_address("etcd://a:1,[::1]:2,c.example:3/team/train-1").value();
  EXPECT_THAT(three.endpoints, ::testing::ElementsAre("a:1", "[::1]:2", "c.example:3"));
  EXPECT_EQ(three.prefix, "/team/train-1");
}

TEST(EtcdAddress, WrongOnesAreRefusedWithTheForm) {
  for (const char* text :
       {"etcd://", "etcd://a", "etcd://a:0", "etcd://a:70000", "etcd://a:1,", "etcd://,a:1", "etcd://a:1,a:1",
        "etcd://a:1/", "etcd://a:1/x/", "etcd://a:1//x", "etcd://a:1/x y", "etcd://*:1", "etcd:/a:1", "/tmp/table"}) {
    const auto refused = parse_etcd_address(text);
    ASSERT_FALSE(refused) << text;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument) << text;
    EXPECT_THAT(refused.error().message, HasSubstr("etcd://HOST:PORT")) << text;
  }
}

TEST(TableFlags, WhatDoesNotFitTogetherIsRefused) {
  const auto refusal = [](TableFlags flags) { return refuse_table(flags); };
  EXPECT_EQ(refusal({.location = "/tmp/table.db"}), "");
  EXPECT_EQ(refusal({.location = "etcd://a:1"}), "");
  EXPECT_EQ(refusal({.location = "etcd://a:1", .ca_file = "ca", .user = "u", .password_file = "p"}), "");
  EXPECT_EQ(refusal({.location = "etcd://127.0.0.1:1,localhost:2,[::1]:3", .user = "u", .password_file = "p"}), "");
  EXPECT_THAT(refusal({.location = ""}), HasSubstr("empty"));
  EXPECT_THAT(refusal({.location = ":memory:"}), HasSubstr("share"));
  EXPECT_THAT(refusal({.location = "http://a:1"}), HasSubstr("etcd://"));
  EXPECT_THAT(refusal({.location = "/tmp/table.db", .user = "u", .password_file = "p"}), HasSubstr("are for"));
  EXPECT_THAT(refusal({.location = "etcd://a:1", .ca_file = "ca", .cert_file = "c"}), HasSubstr("go together"));
  EXPECT_THAT(refusal({.location = "etcd://a:1", .cert_file = "c", .key_file = "k"}), HasSubstr("--table-ca"));
  EXPECT_THAT(refusal({.location = "etcd://a:1", .ca_file = "ca", .user = "u"}), HasSubstr("go together"));
  for (const char* location : {"etcd://127.0.0.1:1,a:1", "etcd://127.evil.example:1"})
    EXPECT_THAT(refusal({.location = location, .user = "u", .password_file = "p"}), HasSubstr("plain text"));
}

TEST(TableFlags, APasswordFileIsOneLineThatOthersCannotRead) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("password");
  EXPECT_EQ(read_password_file(path).error().code, ErrorCode::kIo);
  const auto write = [&](const std::string& text, unsigned mode) {
    std::ofstream(path) << text;
    std::filesystem::permissions(path, static_cast<std::filesystem::perms>(mode));
  };
  write("a secret\nand more\n", 0640);
  EXPECT_EQ(read_password_file(path), "a secret");
  for (const std::string& text : {std::string(), std::string("\nx"), std::string(2'000, 'x')}) {
    write(text, 0600);
    EXPECT_EQ(read_password_file(path).error().code, ErrorCode::kInvalidArgument);
  }
  write("a secret", 0644);
  EXPECT_THAT(read_password_file(path).error().message, HasSubstr("chmod 640"));
}

TEST(EtcdTransactions, AnswersThatAreNoneAreErrors) {
  EXPECT_TRUE(parse_etcd_answer(R"({"header":{}})"));
  for (const char* text : {"", "[]", "{}", "null", R"({"header":{},"succeeded":1})", R"({"header":{},"responses":{}})",
                           R"({"header":{},"responses":[{"response_range":{"kvs":{}}}]})",
                           R"({"header":{},"responses":[{"response_range":{"kvs":[{"key":"!","version":"1"}]}}]})",
                           R"({"header":{},"responses":[{"response_range":{"kvs":[{"key":"YQ==","version":"x"}]}}]})",
                           R"({"header":{},"responses":[{"response_range":{"kvs":[{"key":"YQ=="}]}}]})"}) {
    const auto refused = parse_etcd_answer(text);
    ASSERT_FALSE(refused) << text;
    EXPECT_EQ(refused.error().code, ErrorCode::kMalformed);
  }
}

TEST(EtcdTable, WithoutEtcdEveryEndpointIsTriedAndNamed) {
  EtcdOptions options = parse_etcd_address("etcd://127.0.0.1:1,127.0.0.1:2").value();
  EtcdClient client(options, std::make_shared<EtcdHealth>());
  const auto refused = client.transact({}, monotonic_now_ns() + 50 * kNsPerMs);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kTimeout);
  EXPECT_THAT(refused.error().message, HasSubstr("127.0.0.1:"));
}

/// A real etcd, and tables in it.
class EtcdTables : public ::testing::Test {
 protected:
  void SetUp() override {
    static const std::unique_ptr<testing::EtcdServer> shared = testing::EtcdServer::start();
    if (!shared) GTEST_SKIP() << testing::kNoEtcd;
    server_ = shared.get();
    options_.endpoints = {server_->endpoint()};
    options_.prefix = std::string("/") + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    options_.wait_ms = kPatienceMs;
  }

  std::unique_ptr<MembershipTable> open(const EtcdOptions& options) {
    auto table = open_etcd_table(options);
    EXPECT_TRUE(table) << table.error().message;
    return std::move(*table);
  }
  std::unique_ptr<MembershipTable> open() { return open(options_); }

  void put(std::string_view name, std::string_view value) {
    EtcdClient client(options_, std::make_shared<EtcdHealth>());
    EtcdTransaction transaction;
    transaction.then().put(options_.prefix + "/" + std::string(name), value);
    const auto answer = client.transact(transaction, monotonic_now_ns() + kPatienceMs * kNsPerMs);
    EXPECT_TRUE(answer) << answer.error().message;
  }
  void expect_refused(ErrorCode code, const char* words) {
    const auto refused = open_etcd_table(options_);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, code);
    EXPECT_THAT(refused.error().message, HasSubstr(words));
  }

  testing::EtcdServer* server_ = nullptr;
  EtcdOptions options_;
};

/// Returns the name of an open job's key.
std::string key_of(const JobRecord& record) {
  std::string digits = std::to_string(record.membership.job);
  return "job/" + std::string(20 - digits.size(), '0') + digits;
}

JobRecord next_of(JobRecord record) {
  ++record.membership.epoch;
  record.last_incarnations = {{0, record.membership.epoch}};
  return record;
}

TEST_F(EtcdTables, PrefixesAreClustersOfTheirOwn) {
  EtcdOptions other = options_;
  other.prefix += "-other";
  ASSERT_EQ(open()->start_shard(0, 2, "tcp://a:1"), 1u);
  ASSERT_EQ(open(other)->start_shard(0, 3, "tcp://a:1"), 1u);
  EXPECT_EQ(open()->shard_map()->size(), 2u);
  EXPECT_EQ(open(other)->shard_map()->size(), 3u);
}

TEST_F(EtcdTables, AnotherFormatIsRefusedAndSaysWhatToDo) {
  put("format", "999");
  expect_refused(ErrorCode::kUnsupported, "name another prefix");
}

TEST_F(EtcdTables, DamagedKeysAreErrorsNotCrashes) {
  const auto table = open();
  put(key_of(table->create_job("train", ByteBuffer{1, 2, 3}).value()), "x");
  EXPECT_EQ(table->read_job("train").error().code, ErrorCode::kMalformed);
  put("name/train", "one");
  EXPECT_EQ(table->read_job("train").error().code, ErrorCode::kMalformed);
  put("shard_count", "1000000000");
  EXPECT_EQ(table->shard_map().error().code, ErrorCode::kMalformed);
  put("shard_count", "2");
  for (const char* value : {"no second line", "tcp://a:1\n", "tcp://a:1\n\n0000000000000000"}) {
    put("shard/0000", value);
    EXPECT_EQ(table->shard_map().error().code, ErrorCode::kMalformed) << value;
  }
}

TEST_F(EtcdTables, ATableWithoutAnIdentityIsDamaged) {
  put("format", "2");
  expect_refused(ErrorCode::kMalformed, "identity");
}

TEST_F(EtcdTables, NoTwoTablesGiveOneNumberToTheirFirstJobs) {
  EtcdOptions other = options_;
  other.prefix += "-other";
  EXPECT_NE(open()->create_job("train", ByteBuffer{1})->membership.job,
            open(other)->create_job("train", ByteBuffer{1})->membership.job);
}

TEST_F(EtcdTables, KeysCopiedWithoutTheirVersionsAreRefused) {
  const auto table = open();
  JobRecord record = table->create_job("train", ByteBuffer{1}).value();
  EtcdClient client(options_, std::make_shared<EtcdHealth>());
  EtcdTransaction read;
  read.then().get(options_.prefix + "/" + key_of(record));
  const auto answer = client.transact(read, monotonic_now_ns() + kPatienceMs * kNsPerMs).value();
  put(key_of(record), text_of(answer.etcd.ranges[0][0].value));
  const auto refused = table->read_job(record.membership.job);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kMalformed);
  EXPECT_THAT(refused.error().message, HasSubstr("snapshot restore"));
}

TEST_F(EtcdTables, ASpecificationTooLargeForEtcdIsALimit) {
  const auto refused = open()->create_job("train", ByteBuffer(2u << 20));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kLimitExceeded);
  EXPECT_THAT(refused.error().message, HasSubstr("--max-request-bytes"));
}

TEST_F(EtcdTables, RacingSwapsLoseNothing) {
  open()->create_job("train", ByteBuffer{1}).value();
  const auto count_up = [&](int times) {
    const auto table = open();
    for (int done = 0; done < times;) {
      const JobRecord read = **table->read_job("train");
      done += *table->compare_and_swap(read.membership.epoch, next_of(read)) ? 1 : 0;
    }
  };
  std::thread other([&] { count_up(20); });
  count_up(20);
  other.join();
  EXPECT_EQ((*open()->read_job("train"))->membership.epoch, 41u);
}

TEST_F(EtcdTables, ASwapWhoseAnswerIsLostIsDoneOnceAndKnown) {
  testing::LossyProxy proxy(server_->port());
  EtcdOptions through = options_;
  through.endpoints = {proxy.endpoint(), server_->endpoint()};
  const auto table = open(through);
  JobRecord record = table->create_job("train", ByteBuffer{1}).value();
  proxy.lose_answers(1);
  const auto swapped = table->compare_and_swap(1, next_of(record));
  ASSERT_TRUE(swapped) << swapped.error().message;
  EXPECT_TRUE(*swapped);
  EXPECT_EQ(proxy.answers_to_lose(), 0);
  EXPECT_EQ((*open()->read_job("train"))->membership.epoch, 2u);
}

TEST_F(EtcdTables, TheEndOfAJobWhoseAnswerIsLostIsKnown) {
  testing::LossyProxy proxy(server_->port());
  EtcdOptions through = options_;
  through.endpoints = {proxy.endpoint(), server_->endpoint()};
  const auto table = open(through);
  JobRecord last = next_of(table->create_job("train", ByteBuffer{1}).value());
  last.membership.finished = true;
  proxy.lose_answers(1);
  const auto swapped = table->compare_and_swap(1, last);
  ASSERT_TRUE(swapped) << swapped.error().message;
  EXPECT_TRUE(*swapped);
  EXPECT_EQ(proxy.answers_to_lose(), 0);
  EXPECT_EQ(open()->read_job("train"), std::nullopt);
  EXPECT_TRUE((*open()->read_job(last.membership.job))->membership.finished);
}

TEST_F(EtcdTables, AnotherSwapInTheWayOfARepeatedOneIsNotTakenForIt) {
  testing::LossyProxy proxy(server_->port());
  EtcdOptions through = options_;
  through.endpoints = {proxy.endpoint(), server_->endpoint()};
  const auto table = open(through);
  JobRecord record = table->create_job("train", ByteBuffer{1}).value();
  ASSERT_EQ(open()->compare_and_swap(1, next_of(record)), true);
  proxy.lose_answers(1);
  EXPECT_EQ(table->compare_and_swap(1, next_of(record)), false) << "the same bytes, and not the same swap";
  EXPECT_EQ(proxy.answers_to_lose(), 0);
}

TEST_F(EtcdTables, AWriteWithoutAnyAnswerReportsTimeoutAndMayHaveTakenEffect) {
  testing::LossyProxy proxy(server_->port());
  EtcdOptions through = options_;
  through.endpoints = {proxy.endpoint()};
  through.wait_ms = 3'000;  // until then the swap has reached etcd
  JobRecord record = open()->create_job("train", ByteBuffer{1}).value();
  const auto table = open(through);
  proxy.lose_answers(1'000'000);
  const auto lost = table->compare_and_swap(1, next_of(record));
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code, ErrorCode::kTimeout);
  EXPECT_EQ((*open()->read_job("train"))->membership.epoch, 2u);
}

TEST_F(EtcdTables, AStartWhoseAnswerIsLostSkipsAnIncarnation) {
  testing::LossyProxy proxy(server_->port());
  EtcdOptions through = options_;
  through.endpoints = {proxy.endpoint(), server_->endpoint()};
  const auto table = open(through);
  proxy.lose_answers(1);
  const auto incarnation = table->start_shard(0, 1, "tcp://a:1");
  ASSERT_TRUE(incarnation);
  EXPECT_EQ(proxy.answers_to_lose(), 0);
  EXPECT_EQ(open()->shard_map()->front(), (ShardEntry{"tcp://a:1", *incarnation}));
}

TEST_F(EtcdTables, ATakeOverWhoseAnswerIsLostIsKnown) {
  testing::LossyProxy proxy(server_->port());
  EtcdOptions through = options_;
  through.endpoints = {proxy.endpoint(), server_->endpoint()};
  ASSERT_EQ(open()->start_shard(0, 1, "tcp://a:1"), 1u);
  const auto table = open(through);
  ASSERT_TRUE(table->shard_map());
  proxy.lose_answers(1);
  EXPECT_EQ(table->take_over_shard(0, 1, "tcp://b:1", ""), 2u);
  EXPECT_EQ(proxy.answers_to_lose(), 0);
  EXPECT_EQ(open()->shard_map()->front(), (ShardEntry{"tcp://b:1", 2}));
}

/// Notes have a version of their own, and so have records: of them only their place is part of these bytes.
TEST_F(EtcdTables, TheirKeysAndValuesAreThoseOfTheirVersion) {
  constexpr size_t kTagBytes = 16;
  options_.prefix = "/format";
  const auto table = open();
  ASSERT_EQ(table->start_shard(0, 2, "tcp://a:1", "192.0.2.1:7800"), 1u);
  ASSERT_EQ(table->start_shard(1, 2, "tcp://b:1"), 1u);
  ASSERT_EQ(table->take_over_shard(1, 1, "tcp://c:1", ""), 2u);
  for (const char* name : {"open", "done"}) ASSERT_TRUE(table->create_job(name, ByteBuffer{1, 2, 3}));
  JobRecord done = table->read_job("done").value().value();
  ++done.membership.epoch;
  done.membership.finished = true;
  ASSERT_EQ(table->compare_and_swap(1, done), true);
  JobRecord next = table->read_job("open").value().value();
  ++next.membership.epoch;
  ASSERT_EQ(table->compare_and_swap(1, next), true);

  EtcdClient client(options_, std::make_shared<EtcdHealth>());
  EtcdTransaction read;
  read.then().get_all(options_.prefix + "/");
  const auto answer = client.transact(read, monotonic_now_ns() + kPatienceMs * kNsPerMs);
  ASSERT_TRUE(answer) << answer.error().message;
  millrace::testing::Fingerprint bytes;
  uint64_t version = 0;
  for (const EtcdEntry& entry : answer->etcd.ranges.at(0)) {
    std::string key = entry.key.substr(options_.prefix.size() + 1);
    std::string value(text_of(entry.value));
    if (key == "format") version = std::stoull(value);
    if (key == "identity") value = std::to_string(value.size()) + " digits";
    if (key.starts_with("name/")) value = "a number";
    if (key.starts_with("spec/")) key = "spec/ and a number";
    if (key.starts_with("job/") || key.starts_with("done/")) {
      key = key.substr(0, key.find('/')) + "/ and a number of " + std::to_string(key.size()) + " bytes";
      const auto record = decode_job_record(ByteSpan(entry.value).subspan(kTagBytes));
      ASSERT_TRUE(record) << key;
      EXPECT_EQ(record->membership.job >> kJobNumberRandomBits, record->name == "open" ? 1u : 2u);
      value = "a tag of 16 bytes and a record";
    }
    if (key == "format") value.clear();
    bytes.add_text(key).add_text(value).add_text(std::to_string(entry.version));
  }
  millrace::testing::expect_format_version("membership_table_etcd", version, bytes,
                                           "kFormat in protocol/table/etcd_table.cc");
}

TEST_F(EtcdTables, ALeaseThatIsNotHeldAnyMoreExpires) {
  const auto table = open();
  const auto other = open();
  ASSERT_EQ(table->start_shard(0, 1, "tcp://a:1"), 1u);
  do {
    ASSERT_TRUE(table->hold_lease(0, 1));
    std::this_thread::yield();
  } while (!other->read_cluster().value().shards[0].held);
  while (other->read_cluster().value().shards[0].held) ::poll(nullptr, 0, 50);
  do {
    ASSERT_TRUE(table->hold_lease(0, 1));
    std::this_thread::yield();
  } while (!other->read_cluster().value().shards[0].held);
}

TEST_F(EtcdTables, AnEarlierStartDoesNotGetTheLeaseAgain) {
  const auto earlier = open();
  ASSERT_EQ(earlier->start_shard(0, 1, "tcp://a:1"), 1u);
  ASSERT_EQ(open()->start_shard(0, 1, "tcp://b:1"), 2u);
  const TimeNs until = monotonic_now_ns() + kNsPerS / 5;  // several turns of its thread
  while (monotonic_now_ns() < until) {
    ASSERT_TRUE(earlier->hold_lease(0, 1));
    EXPECT_FALSE(open()->read_cluster().value().shards[0].held);
  }
}

TEST_F(EtcdTables, AnEndpointThatIsGoneIsLeftForTheNext) {
  EtcdOptions options = options_;
  options.endpoints = {"127.0.0.1:1", server_->endpoint()};
  EXPECT_EQ(open(options)->start_shard(0, 1, "tcp://a:1"), 1u);
}

TEST_F(EtcdTables, ThePolledCounterFollowsTheChangesOfOthers) {
  const auto table = open();
  const auto other = open();
  uint64_t last = table->polled_change_counter().value();
  for (int start = 0; start < 3; ++start) {
    ASSERT_TRUE(other->start_shard(0, 1, "tcp://a:1"));
    while (table->polled_change_counter().value() <= last) std::this_thread::yield();
    last = table->polled_change_counter().value();
    EXPECT_EQ(last, other->change_counter().value());
  }
}

TEST(EtcdOutage, CallsFailAtOnceAndTheTableRecoversWithEtcd) {
  const auto server = testing::EtcdServer::start();
  if (!server) GTEST_SKIP() << testing::kNoEtcd;
  EtcdOptions options;
  options.endpoints = {server->endpoint()};
  options.wait_ms = kPatienceMs;
  const auto table = open_etcd_table(options).value();
  ASSERT_EQ(table->start_shard(0, 1, "tcp://a:1"), 1u);
  ASSERT_TRUE(table->polled_change_counter());
  server->kill();
  while (table->polled_change_counter()) std::this_thread::yield();
  const auto polled = table->polled_change_counter();
  EXPECT_EQ(polled.error().code, ErrorCode::kTimeout);
  EXPECT_THAT(polled.error().message, HasSubstr("no member has answered"));
  EXPECT_EQ(table->shard_map().error().code, ErrorCode::kTimeout) << "without the wait of 30 s";
  server->start_again();
  while (!table->polled_change_counter()) std::this_thread::yield();
  EXPECT_EQ(table->shard_map()->front(), (ShardEntry{"tcp://a:1", 1}));
}

/// Returns the first answer of a poll that is neither a counter nor a time-out: etcd may still start.
Error loss_of_polls(MembershipTable& table) {
  Result<uint64_t> polled = table.polled_change_counter();
  while (polled || polled.error().code == ErrorCode::kTimeout) {
    ::poll(nullptr, 0, 10);
    polled = table.polled_change_counter();
  }
  return polled.error();
}

TEST(EtcdOutage, ATableWhoseDataAreLostOrOlderIsAnError) {
  const auto server = testing::EtcdServer::start();
  if (!server) GTEST_SKIP() << testing::kNoEtcd;
  EtcdOptions options;
  options.endpoints = {server->endpoint()};
  options.wait_ms = kPatienceMs;
  const auto table = open_etcd_table(options).value();
  ASSERT_EQ(table->start_shard(0, 1, "tcp://a:1"), 1u);
  JobRecord record = table->create_job("train", ByteBuffer{1}).value();
  server->kill();
  server->keep_data();
  server->start_again();
  const auto later = open_etcd_table(options).value();
  ASSERT_EQ(later->compare_and_swap(1, next_of(record)), true);
  ASSERT_TRUE(later->change_counter());
  ASSERT_TRUE(later->polled_change_counter());
  server->kill();
  server->go_back();
  server->start_again();
  const Error older = loss_of_polls(*later);
  EXPECT_EQ(older.code, ErrorCode::kStale);
  EXPECT_THAT(older.message, HasSubstr(std::string(kOlderTable)));
  EXPECT_EQ(later->change_counter().error().code, ErrorCode::kStale);
  EXPECT_TRUE(open_etcd_table(options).value()->change_counter()) << "a process that starts later takes the copy";
  ASSERT_TRUE(table->polled_change_counter()) << "its past is in the copy";

  server->kill();
  server->lose_data();
  server->start_again();
  const Error lost = loss_of_polls(*table);
  EXPECT_EQ(lost.code, ErrorCode::kConflict);
  EXPECT_THAT(lost.message, HasSubstr(std::string(kAnotherTable)));
  const auto other = open_etcd_table(options).value();  // a shard that starts later has another table
  ASSERT_EQ(other->start_shard(0, 1, "tcp://a:1"), 1u);
  EXPECT_EQ(table->change_counter().error().code, ErrorCode::kConflict);
  EXPECT_EQ(table->start_shard(0, 1, "tcp://a:1").error().code, ErrorCode::kConflict);
  EXPECT_EQ(table->create_job("train", ByteBuffer{1}).error().code, ErrorCode::kConflict);
  EXPECT_EQ(table->compare_and_swap(1, next_of(record)).error().code, ErrorCode::kConflict);
  EXPECT_EQ(other->shard_map()->front(), (ShardEntry{"tcp://a:1", 1}));
}

}  // namespace
}  // namespace millrace::protocol
