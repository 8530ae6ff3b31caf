#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <poll.h>
#include <sys/stat.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "kernels/base/clock.h"
#include "protocol/address/endpoint_text.h"
#include "protocol/datagram/io/udp_bursts.h"
#include "protocol/datagram/key.h"
#include "protocol/job/layout.h"
#include "protocol/job/switch_layout.h"
#include "server/process/aggregator_thread.h"
#include "tests/server/process/server_program.h"
#include "tests/support/switch_stepper.h"
#include "worker/session/switch_socket.h"

/// A real millrace-server in a switch's place: membership by messages, sums by datagrams.
namespace millrace::server {
namespace {

using protocol::Heartbeat;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint32_t kDatagramProcessDimension = 1'000;
constexpr uint32_t kDatagramProcessWorkers = 2;
constexpr TimeNs kDatagramProcessPatience = 20 * kNsPerS;

struct DatagramServer : ::testing::Test {
  DatagramServer() {
    spec.name = "by switch";
    spec.workers = kDatagramProcessWorkers;
    spec.tensors.push_back({.name = "w", .dimension = kDatagramProcessDimension});
    spec.path = protocol::Path::kSwitch;
    spec.switch_path.address = "127.0.0.1:9";  // no process listens
    spec.switch_path.job = 7;
    spec.grid.block_indices = 128;
    spec.dead_after = std::chrono::milliseconds(60'000);
  }
  void write_key(int mode = 0600, uint8_t first = 1) {
    const std::string path = folder.path + "/7.key";
    for (size_t at = 0; at < key.size(); ++at) key[at] = static_cast<uint8_t>(at + first);
    {
      std::ofstream file(path);
      for (const uint8_t byte : key) file << "0123456789abcdef"[byte >> 4] << "0123456789abcdef"[byte & 15];
      file << '\n';
    }
    ASSERT_EQ(::chmod(path.c_str(), static_cast<mode_t>(mode)), 0);
  }
  nlohmann::json start() {
    program.emplace(std::vector<std::string>{"--table", folder.path + "/table.db", "--listen", "tcp://127.0.0.1:0",
                                             "--datagrams", "127.0.0.1:0", "--job-keys", folder.path, "--json"},
                    log);
    return nlohmann::json::parse(program->read_line(), nullptr, false);
  }
  /// Waits until the server's log has these words; returns whether they came.
  bool says(const std::string& words) const {
    for (const TimeNs until = monotonic_now_ns() + kDatagramProcessPatience; monotonic_now_ns() < until;) {
      std::ifstream in(log);
      if (std::string(std::istreambuf_iterator<char>(in), {}).contains(words)) return true;
      ::poll(nullptr, 0, 10);
    }
    return false;
  }
  protocol::Message hello(uint32_t worker) const {
    protocol::Hello body;
    body.nonce = 100 + worker;
    body.spec = spec;
    body.shard_count = 1;
    body.layout_hash = protocol::layout_hash(protocol::plan_layout(spec, 1));
    protocol::Header header;
    header.worker = worker;
    return {header, body, {}};
  }
  worker::SwitchClientOptions client_options(uint16_t worker) const {
    const protocol::SwitchLayout layout = protocol::plan_switch_layout(spec, protocol::plan_layout(spec, 1));
    worker::SwitchClientOptions options;
    options.job = spec.switch_path.job;
    options.key = key;
    options.worker = worker;
    options.workers = kDatagramProcessWorkers;
    options.dimension = static_cast<uint32_t>(layout.dimension);
    options.window_indices = layout.window_indices;
    options.slots = layout.slots;
    options.lanes = layout.lanes;
    options.exponent_initial = -8;  // on whose grid 16 bits hold the test's values
    options.nonce_seed = 1000u + worker;
    return options;
  }

  /// Lets all workers join, and one say that the switch is silent. `datagrams`: where shard 0 is to replace it.
  void begin(const std::string& address, const std::string& datagrams) {
    workers.clear();
    headers.clear();
    for (uint32_t worker = 0; worker < kDatagramProcessWorkers; ++worker) {
      workers.push_back(std::make_unique<HandWorker>(context, address));
      workers.back()->send(hello(worker));
      const auto welcome = workers.back()->next<protocol::Welcome>();
      ASSERT_TRUE(welcome.has_value());
      membership = std::get<protocol::Welcome>(welcome->body).membership;
      headers.push_back(welcome->header);
      headers.back().epoch = membership.epoch;
      EXPECT_EQ(membership.path, protocol::Path::kSwitch);
      EXPECT_EQ(membership.shards.at(0).datagrams, datagrams);
    }
    Heartbeat heartbeat;
    heartbeat.switch_state = Heartbeat::Switch::kSilent;
    workers[1]->send({headers[1], heartbeat, {}});  // the last one's Welcome is of the epoch in which the job began
    do {
      const auto change = workers[1]->next<protocol::MembershipChange>();
      ASSERT_TRUE(change.has_value());
      membership = std::get<protocol::MembershipChange>(change->body).membership;
    } while (membership.path == protocol::Path::kSwitch);
  }
  /// Runs the steps of all workers by datagrams under `key`; returns their faults.
  std::vector<std::string> run_all();

  TemporaryFolder folder;
  const std::string log = folder.path + "/log";
  protocol::JobKey key{};
  protocol::JobSpec spec;
  std::optional<Program> program;
  protocol::TransportContext context;
  std::vector<std::unique_ptr<HandWorker>> workers;
  std::vector<protocol::Header> headers;
  protocol::Membership membership;  ///< as shard 0 decides the steps
};

/// The sum of every step, entry by entry; the values are on the grid, so that f32 is exact.
void run_steps(worker::testing::SwitchStepper& stepper, uint32_t worker, std::vector<std::string>& faults) {
  constexpr uint32_t kSteps = 5;
  for (uint32_t step = 0; step < kSteps; ++step) {
    const std::vector<uint32_t> indices = {1 + worker, 500 + step, 900};
    const std::vector<float> values = {0.25f, 0.5f + static_cast<float>(worker), 0.125f};
    const Result<worker::testing::SwitchStep> done = stepper.run_step(step, indices, values, kDatagramProcessPatience);
    if (!done) return faults.push_back(done.error().message);
    std::map<uint32_t, double> sums;
    for (const worker::testing::SwitchStep::Window& window : done->windows) {
      for (size_t at = window.first; at < window.last; ++at)
        sums[done->indices[at]] = std::ldexp(done->sums[at], window.exponent);
    }
    const std::map<uint32_t, double> expected = {{1, 0.25}, {2, 0.25}, {500 + step, 2.0}, {900, 0.25}};
    if (sums != expected) faults.push_back("step " + std::to_string(step) + ": other sums");
    if (!done->returned_indices.empty()) faults.push_back("step " + std::to_string(step) + ": entries were returned");
  }
  if (const Status finished = stepper.finish(kDatagramProcessPatience); !finished)
    faults.push_back(finished.error().message);
}

std::vector<std::string> DatagramServer::run_all() {
  const worker::SwitchEpoch epoch{.epoch = static_cast<uint32_t>(membership.epoch),
                                  .live = (uint64_t{1} << kDatagramProcessWorkers) - 1,
                                  .membership_hash = 42,
                                  .decider = protocol::parse_endpoint(membership.shards.at(0).datagrams).value()};
  std::vector<std::unique_ptr<worker::testing::SwitchStepper>> steppers;
  for (uint16_t worker = 0; worker < kDatagramProcessWorkers; ++worker) {
    auto opened = worker::testing::SwitchStepper::open(client_options(worker), [epoch] { return epoch; });
    if (!opened) return {opened.error().message};
    steppers.push_back(std::move(*opened));
  }
  std::vector<std::vector<std::string>> faults(kDatagramProcessWorkers);
  {
    std::vector<std::jthread> threads;
    for (uint32_t worker = 0; worker < kDatagramProcessWorkers; ++worker)
      threads.emplace_back([&, worker] { run_steps(*steppers[worker], worker, faults[worker]); });
  }
  std::vector<std::string> all;
  for (const auto& of_one : faults) all.insert(all.end(), of_one.begin(), of_one.end());
  return all;
}

/// Of one lane and of several, whose numbers the thread has as well.
struct DatagramServerOfLanes : DatagramServer, ::testing::WithParamInterface<uint32_t> {
  DatagramServerOfLanes() { spec.switch_path.lanes = GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Lanes, DatagramServerOfLanes, ::testing::Values(1, 4));

TEST_P(DatagramServerOfLanes, TheServerReplacesASilentSwitchWithExactSums) {
  write_key();
  const nlohmann::json line = start();
  ASSERT_TRUE(line.is_object());
  const std::string datagrams = line.value("datagrams", "");
  ASSERT_THAT(datagrams, HasSubstr("127.0.0.1:"));
  EXPECT_NE(datagrams, "127.0.0.1:0") << "as bound";
  ASSERT_NO_FATAL_FAILURE(begin(line.value("address", ""), datagrams));
  EXPECT_THAT(run_all(), IsEmpty());

  program->signal(SIGTERM);
  EXPECT_TRUE(workers[0]->next<protocol::Goodbye>().has_value());
  EXPECT_EQ(program->wait(), 0) << "the thread of datagrams ends with the process";
}

TEST_F(DatagramServer, AReloadGivesTheNextJobTheNewKeyAndLeavesTheRunningJobItsOwn) {
  write_key();
  const protocol::JobKey first = key;
  const nlohmann::json line = start();
  ASSERT_TRUE(line.is_object());
  const std::string datagrams = line.value("datagrams", "");
  ASSERT_NO_FATAL_FAILURE(begin(line.value("address", ""), datagrams));
  write_key(0600, 100);
  const protocol::JobKey second = key;
  program->signal(SIGHUP);
  ASSERT_TRUE(says("1 job keys, 1 of them new"));
  key = first;
  EXPECT_THAT(run_all(), IsEmpty()) << "the running job keeps its key";
  std::ofstream(folder.path + "/7.key") << "no key";
  program->signal(SIGHUP);
  ASSERT_TRUE(says("must be 64 hexadecimal digits and a newline (millrace keys job); the key from before holds"));
  for (uint32_t worker = 0; worker < kDatagramProcessWorkers; ++worker)
    workers[worker]->send({headers[worker], protocol::Goodbye{protocol::Goodbye::Reason::kFinished, ""}, {}});
  ASSERT_TRUE(says("is over: finished"));
  key = second;
  ASSERT_NO_FATAL_FAILURE(begin(line.value("address", ""), datagrams));
  EXPECT_THAT(run_all(), IsEmpty()) << "the next job has the key of the last good file";
}

TEST_F(DatagramServer, JobWithoutAKeyIsRefusedWithWhatToDo) {
  const nlohmann::json line = start();
  ASSERT_TRUE(line.is_object());
  HandWorker worker(context, line.value("address", ""));
  worker.send(hello(0));
  const auto refusal = worker.next<protocol::Refuse>();
  ASSERT_TRUE(refusal.has_value());
  const auto& body = std::get<protocol::Refuse>(refusal->body);
  EXPECT_THAT(body.sentence, HasSubstr(folder.path + "/7.key"));
  EXPECT_THAT(body.sentence, HasSubstr("--job-keys"));
  EXPECT_FALSE(body.retry);
  write_key(0644);
  worker.send(hello(0));
  const auto open_to_others = worker.next<protocol::Refuse>();
  ASSERT_TRUE(open_to_others.has_value());
  EXPECT_THAT(std::get<protocol::Refuse>(open_to_others->body).sentence, HasSubstr("chmod 600"));
}

/// Such a job would begin, and stand where shard 0 has to decide.
TEST_F(DatagramServer, JobWithAWorkerInTwoRacksIsRefusedByItsFile) {
  write_key();
  std::ofstream(folder.path + "/7.racks") << R"({"racks": [[0, 1], [1]]})";
  const nlohmann::json line = start();
  ASSERT_TRUE(line.is_object());
  HandWorker worker(context, line.value("address", ""));
  worker.send(hello(0));
  const auto refusal = worker.next<protocol::Refuse>();
  ASSERT_TRUE(refusal.has_value());
  EXPECT_THAT(std::get<protocol::Refuse>(refusal->body).sentence, HasSubstr(folder.path + "/7.racks"));
}

TEST(DatagramThreadTest, DatagramsOfNoJobAreCountedByReason) {
  auto thread = DatagramThread::start({.listen = "127.0.0.1:0", .key_folder = "", .memory_bytes_max = 1 << 20}, 1);
  ASSERT_TRUE(thread.has_value()) << thread.error().message;
  const protocol::Endpoint to = protocol::parse_endpoint((*thread)->address()).value();
  auto socket = protocol::UdpBursts::open(protocol::parse_endpoint("127.0.0.1:0").value(), 1472, 1 << 16);
  ASSERT_TRUE(socket.has_value()) << socket.error().message;
  const auto send = [&](size_t bytes) {
    std::ranges::fill((*socket)->room().first(bytes), uint8_t{0});
    (*socket)->send(bytes, to);
    (*socket)->flush();
  };
  std::map<std::string, uint64_t> dropped;
  const TimeNs deadline = monotonic_now_ns() + kDatagramProcessPatience;
  while (dropped.size() < 2 && monotonic_now_ns() < deadline) {
    send(3);    // too short to be of a job
    send(200);  // of job 0, which is not here
    for (const NamedCount& one : (*thread)->dropped()) dropped[one.name] = one.count;
    std::this_thread::yield();
  }
  EXPECT_GT(dropped["too_short"], 0u);
  EXPECT_GT(dropped["wrong_job"], 0u);
  EXPECT_EQ(dropped.size(), 2u) << "and for no other reason";
}

TEST(DatagramOptions, WrongOnesAreRefusedBeforeAnythingStarts) {
  const TemporaryFolder folder;
  const std::string table = folder.path + "/table.db";
  const std::vector<std::vector<std::string>> wrong = {
      {"--table", table, "--datagrams", "127.0.0.1:0"},
      {"--table", table, "--job-keys", folder.path},
      {"--table", table, "--datagrams", "nowhere", "--job-keys", folder.path},
      {"--table", table, "--datagrams", "127.0.0.1:0", "--job-keys", folder.path, "--shard", "1", "--shards", "2"},
      {"--table", table, "--listen", "tcp://127.0.0.1:0", "--datagrams", "0.0.0.0:0", "--job-keys", folder.path}};
  for (const std::vector<std::string>& arguments : wrong) {
    Program program(arguments);
    EXPECT_EQ(program.wait(), 2) << arguments.back();
  }
}

}  // namespace
}  // namespace millrace::server
