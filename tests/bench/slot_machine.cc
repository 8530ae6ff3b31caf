// Measures the cost of a packet in the switch's slot machine on one core. Full contributions enter
// Aggregator::receive(), results to all workers included. Beside it: the unavoidable cost of such a packet, that is a
// copy, the MAC, decoding. Packet I/O is excluded.
#include <algorithm>
#include <cstring>
#include <deque>
#include <iostream>

#include <CLI/CLI.hpp>

#include "kernels/base/check.h"
#include "kernels/base/random.h"
#include "switch_agg/aggregator/aggregator.h"
#include "tests/switch_agg/made_up_worker.h"

namespace millrace::testing {
namespace {

struct Shape {
  uint32_t workers = 4;
  uint32_t slots = 16;
  uint32_t window_indices = 16'384;
  uint32_t turns = 50;
  uint32_t entries = 450;
  double overlap = 0.9;  ///< of a worker's entries, those that all workers send
  int repeats = 7;
};

/// Room as packet I/O has it: a ring of packet buffers.
class RingSink : public protocol::PacketSink {
 public:
  std::span<uint8_t> room() override { return rooms_[at_]; }
  void send(size_t bytes, const protocol::Endpoint& to) override {
    last_to_ = to;
    sent_bytes += bytes;
    ++sent;
    at_ = (at_ + 1) % rooms_.size();
  }
  uint64_t sent = 0;
  uint64_t sent_bytes = 0;

 private:
  std::vector<std::array<uint8_t, 2048>> rooms_ = std::vector<std::array<uint8_t, 2048>>(512);
  size_t at_ = 0;
  protocol::Endpoint last_to_;
};

struct Packets {
  std::vector<ByteBuffer> bytes;
  uint64_t total = 0;
};

Entries draw(RandomSequence& shared, RandomSequence& own, const Shape& shape) {
  Entries entries;
  const auto common = static_cast<size_t>(shape.overlap * shape.entries);
  while (entries.size() < shape.entries) {
    RandomSequence& from = entries.size() < common ? shared : own;
    entries[static_cast<uint16_t>(from.next_below(shape.window_indices))] =
        static_cast<int32_t>(own.next_below(60'000)) - 30'000;
  }
  return entries;
}

Packets contributions(std::deque<MadeUpWorker>& workers, const Shape& shape) {
  Packets packets;
  RandomSequence own(RandomKey::from(2));
  for (uint32_t turn = 1; turn <= shape.turns; ++turn) {
    for (uint32_t slot = 0; slot < shape.slots; ++slot) {
      for (MadeUpWorker& worker : workers) {
        RandomSequence shared(random_key(1, turn, slot));
        MadeUpWorker::ContributionFields fields{.turn = turn, .step = turn - 1, .window = slot};
        fields.slot = static_cast<uint16_t>(slot);
        fields.window_indices = shape.window_indices;
        fields.codecs.value = protocol::WindowValueCodec::kFixed16;
        packets.bytes.push_back(worker.contribution(fields, draw(shared, own, shape)));
        packets.total += packets.bytes.back().size();
      }
    }
  }
  return packets;
}

struct Cost {
  double machine_ns = 0;
  double mac_ns = 0;
  double decode_ns = 0;
  double copy_ns = 0;
  double bytes = 0;
  double sent = 0;  ///< packets a packet
};

Cost measure(const Shape& shape) {
  switch_agg::Aggregator aggregator(
      {.jobs_max = 1, .slots_max = shape.slots, .window_indices_max = shape.window_indices}, 1);
  const switch_agg::SwitchJob job{.job = 1,
                                  .name = "bench",
                                  .workers = shape.workers,
                                  .window_indices = shape.window_indices,
                                  .slots = shape.slots};
  MILLRACE_CHECK(aggregator.add_job(job, 0).has_value());
  std::deque<MadeUpWorker> workers;
  KeepingSink keeping;
  for (uint32_t id = 0; id < shape.workers; ++id) {
    workers.emplace_back(1, job.key, static_cast<uint16_t>(id));
    aggregator.receive({.bytes = workers[id].challenge_request(), .from = workers[id].endpoint()}, 0, keeping);
    MILLRACE_CHECK(workers[id].take_challenge(keeping.sent.back().bytes));
  }
  for (MadeUpWorker& worker : workers) {
    const uint64_t live = (uint64_t{1} << shape.workers) - 1;
    const ByteBuffer hello = worker.hello({.live = live, .positions = std::vector<uint64_t>(shape.slots, 1)});
    aggregator.receive({.bytes = hello, .from = worker.endpoint()}, 0, keeping);
  }
  const Packets packets = contributions(workers, shape);
  const auto count = static_cast<double>(packets.bytes.size());

  Cost cost;
  cost.bytes = static_cast<double>(packets.total) / count;
  RingSink sink;
  const protocol::Endpoint from = workers[0].endpoint();
  // A time for each turn of all slots, and their median: short enough that others of this machine disturb a few only.
  const size_t per_turn = size_t{shape.slots} * shape.workers;
  std::vector<double> turns;
  for (size_t at = 0; at < packets.bytes.size();) {
    const TimeNs turn_begin = monotonic_now_ns();
    for (const size_t end = at + per_turn; at < end; ++at) {
      aggregator.receive({.bytes = packets.bytes[at], .from = from}, 0, sink);
    }
    turns.push_back(static_cast<double>(monotonic_now_ns() - turn_begin) / static_cast<double>(per_turn));
  }
  std::ranges::nth_element(turns, turns.begin() + static_cast<std::ptrdiff_t>(turns.size() / 2));
  cost.machine_ns = turns[turns.size() / 2];
  cost.sent = static_cast<double>(sink.sent) / count;
  MILLRACE_CHECK(aggregator.counters()[switch_agg::AggregatorEvent::kClosed] == shape.turns * shape.slots);

  const protocol::DatagramKey key(job.key, protocol::KeyScope::to_all(1, 1));
  uint8_t folded = 0;
  TimeNs begin = monotonic_now_ns();
  for (const ByteBuffer& packet : packets.bytes) folded ^= key.sign(ByteSpan(packet).first(packet.size() - 16), 1)[0];
  cost.mac_ns = static_cast<double>(monotonic_now_ns() - begin) / count;

  std::vector<uint16_t> indices(protocol::kFragmentEntriesMax);
  std::vector<int32_t> values(protocol::kFragmentEntriesMax);
  begin = monotonic_now_ns();
  for (const ByteBuffer& packet : packets.bytes) {
    const auto datagram = protocol::parse_datagram(packet);
    folded ^= static_cast<uint8_t>(
        *decode_window(datagram->header, datagram->payload, shape.window_indices, {indices, values}));
  }
  cost.decode_ns = static_cast<double>(monotonic_now_ns() - begin) / count;

  std::array<uint8_t, 2048> copy;
  begin = monotonic_now_ns();
  for (const ByteBuffer& packet : packets.bytes) {
    std::memcpy(copy.data(), packet.data(), packet.size());
    folded ^= copy[packet.size() / 2];
  }
  cost.copy_ns = static_cast<double>(monotonic_now_ns() - begin) / count;
  if (folded == 255) std::cerr << ' ';  // the work above is looked at
  return cost;
}

void print(const Shape& shape) {
  std::vector<Cost> costs;
  for (int repeat = 0; repeat < shape.repeats; ++repeat) costs.push_back(measure(shape));
  // The least of each: this machine is shared, and nothing makes a packet cheaper than it is.
  Cost least = costs[0];
  for (const Cost& cost : costs) {
    least.machine_ns = std::min(least.machine_ns, cost.machine_ns);
    least.mac_ns = std::min(least.mac_ns, cost.mac_ns);
    least.decode_ns = std::min(least.decode_ns, cost.decode_ns);
    least.copy_ns = std::min(least.copy_ns, cost.copy_ns);
  }
  std::cout << "{\"packet_bytes\": " << least.bytes << ", \"sent_per_packet\": " << least.sent
            << ", \"machine_ns\": " << least.machine_ns << ", \"gbit_per_s\": " << least.bytes * 8 / least.machine_ns
            << ", \"mac_ns\": " << least.mac_ns << ", \"decode_ns\": " << least.decode_ns
            << ", \"copy_ns\": " << least.copy_ns << ", \"machine_over_mac\": " << least.machine_ns / least.mac_ns
            << "}\n";
}

}  // namespace
}  // namespace millrace::testing

int main(int argc, char** argv) {
  millrace::testing::Shape shape;
  CLI::App app("cost of a contribution in the switch's slot machine, on one core");
  app.add_option("--workers", shape.workers)->check(CLI::Range(1, 64));
  app.add_option("--switch-slots", shape.slots)->check(CLI::Range(1, 128));
  app.add_option("--window-indices", shape.window_indices)->check(CLI::Range(64, 65'536));
  app.add_option("--turns", shape.turns)->check(CLI::Range(1, 10'000));
  app.add_option("--entries", shape.entries)->check(CLI::Range(1, 5'000));
  app.add_option("--overlap-share", shape.overlap)->check(CLI::Range(0.0, 1.0));
  app.add_option("--repeats", shape.repeats)->check(CLI::Range(1, 1'000));
  CLI11_PARSE(app, argc, argv);
  millrace::testing::print(shape);
  return 0;
}
