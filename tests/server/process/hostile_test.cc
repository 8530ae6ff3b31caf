#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/stream/stream.h"
#include "protocol/address/host_port.h"
#include "protocol/container/container.h"
#include "protocol/keys/key_files.h"
#include "tests/protocol/transport/bare_zmtp.h"
#include "tests/server/process/server_program.h"

/// Strangers and evil workers against a server: a healthy job continues.
namespace millrace::server {
namespace {

using millrace::testing::BareZmtp;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A job of one worker that continues, round by round.
class HealthyJob {
 public:
  HealthyJob(protocol::TransportContext& context, const std::string& address) : worker_(context, address) {
    worker_.send({{}, hello_in("healthy", 1), {}});
    const auto welcome = worker_.next<protocol::Welcome>();
    if (welcome) header_ = welcome->header;
    joined_ = welcome.has_value();
    Stream gradient = Stream::empty(100);
    gradient.indices = {3};
    gradient.values = {1.0F};
    payload_ = SharedBytes::from(std::move(encode_container(gradient.view(), gradient.view(), EncodeOptions{})->bytes));
  }
  bool joined() const { return joined_; }
  bool round() {
    protocol::Contribution contribution;
    contribution.step = step_++;
    contribution.payload_hash = container_identity(payload_.bytes).value();
    worker_.send({header_, contribution, payload_});
    return worker_.next<protocol::Update>().has_value();
  }

 private:
  HandWorker worker_;
  protocol::Header header_;
  SharedBytes payload_;
  uint64_t step_ = 0;
  bool joined_ = false;
};

std::string listening(Program& program) {
  const auto line = nlohmann::json::parse(program.read_line(), nullptr, false);
  return line.is_object() ? line.value("address", "") : "";
}

std::vector<std::string> closed_connections(const std::string& log) {
  std::ifstream in(log);
  std::vector<std::string> closed;
  for (std::string line; std::getline(in, line);) {
    if (line.find("closed a connection") != std::string::npos) closed.push_back(line);
  }
  return closed;
}

TEST(HostileServer, AnUnfinishedMessageEndsItsConnectionAndNoOther) {
  constexpr size_t kSentBytes = 6U << 20;  // more than the largest envelope and payload
  TemporaryFolder folder;
  const std::string log = folder.path + "/log";
  Program program(
      {"--table", folder.path + "/t.db", "--listen", "tcp://127.0.0.1:0", "--json", "--message-bytes-max", "64KiB"},
      log);
  const std::string address = listening(program);
  protocol::TransportContext context;
  HealthyJob job(context, address);
  ASSERT_TRUE(job.joined());
  std::vector<std::string> closed;
  for (const size_t frame_bytes : {size_t{100}, size_t{60'000}}) {
    const std::string body(frame_bytes, 'x');
    BareZmtp stranger(protocol::parse_tcp_address(address).value().port);
    for (size_t sent = 0; sent < kSentBytes && stranger.send_frame(BareZmtp::Frame::kMore, body);) sent += frame_bytes;
    for (int round = 0; round < 20; ++round) EXPECT_TRUE(job.round());
    EXPECT_TRUE(stranger.is_ended()) << frame_bytes;
    // Until the loop has looked: the limit itself holds before.
    const size_t closed_before = closed.size();
    for (const TimeNs until = monotonic_now_ns() + 120 * kNsPerS;
         closed.size() == closed_before && monotonic_now_ns() < until; closed = closed_connections(log))
      ASSERT_TRUE(job.round());
  }
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 0);
  EXPECT_THAT(closed, ElementsAre(HasSubstr("unfinished_message"), HasSubstr("unfinished_message")));
}

TEST(HostileServer, APeerWithAChosenIdentityLosesItsConnection) {
  TemporaryFolder folder;
  const std::string log = folder.path + "/log";
  Program program({"--table", folder.path + "/t.db", "--listen", "tcp://127.0.0.1:0", "--json"}, log);
  const std::string address = listening(program);
  protocol::TransportContext context;
  HealthyJob job(context, address);
  ASSERT_TRUE(job.joined());
  const std::string automatic("\0\0\0\0\1", 5);  // the form of those that ZeroMQ draws
  const BareZmtp stranger(protocol::parse_tcp_address(address).value().port, {{"Identity", automatic}});
  EXPECT_TRUE(stranger.is_ended());
  std::vector<std::string> closed;
  for (const TimeNs until = monotonic_now_ns() + 120 * kNsPerS; closed.empty() && monotonic_now_ns() < until;
       closed = closed_connections(log))
    ASSERT_TRUE(job.round());
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 0);
  EXPECT_THAT(closed, ElementsAre(HasSubstr("bad_handshake")));
}

/// Sends Hellos of another nonce, as a second process for the worker of the healthy job would.
void expect_refused_hellos(const std::string& address, int hellos) {
  protocol::TransportContext context;
  HandWorker stranger(context, address);
  for (int at = 0; at < hellos; ++at) stranger.send({{}, hello_in("healthy", 2), {}});
  for (int at = 0; at < hellos; ++at) {
    const auto refusal = stranger.next<protocol::Refuse>();
    if (!refusal) return ADD_FAILURE() << "a Hello without an answer";
    EXPECT_EQ(std::get<protocol::Refuse>(refusal->body).code, ErrorCode::kIdentityInUse);
  }
}

TEST(HostileServer, AFloodOfHellosStopsNoJobAndFillsNoAuditLog) {
  TemporaryFolder folder;
  const std::string audit = folder.path + "/audit.log";
  Program program(
      {"--table", folder.path + "/t.db", "--listen", "tcp://127.0.0.1:0", "--json", "--quiet", "--audit-log", audit});
  const std::string address = listening(program);
  protocol::TransportContext context;
  HealthyJob job(context, address);
  ASSERT_TRUE(job.joined());
  std::atomic<bool> flooding{true};
  std::thread flood([&] {
    expect_refused_hellos(address, 2'000);
    flooding = false;
  });
  // Until the flood ends: a member that is silent for long loses its place to the stranger.
  bool continues = true;
  for (int round = 0; continues && (round < 20 || flooding); ++round) continues = job.round();
  flood.join();
  EXPECT_TRUE(continues);
  EXPECT_TRUE(job.round());
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 0);
  std::ifstream in(audit);
  int refusals = 0;
  for (std::string line; std::getline(in, line);) refusals += nlohmann::json::parse(line)["event"] == "refuse" ? 1 : 0;
  EXPECT_EQ(refusals, 1);
}

TEST(HostileServer, RightsKeepAWorkersNumberForItsKey) {
  TemporaryFolder folder;
  const std::string keys = folder.path + "/keys";
  for (const char* name : {"cluster", "alice", "bob"}) ASSERT_TRUE(protocol::write_new_keys(keys, name));
  const std::string policy = folder.path + "/policy.json";
  std::ofstream(policy) << R"({"rules": [{"keys": ["alice"], "jobs": ["ads-*"], "may": ["create"], "workers": ["0"]},
                                         {"keys": ["bob"], "jobs": ["ads-*"], "may": ["join"], "workers": ["1"]}]})";
  Program program({"--table", folder.path + "/t.db", "--listen", "tcp://127.0.0.1:0", "--json", "--key",
                   keys + "/cluster.key", "--allowed-keys", keys, "--policy", policy});
  const std::string address = listening(program);
  const auto as = [&](const std::string& name) {
    protocol::TransportOptions options;
    options.keys = protocol::TransportKeys{protocol::read_secret_key(keys + "/" + name + ".key").value(),
                                           protocol::read_public_key(keys + "/cluster.pub").value()};
    return options;
  };
  protocol::TransportContext of_alice(as("alice"));
  protocol::TransportContext of_bob(as("bob"));
  const auto refused = [&](protocol::TransportContext& context, const std::string& job, uint32_t worker) {
    HandWorker hand(context, address);
    protocol::Hello hello = hello_in(job, 5);
    hello.spec.workers = 2;
    protocol::Header header;
    header.worker = worker;
    hand.send({header, hello, {}});
    const auto refusal = hand.next<protocol::Refuse>();
    return refusal ? std::get<protocol::Refuse>(refusal->body).sentence : "no refusal";
  };
  EXPECT_EQ(refused(of_bob, "ads-1", 1), "key 'bob' lacks the right to create job 'ads-1', which does not exist yet");
  EXPECT_EQ(refused(of_alice, "news", 0), "key 'alice' lacks the right to join job 'news'");
  HandWorker alice(of_alice, address);
  protocol::Hello hello = hello_in("ads-1", 5);
  hello.spec.workers = 2;
  alice.send({{}, hello, {}});
  ASSERT_TRUE(alice.next<protocol::Welcome>());
  EXPECT_THAT(refused(of_bob, "ads-1", 0), HasSubstr("lacks the right to be worker 0 (it may be 1)"));
  // A rule that comes later holds from the next Hello on.
  std::ofstream(policy) << R"({"rules": [{"keys": ["*"], "jobs": ["*"], "may": ["create"]}]})";
  program.signal(SIGHUP);
  HandWorker carol(of_bob, address);
  protocol::Header header;
  header.worker = 1;
  hello.spec.name = "news";
  std::string last = "no answer";
  for (const TimeNs until = monotonic_now_ns() + 20 * kNsPerS; !last.empty() && monotonic_now_ns() < until;) {
    carol.send({header, hello, {}});
    last = carol.next_answer_to_hello();
  }
  EXPECT_EQ(last, "");
}

}  // namespace
}  // namespace millrace::server
