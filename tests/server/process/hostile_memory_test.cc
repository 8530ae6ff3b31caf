#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "protocol/address/host_port.h"
#include "server/connections/connection_ledger.h"
#include "tests/protocol/transport/bare_zmtp.h"
#include "tests/server/process/server_program.h"

/// The memory of a server while strangers send messages that never end.
namespace millrace::server {
namespace {

using millrace::testing::BareZmtp;

constexpr uint64_t kMiB = 1 << 20;
constexpr size_t kStrangers = 48;  ///< fewer than one address may have
constexpr uint64_t kShardMemory = 64 * kMiB;
/// Of it, what strangers may hold together (server/process/port_guard.cc), and the share of each.
constexpr uint64_t kHeldMax = kShardMemory / 4 + kStrangers * kStrangerShare;
/// The connections themselves, pieces of memory between those in use, the rest of the process. Without the limit 48
/// unfinished messages of 4 MiB take 80 to 320 MB, by the size of the frames.
constexpr uint64_t kBeside = 24 * kMiB;

/// Returns the peak of a process's resident memory.
uint64_t peak_bytes(pid_t process) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string name; status >> name;) {
    uint64_t kib = 0;
    if (name == "VmHWM:" && status >> kib) return kib << 10;
  }
  return 0;
}

TEST(HostileMemory, UnfinishedMessagesOfStrangersAreBounded) {
  TemporaryFolder folder;
  Program program({"--table", folder.path + "/t.db", "--listen", "tcp://127.0.0.1:0", "--json", "--quiet",
                   "--message-bytes-max", "1MiB", "--job-memory-bytes-max", "16MiB", "--shard-memory-bytes-max",
                   std::to_string(kShardMemory)});
  const std::string line = program.read_line();
  const std::string key = R"("address":")";
  ASSERT_NE(line.find(key), std::string::npos) << line;
  const size_t begin = line.find(key) + key.size();
  const std::string address = line.substr(begin, line.find('"', begin) - begin);
  const uint16_t port = protocol::parse_tcp_address(address).value().port;
  protocol::TransportContext context;
  uint64_t jobs = 0;
  const auto joins = [&] {
    HandWorker worker(context, address);
    ++jobs;
    worker.send({{}, hello_in("job-" + std::to_string(jobs), jobs), {}});
    return worker.next<protocol::Welcome>().has_value();
  };
  ASSERT_TRUE(joins());
  const uint64_t before = peak_bytes(program.pid());
  ASSERT_GT(before, 0U);
  using Frame = BareZmtp::Frame;
  struct Kind {
    Frame frame;
    std::string body;
  };
  // ZeroMQ takes the commands for parts of a message.
  for (const auto& [frame, body] :
       {Kind{Frame::kMore, ""}, Kind{Frame::kMore, std::string(40, 'x')}, Kind{Frame::kMore, std::string(100, 'x')},
        Kind{Frame::kMore, std::string(5'000, 'x')}, Kind{Frame::kMore, std::string(100'000, 'x')},
        Kind{Frame::kCommandAndMore, "\x09SUBSCRIBE"},
        Kind{Frame::kCommandAndMore, "\x09SUBSCRIBE" + std::string(5'000, 'x')}}) {
    SCOPED_TRACE(std::to_string(static_cast<int>(frame)) + ", " + std::to_string(body.size()) + " bytes");
    constexpr size_t kSentEach = 4 * kMiB;
    constexpr size_t kSentInTurn = 64 << 10;
    const size_t wire_bytes = 9 + body.size();
    std::vector<std::unique_ptr<BareZmtp>> strangers;
    for (size_t at = 0; at < kStrangers; ++at) strangers.push_back(std::make_unique<BareZmtp>(port));
    for (size_t sent = 0; sent < kSentEach; sent += kSentInTurn) {
      for (auto& stranger : strangers) {
        for (size_t bytes = 0; stranger && bytes < kSentInTurn; bytes += wire_bytes)
          if (!stranger->send_frame(frame, body)) stranger.reset();
      }
    }
    EXPECT_TRUE(joins()) << "while strangers hold all they may";
    EXPECT_LT(peak_bytes(program.pid()) - before, kHeldMax + kBeside);
  }
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 0);
}

}  // namespace
}  // namespace millrace::server
