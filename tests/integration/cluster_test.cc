// Real servers and workers: deaths, restarts, mistakes of people, garbage on the port.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>

#include "kernels/base/random.h"
#include "protocol/transport/transport.h"
#include "tests/integration/cluster_processes.h"

namespace millrace::testing {
namespace {

constexpr uint64_t kDimension = 20'000;  // test_worker's own

class Cluster : public ClusterProcesses {
 protected:
  std::vector<launch::ChildProcess> start_workers(uint32_t workers, uint64_t steps,
                                                  const std::vector<std::string>& settings = {}) {
    std::vector<launch::ChildProcess> processes;
    for (uint32_t worker = 0; worker < workers; ++worker)
      processes.push_back(start_worker(worker, workers, steps, settings));
    return processes;
  }

  void expect_finished(launch::ChildProcess& process, WorkerLog& log) {
    read_to_end(process, log);
    EXPECT_TRUE(log.finished) << log.error;
    EXPECT_EQ(log.exit_code, 0);
    EXPECT_FALSE(log.broken);
    EXPECT_EQ(log.weights, replayed_weights(log, kDimension));
  }

  void expect_error(launch::ChildProcess& process, WorkerLog& log, const std::string& beginning,
                    const std::string& containing) {
    read_to_end(process, log);
    EXPECT_TRUE(log.error.starts_with(beginning)) << log.error;
    EXPECT_NE(log.error.find(containing), std::string::npos) << log.error;
    EXPECT_EQ(log.exit_code, 3);
  }
};

TEST_F(Cluster, WorkerKilledMidRound_RemovedAndOthersFinishWithEqualWeights) {
  constexpr uint64_t kSteps = 24;
  constexpr uint64_t kDeathAfter = 10;
  ASSERT_NO_FATAL_FAILURE(start_shards(2));
  // Longer than the test: a survivor that the machine delays must not be taken for dead as well.
  const std::vector<std::string> settings = {"parts=3", "dead_after_ms=8000"};
  std::vector<launch::ChildProcess> survivors;
  for (uint32_t worker = 0; worker < 3; ++worker) survivors.push_back(start_worker(worker, 4, kSteps, settings));
  std::vector<std::string> doomed_settings = settings;
  doomed_settings.push_back("hold_at=" + std::to_string(kDeathAfter));
  launch::ChildProcess doomed = start_worker(3, 4, kSteps, doomed_settings);
  wait_for_line(doomed, "holding");
  doomed.kill_now();

  std::vector<WorkerLog> logs(3);
  for (size_t worker = 0; worker < 3; ++worker) expect_finished(survivors[worker], logs[worker]);
  EXPECT_EQ(logs[0].contributors.size(), kSteps * 6);
  for (size_t worker = 1; worker < 3; ++worker) {
    EXPECT_EQ(logs[worker].contributors, logs[0].contributors);
    EXPECT_EQ(logs[worker].weights, logs[0].weights);
  }
  for (const auto& [piece, mask] : logs[0].contributors) {
    const bool alone = mask == 7;
    const bool all = mask == 15;
    EXPECT_TRUE(piece.first < kDeathAfter   ? all
                : piece.first > kDeathAfter ? alone
                                            : all || alone)
        << piece.first << ": " << mask;
  }
}

TEST_F(Cluster, AllFinishWithLossyCodecsOnTheWayAndStaleness) {
  // Levels 1..5 times powers of two quantize with an error everywhere. The test requires that all workers end alike.
  ASSERT_NO_FATAL_FAILURE(start_shards(2));
  auto workers = start_workers(3, 12, {"staleness=2", "codec=bitmap+qsgd8"});
  std::vector<WorkerLog> logs(3);
  for (size_t worker = 0; worker < 3; ++worker) {
    read_to_end(workers[worker], logs[worker]);
    EXPECT_TRUE(logs[worker].finished) << logs[worker].error;
    EXPECT_EQ(logs[worker].weights, logs[0].weights);
  }
}

TEST_F(Cluster, ATerminatedShardDrainsAndTheWorkersLearnTheReason) {
  ASSERT_NO_FATAL_FAILURE(start_shards(2));
  auto workers = start_workers(2, 1'000'000);
  std::vector<WorkerLog> logs(2);
  for (auto& worker : workers) wait_for_line(worker, "pushed 5");
  ::kill(shards_[1]->pid(), SIGTERM);
  // From that shard itself, or from the other one, which reads the reason in the table.
  for (size_t worker = 0; worker < 2; ++worker) {
    expect_error(workers[worker], logs[worker], "unavailable", "shard 1 was shut down");
  }
  const auto report = shards_[1]->wait(kPatienceMs);
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->exit_code, 0);
  // The other one still serves.
  ::kill(shards_[0]->pid(), SIGTERM);
  const auto other = shards_[0]->wait(kPatienceMs);
  ASSERT_TRUE(other.has_value());
  EXPECT_EQ(other->exit_code, 0);
}

TEST_F(Cluster, SecondProcessOfOneIdentityIsRefusedByNameAndDisturbsNothing) {
  ASSERT_NO_FATAL_FAILURE(start_shards(2));
  auto workers = start_workers(2, 12, {"hold_at=3"});
  std::vector<WorkerLog> logs(2);
  for (size_t worker = 0; worker < 2; ++worker) wait_for_line(workers[worker], "holding", &logs[worker]);
  launch::ChildProcess impostor = start_worker(0, 2, 12);
  WorkerLog impostor_log;
  expect_error(impostor, impostor_log, "identity_in_use", "worker 0");
  for (auto& worker : workers) ::kill(worker.pid(), SIGUSR1);
  for (size_t worker = 0; worker < 2; ++worker) expect_finished(workers[worker], logs[worker]);
}

TEST_F(Cluster, WorkerWithAnotherShapeIsRefusedWithTheField) {
  ASSERT_NO_FATAL_FAILURE(start_shards(1));
  launch::ChildProcess first = start_worker(0, 2, 3);
  wait_for_line(first, "log joined job");
  launch::ChildProcess second = start_worker(1, 2, 3, {"dimension=19999"});
  WorkerLog log;
  expect_error(second, log, "job_mismatch", "dimension");
  // The job continues with a worker that fits.
  launch::ChildProcess third = start_worker(1, 2, 3);
  WorkerLog logs[2];
  expect_finished(first, logs[0]);
  expect_finished(third, logs[1]);
}

TEST_F(Cluster, WorkersThatStartBeforeTheServersFindThem) {
  // A socket of this test on the port detects the worker's attempt; no shard listens there.
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&where), sizeof(where)), 0);
  ASSERT_EQ(::listen(listener, 8), 0);
  socklen_t length = sizeof(where);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&where), &length), 0);
  const std::string address = "tcp://127.0.0.1:" + std::to_string(ntohs(where.sin_port));
  addresses_ = {address};
  auto workers = start_workers(2, 5);
  for (int tried = 0; tried < 2; ++tried) {
    const int connection = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    ASSERT_GE(connection, 0);
    ::close(connection);
  }
  ::close(listener);
  ASSERT_NO_FATAL_FAILURE(start_shard(0, 1, address));
  std::vector<WorkerLog> logs(2);
  for (size_t worker = 0; worker < 2; ++worker) expect_finished(workers[worker], logs[worker]);
}

TEST_F(Cluster, ARestartedShardRecoversFromUpdatesThatWorkersRetain) {
  ASSERT_NO_FATAL_FAILURE(start_shards(2));
  constexpr uint64_t kSteps = 400;
  std::vector<launch::ChildProcess> workers;
  for (uint32_t worker = 0; worker < 2; ++worker) workers.push_back(start_worker(worker, 2, kSteps));
  std::vector<WorkerLog> logs(2);
  for (size_t worker = 0; worker < 2; ++worker) wait_for_line(workers[worker], "pushed 5", &logs[worker]);
  shards_[1]->kill_now();
  const std::string address = addresses_[1];
  ASSERT_NO_FATAL_FAILURE(start_shard(1, 2, address));
  for (size_t worker = 0; worker < 2; ++worker) expect_finished(workers[worker], logs[worker]);
  EXPECT_EQ(logs[0].weights, logs[1].weights);
  EXPECT_EQ(logs[0].contributors, logs[1].contributors);
  for (const auto& [where, mask] : logs[0].contributors)
    EXPECT_EQ(mask, 0b11u) << "step " << where.first << " from " << where.second << ": both took part in every step";
}

TEST_F(Cluster, AServerReportsAPortInUseOnceAndExits) {
  ASSERT_NO_FATAL_FAILURE(start_shards(1));
  launch::ChildProcess second = spawn_server(0, 1, addresses_[0]);
  const auto report = second.wait(kPatienceMs);
  ASSERT_TRUE(report.has_value()) << report.error().message;
  EXPECT_EQ(report->exit_code, 6);
  const auto line = second.read_line(kPatienceMs);
  ASSERT_TRUE(line.has_value()) << line.error().message;
  EXPECT_NE(line->find("in use"), std::string::npos) << *line;
  EXPECT_EQ(text_of("shard-1.log"), "") << "said once";
}

/// Sends random bytes as a TCP client until the server hangs up or takes them all.
void send_garbage(const std::string& address, RandomSequence& random) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  where.sin_port = htons(static_cast<uint16_t>(std::stoul(address.substr(address.rfind(':') + 1))));
  if (::connect(socket, reinterpret_cast<sockaddr*>(&where), sizeof(where)) == 0) {
    std::vector<uint8_t> bytes(1 + random.next_below(20'000));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.next_u32());
    // Some begin like ZeroMQ's greeting, so that more of the code reads them.
    if (random.next_unit() < 0.5) {
      bytes[0] = 0xFF;
      if (bytes.size() > 9) bytes[9] = 0x7F;
    }
    [[maybe_unused]] const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  ::close(socket);
}

TEST_F(Cluster, GarbageOnTheShardsPortDisturbsNoRunningJob) {
  ASSERT_NO_FATAL_FAILURE(start_shards(2));
  auto workers = start_workers(2, 60, {"hold_at=5"});
  std::vector<WorkerLog> logs(2);
  for (size_t worker = 0; worker < 2; ++worker) wait_for_line(workers[worker], "holding", &logs[worker]);
  RandomSequence random(RandomKey::from(5));
  protocol::TransportContext context;
  auto stranger = protocol::Connection::connect(context, addresses_[0]);
  ASSERT_TRUE(stranger.has_value());
  for (int round = 0; round < 100; ++round) {
    send_garbage(addresses_[static_cast<size_t>(round) % 2], random);
    // And as a peer that speaks ZeroMQ: frames that are no messages, and envelopes with another peer's identity.
    ByteBuffer envelope(random.next_below(300));
    for (uint8_t& byte : envelope) byte = static_cast<uint8_t>(random.next_u32());
    (*stranger)->send_frames(SharedBytes::from(std::move(envelope)),
                             SharedBytes::from(ByteBuffer(random.next_below(300))));
    protocol::Message message;
    message.header = {
        .job = 1, .epoch = random.next_below(9), .worker = 0, .incarnation = 1, .shard = 0, .shard_incarnation = 1};
    message.body = protocol::Ack{{{0, 60}, {1, 60}}};
    if (round % 3 == 1) message.body = protocol::Goodbye{protocol::Goodbye::Reason::kFinished, ""};
    if (round % 3 == 2) message.body = protocol::Contribution{.part = 0, .step = random.next_below(60)};
    (*stranger)->send(message);
  }
  for (auto& worker : workers) ::kill(worker.pid(), SIGUSR1);
  for (size_t worker = 0; worker < 2; ++worker) {
    expect_finished(workers[worker], logs[worker]);
    for (const auto& [piece, mask] : logs[worker].contributors) EXPECT_EQ(mask, 3u) << "step " << piece.first;
  }
}

}  // namespace
}  // namespace millrace::testing
