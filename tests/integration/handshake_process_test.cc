#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/base/clock.h"
#include "protocol/layout.h"
#include "protocol/transport.h"
#include "tests/protocol/temporary_directory.h"
#include "worker/cli/process/child_process.h"

/// Hellos at a real millrace-server: whoever cannot be admitted is told why, never left waiting.
namespace millrace::protocol {
namespace {

constexpr int kWaitMs = 10'000;

class HandshakeProcess : public testing::Test {
 protected:
  void SetUp() override {
    cli::SpawnOptions spawn;
    spawn.argv = {MILLRACE_SERVER, "--listen", "tcp://127.0.0.1:0", "--table", directory_.file("db"), "--json",
                  "--shard",       "0",        "--shards",          "1"};
    spawn.stderr_path = directory_.file("log");
    auto child = cli::ChildProcess::spawn(spawn);
    ASSERT_TRUE(child) << child.error().message;
    server_ = std::make_unique<cli::ChildProcess>(std::move(*child));
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

  /// What the server answers first.
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
    EXPECT_THAT(refuse.sentence, testing::HasSubstr(says));
  }

  TemporaryDirectory directory_;
  std::unique_ptr<cli::ChildProcess> server_;
  TransportContext context_;
  std::unique_ptr<Connection> connection_;
};

TEST_F(HandshakeProcess, AWorkerThatFitsIsWelcomedAndSeesItselfInTheView) {
  const Body body = answer_to(hello_message());
  ASSERT_TRUE(std::holds_alternative<Welcome>(body)) << body_name(body);
  const Welcome& welcome = std::get<Welcome>(body);
  EXPECT_EQ(welcome.version, kProtocolVersion);
  ASSERT_EQ(welcome.view.members.size(), 1u);
  EXPECT_EQ(welcome.view.members[0].nonce, 7u);
}

TEST_F(HandshakeProcess, AWorkerOfAnotherVersionIsToldBothVersions) {
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
  expect_refusal(message, ErrorCode::kInvalidArgument, "L2 norm");
}

TEST_F(HandshakeProcess, AnotherShardCountIsRefused) {
  Message message = hello_message();
  std::get<Hello>(message.body).shard_count = 2;
  expect_refusal(message, ErrorCode::kShardMapMismatch, "shard 0 of 1");
}

}  // namespace
}  // namespace millrace::protocol
