#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "millrace/millrace.h"
#include "protocol/address/endpoint_text.h"
#include "protocol/job/switch_layout.h"
#include "switch_agg/aggregator/aggregator.h"
#include "switch_agg/aggregator/split_by_lanes.h"
#include "switch_agg/packet_io/udp_port.h"
#include "tests/worker/session_options.h"
#include "tests/worker/temporary_folder.h"
#include "tests/worker/toys/fake_cluster.h"
#include "worker/config/job_config.h"

/// The public session on path switch: real sockets on the loopback, real aggregators, toy shards.
namespace millrace::testing {
namespace {

constexpr std::chrono::milliseconds kSessionSwitchSoon{120'000};
constexpr uint32_t kSwitchJob = 5;
constexpr int kWaitMs = 1;

/// An aggregator behind a socket, in a thread.
class UdpAggregator {
 public:
  UdpAggregator(const protocol::JobSpec& spec, const std::string& listen, uint64_t incarnation_seed)
      : aggregator_({.slots_max = 32, .window_indices_max = 1'024}, incarnation_seed) {
    auto port = switch_agg::UdpPort::open({.listen = *protocol::parse_endpoint(listen)});
    EXPECT_TRUE(port.has_value()) << port.error().message;
    port_ = std::move(*port);
    switch_agg::SwitchJob job;
    job.job = kSwitchJob;
    job.name = "session";
    job.key.fill(0xAB);
    job.workers = spec.workers;
    job.window_indices = spec.grid.block_indices;
    job.slots = protocol::plan_switch_layout(spec, protocol::plan_layout(spec, 2)).slots;
    job.lanes = spec.switch_path.lanes;
    for (const switch_agg::SwitchJob& lane : switch_agg::split_by_lanes(job))
      EXPECT_TRUE(aggregator_.add_job(lane, monotonic_now_ns()).has_value());
    thread_ = std::thread([this] { serve(); });
  }
  ~UdpAggregator() {
    stop_ = true;
    thread_.join();
  }
  UdpAggregator(const UdpAggregator&) = delete;
  UdpAggregator& operator=(const UdpAggregator&) = delete;

  std::string address() const { return protocol::endpoint_text(port_->address()); }

 private:
  void serve() {
    while (!stop_) {
      const auto packets = port_->receive();
      const TimeNs now = monotonic_now_ns();
      for (const protocol::ReceivedPacket& packet : packets) aggregator_.receive(packet, now, *port_);
      aggregator_.tick(now, *port_);
      port_->flush();
      if (packets.empty()) port_->wait(kWaitMs);
    }
  }

  switch_agg::Aggregator aggregator_;
  std::unique_ptr<switch_agg::UdpPort> port_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

const std::vector<TensorOptions> kSessionSwitchTwoTensors = {{.name = "large", .dimension = 20'000},
                                                             {.name = "small", .dimension = 100}};

class SessionSwitch : public ::testing::Test {
 protected:
  SessionSwitch() {
    key_file_ = folder_.write("job.key", repeated("ab", 32) + "\n");
    ::chmod(key_file_.c_str(), 0600);
  }

  static std::string repeated(const std::string& text, int times) {
    std::string all;
    for (int i = 0; i < times; ++i) all += text;
    return all;
  }

  SessionOptions job(uint32_t workers) const {
    SessionOptions job;
    job.name = "session-switch";
    job.workers = workers;
    job.liveness.heartbeat = std::chrono::milliseconds(50);
    job.connect_timeout = kSessionSwitchSoon;
    job.shards = {"tcp://127.0.0.1:1"};
    job.path = SwitchPath{.address = "127.0.0.1:9",
                          .job = kSwitchJob,
                          .slots = 8,
                          .lanes = 2,
                          .return_after = std::chrono::milliseconds(500)};
    job.grid = Grid{1024, -8};
    job.guarantees.audit = true;
    job.switch_key_file = key_file_;
    return job;
  }

  static protocol::JobSpec spec_of(const SessionOptions& job) {
    auto spec = worker::job_spec_of(job, job, kSessionSwitchTwoTensors);
    EXPECT_TRUE(spec.has_value()) << spec.error().message;
    return *spec;
  }

  std::string refused(const SessionOptions& job) const {
    try {
      Session::connect(job, job, kSessionSwitchTwoTensors);
    } catch (const JobError& error) {
      EXPECT_EQ(error.code(), JobErrorCode::kInvalidArgument) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "nothing was refused";
    return {};
  }

  TemporaryFolder folder_;
  std::string key_file_;
};

float value_of(uint32_t worker, uint64_t step, uint32_t index) {
  return static_cast<float>(static_cast<int>((index * 7 + step * 3 + worker) % 33) - 16) / 8;
}

/// What all workers pushed, kept back and got, by index of the large tensor: on a binary grid, so exact.
struct SessionSwitchBooks {
  std::mutex mutex;
  std::map<uint32_t, double> entered;
  std::map<uint32_t, double> kept;
  std::map<uint32_t, std::map<uint32_t, double>> applied;  ///< by worker

  void count(std::map<uint32_t, double>& book, uint64_t index, float value) {
    book[static_cast<uint32_t>(index)] += static_cast<double>(value);
  }
  void expect_balanced() {
    for (const auto& [worker, updates] : applied) {
      EXPECT_GT(updates.size(), 400u);
      for (const auto& [index, sum] : entered) {
        const auto applied_here = updates.find(index);
        const double got = applied_here == updates.end() ? 0 : applied_here->second;
        EXPECT_EQ(sum, got + kept[index]) << "worker " << worker << ", index " << index;
      }
    }
  }
};

/// One step of both tensors.
void run_step(Session& session, uint32_t worker, uint64_t step, SessionSwitchBooks& books) {
  std::vector<uint32_t> indices;
  std::vector<float> values;
  for (auto index = static_cast<uint32_t>(step); index < 20'000; index += 500) {
    indices.push_back(index);
    values.push_back(value_of(worker, step, index));
  }
  session.push_sparse(0, indices, values);
  const std::vector<uint32_t> one{7};
  session.push_sparse(1, one, std::vector<float>{1.0f});
  const TensorUpdate update = session.await(0, step, kSessionSwitchSoon);
  session.await(1, step, kSessionSwitchSoon);
  const std::lock_guard lock(books.mutex);
  for (size_t i = 0; i < indices.size(); ++i) books.count(books.entered, indices[i], values[i]);
  for (const UpdatePiece& piece : update.pieces) {
    for (size_t i = 0; i < piece.values.size(); ++i)
      books.count(books.applied[worker], piece.begin + piece.indices[i], piece.values[i]);
  }
}

void finish(Session& session, SessionSwitchBooks& books) {
  const SparseEntries kept = session.take_residual(0);
  session.finish(kSessionSwitchSoon);
  const std::lock_guard lock(books.mutex);
  for (size_t i = 0; i < kept.indices.size(); ++i) books.count(books.kept, kept.indices[i], kept.values[i]);
}

TEST_F(SessionSwitch, SumsComeByTheSwitch) {
  SessionOptions options = job(3);
  UdpAggregator at(spec_of(options), "127.0.0.1:0", 1);
  std::get<SwitchPath>(options.path).address = at.address();
  FakeCluster cluster(spec_of(options), 2);
  cluster.run_there([&] { cluster.table().membership.path = protocol::Path::kSwitch; });
  options.shards = cluster.addresses();
  SessionSwitchBooks books;
  std::vector<std::thread> threads;
  for (uint32_t worker = 0; worker < 3; ++worker) {
    threads.emplace_back([&, worker] {
      SessionOptions own = options;
      own.worker = worker;
      try {
        auto session = Session::connect(own, own, kSessionSwitchTwoTensors);
        for (uint64_t step = 0; step < 20; ++step) run_step(*session, worker, step, books);
        finish(*session, books);
        const Stats stats = session->stats();
        EXPECT_TRUE(stats.by_switch.used);
        EXPECT_TRUE(stats.by_switch.at_switch);
        EXPECT_GT(stats.by_switch.turns, 20u);
        EXPECT_EQ(stats.by_switch.fallbacks, 0u);
        EXPECT_GT(stats.by_switch.events.at("hellos"), 0u) << "other events have counters too";
        EXPECT_EQ(stats.by_switch.events.at("forged"), 0u);
        EXPECT_EQ(stats.by_switch.events.count("resends"), 0u) << "it has a field of its own";
        EXPECT_EQ(stats.audit.imbalance, 0);
        EXPECT_GT(stats.bytes_up, 20'000u);
      } catch (const JobError& error) {
        ADD_FAILURE() << "worker " << worker << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  books.expect_balanced();
}

TEST_F(SessionSwitch, AJobContinuesOnAShardAndReturnsToTheSwitch) {
  SessionOptions options = job(2);
  auto at = std::make_unique<UdpAggregator>(spec_of(options), "127.0.0.1:0", 1);
  const std::string address = at->address();
  UdpAggregator fallback(spec_of(options), "127.0.0.1:0", 2);
  std::get<SwitchPath>(options.path).address = address;
  // Acts on reports as a shard does: sets the table's path, and another epoch.
  const auto obey = [](FakeCluster& self, uint32_t, const protocol::PeerId&, const protocol::Message& message) {
    const auto* heartbeat = std::get_if<protocol::Heartbeat>(&message.body);
    protocol::Membership& membership = self.table().membership;
    if (heartbeat == nullptr || message.header.epoch != membership.epoch) return false;
    using Word = protocol::Heartbeat::Switch;
    const bool leaves = heartbeat->switch_state == Word::kSilent && membership.path == protocol::Path::kSwitch;
    const bool comes = heartbeat->switch_state == Word::kAnswers && membership.path == protocol::Path::kServer;
    if (!leaves && !comes) return false;
    membership.path = leaves ? protocol::Path::kServer : protocol::Path::kSwitch;
    ++membership.epoch;
    self.adopt_views();
    return false;
  };
  FakeCluster cluster(spec_of(options), 2, obey);
  cluster.run_there([&] {
    cluster.table().membership.path = protocol::Path::kSwitch;
    cluster.table().membership.shards[0].datagrams = fallback.address();
  });
  options.shards = cluster.addresses();
  std::atomic<int> steps_of_first = 0;
  // Worker 1 is a step behind at most: it hears of the last one in time.
  std::atomic<uint64_t> last_step = UINT64_MAX;
  const auto deadline = std::chrono::steady_clock::now() + kSessionSwitchSoon;
  SessionSwitchBooks books;
  std::vector<std::thread> threads;
  for (uint32_t worker = 0; worker < 2; ++worker) {
    threads.emplace_back([&, worker] {
      SessionOptions own = options;
      own.worker = worker;
      try {
        auto session = Session::connect(own, own, kSessionSwitchTwoTensors);
        // Both push equally often: worker 0 says after which step to end.
        for (uint64_t step = 0; step <= last_step; ++step) {
          run_step(*session, worker, step, books);
          if (worker != 0) continue;
          ++steps_of_first;
          const Stats now = session->stats();
          const bool ends = now.by_switch.came_back > 0 || std::chrono::steady_clock::now() > deadline;
          if (ends && last_step == UINT64_MAX) last_step = step + 5;
        }
        finish(*session, books);
        const Stats stats = session->stats();
        EXPECT_GE(stats.by_switch.fallbacks, 1u);
        EXPECT_GE(stats.by_switch.came_back, 1u);
        EXPECT_EQ(stats.audit.imbalance, 0);
        EXPECT_EQ(stats.audit.lost, 0);
      } catch (const JobError& error) {
        ADD_FAILURE() << "worker " << worker << ": " << error.what();
      }
    });
  }
  cluster.wait_until([&] { return steps_of_first >= 10; });
  at.reset();
  cluster.wait_until([&] { return cluster.table().membership.path == protocol::Path::kServer; });
  const int before = steps_of_first;
  cluster.wait_until([&] { return steps_of_first >= before + 5; });
  at = std::make_unique<UdpAggregator>(spec_of(options), address, 3);
  for (std::thread& thread : threads) thread.join();
  books.expect_balanced();
}

TEST_F(SessionSwitch, ARefusalNamesTheFaultyOption) {
  SessionOptions without_key = job(1);
  without_key.switch_key_file.clear();
  EXPECT_NE(refused(without_key).find("switch_key_file"), std::string::npos);

  SessionOptions first = job(1);
  first.updates.initial_weights = InitialWeights::kFirst;
  EXPECT_NE(refused(first).find("path switch with initial_weights first"), std::string::npos);

  SessionOptions no_port = job(1);
  std::get<SwitchPath>(no_port.path).address = "127.0.0.1";
  EXPECT_NE(refused(no_port).find("'127.0.0.1' is not an address: give "), std::string::npos);

  SessionOptions key_without_switch;
  key_without_switch.name = "session-switch";
  key_without_switch.shards = {"tcp://127.0.0.1:1"};
  key_without_switch.switch_key_file = key_file_;
  EXPECT_NE(refused(key_without_switch).find("path is server"), std::string::npos);

  ::chmod(key_file_.c_str(), 0644);
  EXPECT_NE(refused(job(1)).find("chmod"), std::string::npos);
}

}  // namespace
}  // namespace millrace::testing
