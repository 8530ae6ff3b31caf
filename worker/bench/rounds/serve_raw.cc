#include "worker/bench/rounds/serve_raw.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>

#include "protocol/transport/transport.h"
#include "worker/program/outcome.h"

namespace millrace::bench {
namespace {

using protocol::Connection;
using protocol::Listener;
using protocol::PeerId;
using protocol::Poller;
using protocol::SendResult;
using protocol::TransportContext;

constexpr int kSilenceMs = 60'000;
// The last answers may still be on their way when a shard has counted everything.
constexpr uint32_t kLingerMs = 30'000;

// The envelope of a bare message: which part. Rounds cannot mix, the workers meet between them.
SharedBytes raw_envelope(uint32_t part) {
  ByteBuffer bytes(sizeof(part));
  std::memcpy(bytes.data(), &part, sizeof(part));
  return SharedBytes::from(std::move(bytes));
}

uint32_t part_of(const protocol::ReceivedFrames& received, size_t parts) {
  uint32_t part = 0;
  if (received.frames.size() == 2 && received.frames[0].bytes.size() == sizeof(part)) {
    std::memcpy(&part, received.frames[0].bytes.data(), sizeof(part));
  }
  return part < parts ? part : 0;
}

// One buffer serves every part: the bytes do not matter, only that they are carried.
class PairBuffer {
 public:
  explicit PairBuffer(const RawPlan& plan)
      : bytes_(std::make_shared<const ByteBuffer>(ByteBuffer(
            *std::max_element(plan.part_entries.begin(), plan.part_entries.end()) * RawPlan::kPairBytes, 0x55))) {}
  SharedBytes entries(uint64_t count) const { return {bytes_, ByteSpan(*bytes_).first(count * RawPlan::kPairBytes)}; }

 private:
  std::shared_ptr<const ByteBuffer> bytes_;
};

int complain(const char* what) {
  std::fprintf(stderr, "millrace-bench serve: bare transport: %s\n", what);
  return static_cast<int>(program::ExitCode::kJobEnded);
}

}  // namespace

int run_raw_shard(const RawPlan& plan, uint32_t shard, const std::string& bind_address) {
  protocol::TransportOptions patient;
  patient.linger_ms = kLingerMs;
  TransportContext context(patient);
  auto listener = Listener::bind(context, bind_address);
  if (!listener) return complain(listener.error().message.c_str());
  std::printf("%s\n", (*listener)->address().c_str());
  Poller poller;
  poller.add(**listener);
  const PairBuffer pairs(plan);
  std::vector<PeerId> peers;
  std::vector<uint32_t> arrived(plan.part_entries.size(), 0);
  uint64_t own_parts = 0;
  for (size_t part = shard; part < plan.part_entries.size(); part += plan.shards) ++own_parts;
  uint64_t left = own_parts * plan.workers * plan.rounds;
  while (left > 0) {
    auto received = (*listener)->receive_frames();
    if (!received) {
      if (!poller.wait(kSilenceMs)) return complain("no worker sent anything for 60 s");
      continue;
    }
    --left;
    if (std::find(peers.begin(), peers.end(), received->peer) == peers.end()) peers.push_back(received->peer);
    const uint32_t part = part_of(*received, plan.part_entries.size());
    if (++arrived[part] < plan.workers) continue;
    arrived[part] = 0;
    const auto envelope = raw_envelope(part);
    for (const auto& peer : peers) {
      if ((*listener)->send_frames(peer, envelope, pairs.entries(plan.part_entries[part])) != SendResult::kSent) {
        return complain("a worker is gone, or its queue is full");
      }
    }
  }
  return 0;
}

int run_raw_worker(const RawPlan& plan, uint32_t worker, const std::vector<std::string>& addresses,
                   ServeShared& shared) {
  TransportContext context;
  std::vector<std::unique_ptr<Connection>> connections;
  Poller poller;
  for (const auto& address : addresses) {
    auto connection = Connection::connect(context, address);
    if (!connection) return complain(connection.error().message.c_str());
    poller.add(**connection);
    connections.push_back(std::move(*connection));
  }
  const PairBuffer pairs(plan);
  for (uint32_t round = 0; round < plan.rounds; ++round) {
    shared.meet();
    shared.start_ns(worker, round) = monotonic_now_ns();
    for (uint32_t part = 0; part < plan.part_entries.size(); ++part) {
      auto& connection = *connections[part % plan.shards];
      if (connection.send_frames(raw_envelope(part), pairs.entries(plan.part_entries[part])) != SendResult::kSent) {
        return complain("a shard is gone, or its queue is full");
      }
    }
    for (size_t left = plan.part_entries.size(); left > 0;) {
      bool any = false;
      for (auto& connection : connections) {
        while (connection->receive_frames()) {
          --left;
          any = true;
        }
      }
      if (!any && left > 0 && !poller.wait(kSilenceMs)) return complain("no shard answered for 60 s");
    }
    shared.end_ns(worker, round) = monotonic_now_ns();
  }
  return 0;
}

double raw_gbit_s(double pairs, double round_ms) { return pairs * RawPlan::kPairBytes * 8.0 / (round_ms * 1e-3) / 1e9; }

}  // namespace millrace::bench
