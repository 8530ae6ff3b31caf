// Workers over real sockets on the loopback, around an aggregator in a thread of this process.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <map>
#include <set>
#include <thread>

#include "protocol/address/endpoint_text.h"
#include "protocol/datagram/header.h"
#include "switch_agg/aggregator/aggregator.h"
#include "tests/support/switch_stepper.h"
#include "worker/session/switch_socket.h"

namespace millrace::worker {
namespace {

protocol::Endpoint loopback(uint16_t port) {
  protocol::Endpoint out;
  out.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 127, 0, 0, 1};
  out.port = port;
  return out;
}

constexpr uint32_t kWorkers = 3;
constexpr uint32_t kSteps = 20;
constexpr uint32_t kDimension = 1024 * 10;

SwitchClientOptions options(uint16_t worker) {
  SwitchClientOptions out;
  out.job = 3;
  out.key.fill(7);
  out.worker = worker;
  out.workers = kWorkers;
  out.dimension = kDimension;
  out.window_indices = 1024;
  out.slots = 4;
  out.exponent_initial = -8;
  out.nonce_seed = worker + 1u;
  return out;
}

/// Everything that one worker offered and got, in units that are exact.
struct Books {
  std::vector<std::map<uint32_t, double>> offered{kSteps};
  std::vector<std::map<uint32_t, double>> returned{kSteps};
  std::vector<std::map<uint32_t, double>> update{kSteps};
  std::string error;
};

void work(uint16_t worker, const protocol::Endpoint& decider, Books& books) {
  const auto read_epoch = [&] {
    return SwitchEpoch{.epoch = 1, .live = (1u << kWorkers) - 1, .membership_hash = 5, .decider = decider};
  };
  auto stepper = testing::SwitchStepper::open(options(worker), read_epoch);
  if (!stepper) {
    books.error = stepper.error().message;
    return;
  }
  for (uint32_t step = 0; step < kSteps; ++step) {
    std::vector<uint32_t> indices;
    std::vector<float> values;
    for (uint32_t index = (worker + step) % 5; index < kDimension; index += 1 + (index * 7 + step) % 9) {
      indices.push_back(index);
      values.push_back(static_cast<float>(static_cast<int>(index % 101) - 50) / 64.0F);
      if (values.back() != 0) books.offered[step][index] = static_cast<double>(values.back());
    }
    const auto result = (*stepper)->run_step(step, indices, values, 60 * kNsPerS);
    if (!result) {
      books.error = result.error().message;
      return;
    }
    for (const testing::SwitchStep::Window& window : result->windows) {
      for (size_t i = window.first; i < window.last; ++i) {
        books.update[step][result->indices[i]] = std::ldexp(static_cast<double>(result->sums[i]), window.exponent);
      }
    }
    for (size_t i = 0; i < result->returned_indices.size(); ++i) {
      books.returned[step][result->returned_indices[i]] = static_cast<double>(result->returned_values[i]);
    }
  }
  const Status finished = (*stepper)->finish(60 * kNsPerS);
  if (!finished) books.error = finished.error().message;
}

TEST(SwitchStep, EachLaneOfAWorkerHasASocketOfItsOwn) {
  constexpr uint32_t kJob = 40;
  constexpr uint32_t kLanes = 3;
  auto there = SwitchUdpPort::open(loopback(1), 1472);
  auto here = SwitchUdpPort::open(loopback(1), 1472, {.job = kJob, .lanes = kLanes});
  ASSERT_TRUE(there.has_value() && here.has_value());
  const auto write = [](SwitchUdpPort& port, uint32_t job, const protocol::Endpoint& to) {
    protocol::DatagramHeader header;
    header.job = job;
    protocol::put_header(header, port.room());
    port.send(200, to);
  };
  // In one burst, lane by lane and once more; what names no lane goes by the first.
  for (const uint32_t job : {kJob, kJob + 1, kJob + 2, kJob, kJob + 1, kJob + 2, kJob + 3})
    write(**here, job, loopback(testing::port_number(**there)));
  (*here)->flush();
  EXPECT_EQ((*here)->counters().bytes_out, 7u * 200);
  std::map<uint32_t, std::set<uint16_t>> ports;
  for (size_t seen = 0; seen < 7;) {
    testing::wait_for_packets(**there, 10 * kNsPerS);
    const auto packets = (*there)->receive();
    ASSERT_FALSE(packets.empty()) << seen;
    for (const protocol::ReceivedPacket& packet : packets) {
      const uint32_t job = protocol::job_number_of(packet.bytes).value();
      ports[job].insert(packet.from.port);
      write(**there, job, packet.from);
      ++seen;
    }
  }
  (*there)->flush();
  std::set<uint16_t> all;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    EXPECT_EQ(ports[kJob + lane].size(), 1u) << "both times from the same socket";
    all.insert(ports[kJob + lane].begin(), ports[kJob + lane].end());
  }
  EXPECT_EQ(all.size(), kLanes) << "one of its own";
  EXPECT_EQ(ports[kJob + kLanes], ports[kJob]);
  std::map<uint32_t, size_t> answers;
  for (size_t seen = 0; seen < 7;) {
    testing::wait_for_packets(**here, 10 * kNsPerS);
    const auto packets = (*here)->receive();
    ASSERT_FALSE(packets.empty()) << seen;
    for (const protocol::ReceivedPacket& packet : packets) ++answers[protocol::job_number_of(packet.bytes).value()];
    seen += packets.size();
  }
  EXPECT_EQ(answers, (std::map<uint32_t, size_t>{{kJob, 2}, {kJob + 1, 2}, {kJob + 2, 2}, {kJob + 3, 1}}));
  EXPECT_EQ((*here)->counters().bytes_in, 7u * 200);
}

TEST(SwitchUdpPorts, PacketsThatTheSystemDoesNotTakeAreCounted) {
  constexpr uint32_t kLanes = 2;
  auto port = SwitchUdpPort::open(loopback(1), 1472, {.job = 3, .lanes = kLanes});
  ASSERT_TRUE(port.has_value()) << port.error().message;
  const protocol::Endpoint other_family = protocol::parse_endpoint("[::1]:9").value();
  for (const uint32_t job : {3u, 4u, 4u}) {
    protocol::DatagramHeader header;
    header.job = job;
    protocol::put_header(header, (*port)->room());
    (*port)->send(200, other_family);
  }
  (*port)->flush();
  EXPECT_EQ((*port)->counters().send_refused, 3u) << "of both lanes' sockets";
  EXPECT_EQ((*port)->counters().packets_out, 0u);
}

TEST(SwitchStep, WorkersOverSocketsGetTheSameUpdatesAndKeepTheLaw) {
  auto socket = SwitchUdpPort::open(loopback(1), 1472);
  ASSERT_TRUE(socket.has_value());
  const protocol::Endpoint decider = loopback(testing::port_number(**socket));
  switch_agg::Aggregator aggregator({.slots_max = 4, .window_indices_max = 1024}, 99);
  switch_agg::SwitchJob job;
  job.job = 3;
  job.name = "loopback";
  job.key.fill(7);
  job.workers = kWorkers;
  job.window_indices = 1024;
  job.slots = 4;
  ASSERT_TRUE(aggregator.add_job(job, monotonic_now_ns()).has_value());
  std::atomic<bool> over = false;
  std::thread decides([&] {
    while (!over) {
      const TimeNs now = monotonic_now_ns();
      const auto packets = (*socket)->receive();
      for (const protocol::ReceivedPacket& packet : packets) aggregator.receive(packet, now, **socket);
      aggregator.tick(now, **socket);
      (*socket)->flush();
      if (packets.empty()) testing::wait_for_packets(**socket, kNsPerMs);
    }
  });
  std::vector<Books> books(kWorkers);
  std::vector<std::thread> workers;
  for (uint16_t worker = 0; worker < kWorkers; ++worker) {
    workers.emplace_back([&, worker] { work(worker, decider, books[worker]); });
  }
  for (std::thread& worker : workers) worker.join();
  over = true;
  decides.join();
  for (const Books& one : books) {
    ASSERT_EQ(one.error, "");
    ASSERT_EQ(one.update, books[0].update);
  }
  for (uint32_t step = 0; step < kSteps; ++step) {
    std::map<uint32_t, double> rest = books[0].update[step];
    for (const Books& one : books) {
      for (const auto& [index, value] : one.returned[step]) rest[index] += value;
      for (const auto& [index, value] : one.offered[step]) rest[index] -= value;
    }
    for (const auto& [index, value] : rest) ASSERT_EQ(value, 0) << "step " << step << " index " << index;
  }
}

}  // namespace
}  // namespace millrace::worker
