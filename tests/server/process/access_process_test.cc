#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "monitoring/http/http_client.h"
#include "protocol/job/layout.h"
#include "protocol/keys/key_files.h"
#include "tests/server/process/server_program.h"

/// millrace-server with keys: admission, the audit log, and SIGHUP.
namespace millrace::server {
namespace {

using ::testing::HasSubstr;

protocol::Hello hello_with_key(const std::string& job, uint32_t workers = 1) {
  protocol::Hello hello;
  hello.nonce = 7;
  hello.spec.name = job;
  hello.spec.workers = workers;
  hello.spec.tensors.push_back({.name = "t", .dimension = 100});
  hello.shard_count = 1;
  hello.layout_hash = protocol::layout_hash(protocol::plan_layout(hello.spec, 1));
  return hello;
}

class KeyedServer : public ::testing::Test {
 protected:
  KeyedServer() : keys_(folder_.path + "/keys"), audit_(folder_.path + "/audit.log") {
    for (const char* name : {"cluster", "alice", "bob"}) EXPECT_TRUE(protocol::write_new_keys(keys_, name));
    std::filesystem::rename(keys_ + "/bob.pub", folder_.path + "/bob.pub");
  }
  std::vector<std::string> flags() const {
    return {"--table",
            folder_.path + "/t.db",
            "--listen",
            "tcp://127.0.0.1:0",
            "--json",
            "--key",
            keys_ + "/cluster.key",
            "--allowed-keys",
            keys_,
            "--audit-log",
            audit_,
            "--http",
            "127.0.0.1:0"};
  }
  protocol::TransportOptions as(const std::string& name) const {
    protocol::TransportOptions options;
    options.keys = protocol::TransportKeys{protocol::read_secret_key(keys_ + "/" + name + ".key").value(),
                                           protocol::read_public_key(keys_ + "/cluster.pub").value()};
    return options;
  }
  std::string address_of(Program& program) {
    const auto line = nlohmann::json::parse(program.read_line(), nullptr, false);
    http_ = line.is_object() ? line.value("http", "") : "";
    return line.is_object() ? line.value("address", "") : "";
  }
  /// Returns whether the body of a path of the last started program has this text, within 20 s.
  bool shows(const std::string& path, const std::string& text) const {
    for (const TimeNs until = monotonic_now_ns() + 20 * kNsPerS; monotonic_now_ns() < until;) {
      const auto reply = monitoring::http_get(http_, path, 2'000);
      if (reply && reply->body.contains(text)) return true;
      ::poll(nullptr, 0, 10);
    }
    return false;
  }
  std::vector<nlohmann::json> audit_lines(const std::string& path) const {
    std::vector<nlohmann::json> lines;
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }
  /// Waits for a line of this event.
  nlohmann::json audited(const std::string& event) const {
    for (const TimeNs until = monotonic_now_ns() + 20 * kNsPerS; monotonic_now_ns() < until;) {
      for (const nlohmann::json& line : audit_lines(audit_)) {
        if (line["event"] == event) return line;
      }
      ::poll(nullptr, 0, 10);
    }
    ADD_FAILURE() << "no line of " << event;
    return {};
  }

  TemporaryFolder folder_;
  const std::string keys_;
  const std::string audit_;
  std::string http_;
};

TEST_F(KeyedServer, AJoinWithAnAllowedKeyIsInTheAuditLog) {
  Program program(flags());
  const std::string address = address_of(program);
  protocol::TransportContext context(as("alice"));
  HandWorker worker(context, address);
  worker.send({{}, hello_with_key("j"), {}});
  const auto welcome = worker.next<protocol::Welcome>();
  ASSERT_TRUE(welcome);
  worker.send({welcome->header, protocol::Goodbye{protocol::Goodbye::Reason::kFinished, ""}, {}});
  EXPECT_EQ(audited("end")["job"], "j");
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 0);
  const auto join = audited("join");
  EXPECT_EQ(join["key"], "alice");
  EXPECT_EQ(join["address"], "127.0.0.1");
  EXPECT_EQ(join["job"], "j");
  EXPECT_EQ(join["worker"], 0);
  EXPECT_EQ(audited("leave")["key"], "alice");
  const auto lines = audit_lines(audit_);
  EXPECT_EQ(lines.front()["event"], "start");
  EXPECT_EQ(lines.back()["event"], "stop");
}

TEST_F(KeyedServer, AWorkerThatGoesSilentIsEvictedInTheAuditLog) {
  Program program(flags());
  const std::string address = address_of(program);
  protocol::TransportContext context(as("alice"));
  HandWorker worker(context, address);
  protocol::Hello hello = hello_with_key("j", 2);
  hello.spec.heartbeat = std::chrono::milliseconds(100);
  hello.spec.dead_after = std::chrono::milliseconds(600);
  worker.send({{}, hello, {}});
  ASSERT_TRUE(worker.next<protocol::Welcome>());
  const auto evicted = audited("evict");
  ASSERT_TRUE(evicted.is_object());
  EXPECT_EQ(evicted["key"], "alice");
  EXPECT_EQ(evicted["address"], "127.0.0.1");
  EXPECT_EQ(evicted["job"], "j");
  EXPECT_EQ(evicted["worker"], 0);
  EXPECT_EQ(evicted["code"], "silent");
  EXPECT_EQ(evicted["sentence"], "it has been silent for 600 ms");
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 0);
}

TEST_F(KeyedServer, AKeyThatIsNotAllowedGetsInOnlyAfterTheReload) {
  Program program(flags());
  const std::string address = address_of(program);
  protocol::TransportContext context(as("bob"));
  const auto connection = protocol::Connection::connect(context, address).value();
  protocol::Poller poller;
  poller.add(*connection);
  const auto wait_for = [&](protocol::ConnectionState wanted) {
    for (const TimeNs until = monotonic_now_ns() + 20 * kNsPerS;
         connection->state() != wanted && monotonic_now_ns() < until;)
      poller.wait(50);
    return connection->state() == wanted;
  };
  ASSERT_TRUE(wait_for(protocol::ConnectionState::kDisconnected));
  EXPECT_THAT(connection->key_trouble(), HasSubstr("does not accept this process's key"));
  const auto refused = audited("refuse");
  EXPECT_FALSE(refused.contains("key")) << "it has no name here";
  EXPECT_EQ(refused["code"], "unauthenticated");
  EXPECT_EQ(refused["public_key"], protocol::key_digits(protocol::read_public_key(folder_.path + "/bob.pub").value()));

  EXPECT_EQ(refused["address"], "127.0.0.1");
  EXPECT_TRUE(shows("/metrics", "millrace_shard_keys_refused_total 1\n"));

  std::filesystem::rename(folder_.path + "/bob.pub", keys_ + "/bob.pub");
  program.signal(SIGHUP);
  EXPECT_THAT(std::string(audited("reload")["sentence"]), HasSubstr("1 of them new"));
  ASSERT_TRUE(connection->reconnect());
  EXPECT_TRUE(wait_for(protocol::ConnectionState::kConnected));
}

TEST_F(KeyedServer, AWorkerWithARevokedKeyIsRefusedAndDisconnected) {
  const std::string log = folder_.path + "/log";
  Program program(flags(), log);
  const std::string address = address_of(program);
  protocol::TransportContext context(as("alice"));
  HandWorker worker(context, address);
  worker.send({{}, hello_with_key("j"), {}});
  ASSERT_TRUE(worker.next<protocol::Welcome>());
  std::filesystem::remove(keys_ + "/alice.pub");
  std::ofstream(keys_ + "/eve.pub") << "no key";
  std::filesystem::rename(audit_, audit_ + ".1");
  program.signal(SIGHUP);
  const std::string reload = audited("reload")["sentence"];
  EXPECT_THAT(reload, HasSubstr("not any more: alice")) << "in the new file";
  EXPECT_THAT(reload, HasSubstr("1 files are wrong and were skipped")) << "and it kept no key allowed";
  EXPECT_TRUE(shows("/status", R"("keys":{"allowed":0,"skipped_files":1,"first_end_s":0})"));
  const auto refusal = worker.next<protocol::Refuse>();
  ASSERT_TRUE(refusal) << "without a message of its own";
  EXPECT_EQ(std::get<protocol::Refuse>(refusal->body).code, ErrorCode::kUnauthenticated);
  EXPECT_FALSE(std::get<protocol::Refuse>(refusal->body).retry);
  EXPECT_TRUE(worker.is_ended());
  const auto said = [&] {
    std::ifstream in(log);
    return std::string(std::istreambuf_iterator<char>(in), {}).find("closed a connection: key_revoked") !=
           std::string::npos;
  };
  for (const TimeNs until = monotonic_now_ns() + 20 * kNsPerS; !said() && monotonic_now_ns() < until;)
    ::poll(nullptr, 0, 10);
  EXPECT_TRUE(said()) << "not by another rule, later";
  const auto closed = audited("close");
  EXPECT_EQ(closed["public_key"], protocol::key_digits(as("alice").keys->own.public_key));
  EXPECT_EQ(closed["address"], "127.0.0.1");
  EXPECT_EQ(closed["code"], "key_revoked");
  // What cannot be read changes nothing.
  std::filesystem::rename(keys_, folder_.path + "/moved");
  program.signal(SIGHUP);
  const auto kept = [&] {
    const nlohmann::json last = audit_lines(audit_).back();
    return last["event"] == "reload" && last.value("sentence", "").contains("stay allowed");
  };
  for (const TimeNs until = monotonic_now_ns() + 20 * kNsPerS; !kept() && monotonic_now_ns() < until;)
    ::poll(nullptr, 0, 10);
  EXPECT_TRUE(kept()) << audit_lines(audit_).back();
}

TEST_F(KeyedServer, AFloodOfHeartbeatsHasOneReasonAndIsThenDisconnected) {
  const std::string policy = folder_.path + "/policy";
  std::ofstream(policy) << R"({"rules": [{"keys": ["*"], "jobs": ["*"], "may": ["create"], "rate": "8kbit"}]})";
  std::vector<std::string> with_policy = flags();
  with_policy.insert(with_policy.end(), {"--policy", policy});
  Program program(with_policy);
  const std::string address = address_of(program);
  protocol::TransportContext context(as("alice"));
  HandWorker worker(context, address);
  worker.send({{}, hello_with_key("j"), {}});
  const auto welcome = worker.next<protocol::Welcome>();
  ASSERT_TRUE(welcome);
  for (int at = 0; at < 3'000; ++at) worker.send({welcome->header, protocol::Heartbeat{}, {}});
  const auto refusal = worker.next<protocol::Refuse>();
  ASSERT_TRUE(refusal);
  const auto& said = std::get<protocol::Refuse>(refusal->body);
  EXPECT_EQ(said.code, ErrorCode::kLimitExceeded);
  EXPECT_FALSE(said.retry);
  EXPECT_THAT(said.sentence, HasSubstr("key 'alice' is over its rate"));
  EXPECT_EQ(worker.refusals_until_end(), 0) << "one answer to a flood";
  EXPECT_EQ(audited("close")["code"], "over_rate");
}

TEST_F(KeyedServer, AMembersNonceOpensItsPlaceForItsKeyAlone) {
  std::filesystem::rename(folder_.path + "/bob.pub", keys_ + "/bob.pub");
  Program program(flags());
  const std::string address = address_of(program);
  protocol::TransportContext of_alice(as("alice"));
  protocol::TransportContext of_bob(as("bob"));
  HandWorker alice(of_alice, address);
  alice.send({{}, hello_with_key("j"), {}});
  const auto welcome = alice.next<protocol::Welcome>();
  ASSERT_TRUE(welcome);
  HandWorker bob(of_bob, address);
  bob.send({{}, hello_with_key("j"), {}});
  EXPECT_THAT(bob.next_answer_to_hello(), HasSubstr("another key"));
  alice.send({welcome->header, protocol::Heartbeat{}, {}});
  EXPECT_TRUE(alice.next<protocol::Heartbeat>()) << "its connection is still the worker's";
}

TEST_F(KeyedServer, ASpareTakesNoNumberWithoutItsRightsAndThenTheNewestOnes) {
  std::filesystem::rename(folder_.path + "/bob.pub", keys_ + "/bob.pub");
  const std::string policy = folder_.path + "/policy.json";
  constexpr const char* kAll = R"({"rules": [{"keys": ["*"], "jobs": ["*"], "may": ["create"]}]})";
  std::ofstream(policy) << kAll;
  auto first = std::make_unique<Program>(flags());
  ASSERT_NE(address_of(*first), "");
  std::vector<std::string> of_spare = flags();
  of_spare.insert(of_spare.end(), {"--spare", "--policy", policy});
  Program spare(of_spare);
  EXPECT_THAT(spare.read_line(), HasSubstr("waiting"));
  std::ofstream(policy) << "damaged";
  std::filesystem::remove(keys_ + "/bob.pub");
  first.reset();  // killed
  const auto failed = [&] {
    for (const nlohmann::json& line : audit_lines(audit_)) {
      if (line["event"] == "reload" && line.contains("code")) return !line.contains("shard");
    }
    return false;
  };
  for (const TimeNs until = monotonic_now_ns() + 20 * kNsPerS; !failed() && monotonic_now_ns() < until;)
    ::poll(nullptr, 0, 10);
  EXPECT_TRUE(failed()) << "it has no number";
  std::ofstream(policy) << kAll;
  const std::string address = address_of(spare);
  protocol::TransportContext of_alice(as("alice"));
  HandWorker alice(of_alice, address);
  alice.send({{}, hello_with_key("j"), {}});
  EXPECT_EQ(alice.next_answer_to_hello(), "");
  protocol::TransportContext of_bob(as("bob"));
  HandWorker bob(of_bob, address);
  EXPECT_TRUE(bob.is_ended()) << "its key was taken away while the spare waited";
}

TEST_F(KeyedServer, AWaitingSpareTakesReloadsAndARotation) {
  Program first(flags());
  ASSERT_NE(address_of(first), "");
  std::vector<std::string> of_spare = flags();
  const std::string audit_of_spare = folder_.path + "/spare.log";
  std::ranges::replace(of_spare, audit_, audit_of_spare);
  of_spare.push_back("--spare");
  Program spare(of_spare);
  EXPECT_THAT(spare.read_line(), HasSubstr("waiting"));
  std::filesystem::rename(audit_of_spare, audit_of_spare + ".1");
  std::filesystem::rename(folder_.path + "/bob.pub", keys_ + "/bob.pub");
  spare.signal(SIGHUP);
  const auto lines = [&] {
    return std::filesystem::exists(audit_of_spare) ? audit_lines(audit_of_spare) : std::vector<nlohmann::json>();
  };
  for (const TimeNs until = monotonic_now_ns() + 20 * kNsPerS; lines().empty() && monotonic_now_ns() < until;)
    ::poll(nullptr, 0, 10);
  ASSERT_FALSE(lines().empty()) << "the file was renamed, and a new one begun";
  EXPECT_EQ(lines()[0]["event"], "reload");
  EXPECT_FALSE(lines()[0].contains("shard")) << "it waits";
  EXPECT_THAT(std::string(lines()[0]["sentence"]), HasSubstr("1 of them new"));
  spare.signal(SIGTERM);
  EXPECT_EQ(spare.wait(), 0);
}

TEST_F(KeyedServer, AWorkersKeyMayNotSpeakAsAShard) {
  Program program(flags());
  const std::string address = address_of(program);
  protocol::TransportContext context(as("alice"));
  HandWorker worker(context, address);
  worker.send({{}, protocol::ShardHello{}, {}});
  const auto refusal = worker.next<protocol::Refuse>();
  ASSERT_TRUE(refusal);
  EXPECT_THAT(std::get<protocol::Refuse>(refusal->body).sentence, HasSubstr("may not speak as a shard"));
}

TEST_F(KeyedServer, AddressesOfOtherMachinesNeedKeysOrAWord) {
  const auto code = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"--table", folder_.path + "/other.db"});
    return Program(std::move(more)).wait();
  };
  EXPECT_EQ(code({"--listen", "0.0.0.0:0", "--advertise", "node:1"}), 2);
  EXPECT_EQ(code({"--listen", "node1:0"}), 2);
  EXPECT_EQ(code({"--key", keys_ + "/cluster.key"}), 2) << "without --allowed-keys";
  EXPECT_EQ(code({"--allowed-keys", keys_}), 2);
  EXPECT_EQ(code({"--insecure", "--key", keys_ + "/cluster.key", "--allowed-keys", keys_}), 2);
  EXPECT_EQ(code({"--key", keys_ + "/cluster.pub", "--allowed-keys", keys_, "--listen", "127.0.0.1:0"}), 2);
  EXPECT_EQ(code({"--key", keys_ + "/none.key", "--allowed-keys", keys_, "--listen", "127.0.0.1:0"}), 6);
  std::filesystem::permissions(keys_ + "/cluster.key", std::filesystem::perms::others_read,
                               std::filesystem::perm_options::add);
  EXPECT_EQ(code({"--key", keys_ + "/cluster.key", "--allowed-keys", keys_, "--listen", "127.0.0.1:0"}), 2);
}

}  // namespace
}  // namespace millrace::server
