#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/base/clock.h"
#include "protocol/job/layout.h"
#include "protocol/messages/handshake.h"
#include "protocol/transport/transport.h"
#include "tests/protocol/temporary_directory.h"
#include "tests/support/tree_paths.h"
#include "worker/launch/child_process.h"

/// Hellos at a real millrace-server: a worker that cannot be admitted gets the reason, and is never left waiting.
namespace millrace::protocol {
namespace {

constexpr int kWaitMs = 60'000;

class HandshakeProcess : public ::testing::Test {
 protected:
  void SetUp() override {
    launch::SpawnOptions spawn;
    spawn.argv = {built_file("bin/millrace-server"),
                  "--listen",
                  "tcp://127.0.0.1:0",
                  "--table",
                  directory_.file("db"),
                  "--json",
                  "--shard",
                  "0",
                  "--shards",
                  "1"};
    spawn.stderr_path = directory_.file("log");
    auto child = launch::ChildProcess::spawn(spawn);
    ASSERT_TRUE(child) << child.error().message;
    server_ = std::make_unique<launch::ChildProcess>(std::move(*child));
    const auto line = server_->read_line(kWaitMs);
    ASSERT_TRUE(line) << line.error().message;
    connection_ = Connection::connect(context_, nlohmann::json::parse(*line).value("address", "")).value();
  }

  static Message hello_message() {
    Hello hello;
    hello.software = "test";
    hello.nonce = 7;
    hello.spec.name = "job";
    hello.spec.workers = 1;
    hello.spec.tensors.emplace_back();
    hello.spec.tensors[0].name = "w";
    hello.spec.tensors[0].dimension = 100;
    hello.shard_count = 1;
    hello.layout_hash = layout_hash(plan_layout(hello.spec, 1));
    return {{}, hello, {}};
  }

  /// Returns the server's first answer.
  Body answer_to(const Message& message) {
    EXPECT_EQ(connection_->send(message), SendResult::kSent);
    Poller poller;
    poller.add(*connection_);
    const TimeNs deadline = monotonic_now_ns() + kWaitMs * kNsPerMs;
    while (monotonic_now_ns() < deadline) {
      if (const auto received = connection_->receive()) {
        EXPECT_TRUE(received->message) << received->message.error().message;
        return received->message->body;
      }
      poller.wait(50);
    }
    ADD_FAILURE() << "no answer";
    return Goodbye{};
  }

  void expect_refusal(const Message& message, ErrorCode code, const char* says) {
    const Body body = answer_to(message);
    ASSERT_TRUE(std::holds_alternative<Refuse>(body)) << body_name(body);
    const Refuse& refuse = std::get<Refuse>(body);
    EXPECT_EQ(refuse.code, code) << refuse.sentence;
    EXPECT_FALSE(refuse.retry);
    EXPECT_THAT(refuse.sentence, ::testing::HasSubstr(says));
  }

  TemporaryDirectory directory_;
  std::unique_ptr<launch::ChildProcess> server_;
  TransportContext context_;
  std::unique_ptr<Connection> connection_;
};

TEST_F(HandshakeProcess, AWorkerThatFitsIsWelcomedAndSeesItselfInTheView) {
  const Body body = answer_to(hello_message());
  ASSERT_TRUE(std::holds_alternative<Welcome>(body)) << body_name(body);
  const Welcome& welcome = std::get<Welcome>(body);
  EXPECT_EQ(welcome.version, kProtocolVersion);
  ASSERT_EQ(welcome.membership.members.size(), 1u);
  EXPECT_EQ(welcome.membership.members[0].nonce, 7u);
}

TEST_F(HandshakeProcess, AWorkerOfAnotherVersionLearnsBothVersions) {
  Message message = hello_message();
  std::get<Hello>(message.body).version_min = std::get<Hello>(message.body).version_max = 99;
  expect_refusal(message, ErrorCode::kVersionMismatch, "99 to 99");
}

TEST_F(HandshakeProcess, ASpecificationOfALaterBuildIsRefusedByName) {
  Message message = hello_message();
  std::get<Hello>(message.body).spec.mode = static_cast<Mode>(77);
  expect_refusal(message, ErrorCode::kUnsupported, "mode");
}

TEST_F(HandshakeProcess, AnUnsoundSpecificationIsRefusedWithItsReason) {
  Message message = hello_message();
  JobSpec& spec = std::get<Hello>(message.body).spec;
  spec.codec_up.value = ValueCodecId::kQsgd;
  spec.codec_up.qsgd_scale_max = false;
  expect_refusal(message, ErrorCode::kInvalidArgument, "qsgd4:l2 is no contraction");
}

TEST_F(HandshakeProcess, AnotherShardCountIsRefused) {
  Message message = hello_message();
  std::get<Hello>(message.body).shard_count = 2;
  expect_refusal(message, ErrorCode::kShardMapMismatch, "shard 0 of 1");
}

/// `millrace train` as a process of its own, at a shard of another version: this test, with the real transport.
class WorkerProcess : public ::testing::Test {
 protected:
  void SetUp() override {
    listener_ = Listener::bind(context_, "tcp://127.0.0.1:0").value();
    poller_.add(*listener_);
    const std::string data = directory_.file("data.svm");
    std::ofstream(data) << "1 1:1\n0 2:1\n";
    launch::SpawnOptions spawn;
    spawn.argv = {built_file("bin/millrace"), "train", "--train", data, "--servers", listener_->address()};
    spawn.stderr_path = directory_.file("stderr");
    worker_ = std::make_unique<launch::ChildProcess>(launch::ChildProcess::spawn(spawn).value());
  }

  std::optional<Received> wait_for_hello() {
    const TimeNs deadline = monotonic_now_ns() + kWaitMs * kNsPerMs;
    while (monotonic_now_ns() < deadline) {
      std::optional<Received> received = listener_->receive();
      if (received && received->message && std::holds_alternative<Hello>(received->message->body)) return received;
      poller_.wait(50);
    }
    return std::nullopt;
  }

  void expect_end(const char* says) {
    constexpr int kRefused = 5;
    const auto report = worker_->wait(kWaitMs);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->exit_code, kRefused);
    std::ifstream file(directory_.file("stderr"));
    const std::string said((std::istreambuf_iterator<char>(file)), {});
    EXPECT_THAT(said, ::testing::HasSubstr(says));
    EXPECT_EQ(std::ranges::count(said, '\n'), 1) << said;
  }

  TemporaryDirectory directory_;
  TransportContext context_;
  Poller poller_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<launch::ChildProcess> worker_;
};

TEST_F(WorkerProcess, AShardThatSpeaksOnlyLaterVersionsEndsItWithTheVersionsOfBoth) {
  const std::optional<Received> hello = wait_for_hello();
  ASSERT_TRUE(hello.has_value());
  const auto agreed =
      negotiate(std::get<Hello>(hello->message->body), {.version_min = 98, .version_max = 99, .software = "later"});
  ASSERT_FALSE(agreed.has_value());
  ASSERT_EQ(listener_->send(hello->peer, {hello->message->header, agreed.error(), {}}), SendResult::kSent);
  expect_end("later speaks 98 to 99");
}

TEST_F(WorkerProcess, AWelcomeInAVersionThatWasNotOfferedEndsItToo) {
  const std::optional<Received> hello = wait_for_hello();
  ASSERT_TRUE(hello.has_value());
  Welcome welcome;
  welcome.version = 99;
  ASSERT_EQ(listener_->send(hello->peer, {hello->message->header, welcome, {}}), SendResult::kSent);
  expect_end("version 99");
}

}  // namespace
}  // namespace millrace::protocol
