#include "tests/worker/training/peers/switch_steps.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/check.h"

namespace millrace::training::testing {
namespace {

constexpr uint32_t kSwitchSlots = 4;
constexpr uint32_t kPacketBytes = 1472;
constexpr uint16_t kSwitchPort = 1000;
constexpr int kDeliveriesMax = 2'000'000;

protocol::Endpoint endpoint(uint16_t port) { return {.address = {}, .port = port}; }

switch_agg::AggregatorOptions aggregator_options(const SwitchStepsOptions& options) {
  switch_agg::AggregatorOptions out;
  out.jobs_max = 1;
  out.slots_max = kSwitchSlots;
  out.window_indices_max = options.window_indices;
  out.packet_bytes_max = kPacketBytes;
  return out;
}

worker::SwitchClientOptions client_options(const SwitchStepsOptions& options, uint16_t worker) {
  worker::SwitchClientOptions out;
  out.job = 1;
  out.worker = worker;
  out.workers = options.workers;
  out.dimension = options.dimension;
  out.window_indices = options.window_indices;
  out.slots = kSwitchSlots;
  out.packet_bytes_max = kPacketBytes;
  out.codecs = {.index = protocol::WindowIndexCodec::kGap, .value = protocol::WindowValueCodec::kFixed32};
  out.exponent_initial = options.exponent_initial;
  out.sums = worker::SwitchSums::kExactInF32;
  out.nonce_seed = worker + 1U;
  return out;
}

}  // namespace

struct SwitchSteps::Packet {
  std::vector<uint8_t> bytes;
  protocol::Endpoint from;
  protocol::Endpoint to;
};

/// Sends into the net.
class SwitchSteps::Node final : public protocol::PacketSink {
 public:
  Node(std::deque<Packet>& net, uint16_t port) : net_(net), self_(endpoint(port)) {}
  std::span<uint8_t> room() override { return room_; }
  void send(size_t bytes, const protocol::Endpoint& to) override {
    net_.push_back({{room_.begin(), room_.begin() + static_cast<ptrdiff_t>(bytes)}, self_, to});
  }

 private:
  std::deque<Packet>& net_;
  protocol::Endpoint self_;
  std::vector<uint8_t> room_ = std::vector<uint8_t>(kPacketBytes);
};

struct SwitchSteps::Worker final : worker::SwitchOutcome {
  Worker(const SwitchStepsOptions& options, uint16_t number, std::deque<Packet>& net)
      : sink(net, number), client(client_options(options, number), *this), dimension(options.dimension) {}

  void on_completed(const worker::CompletedWindow& window) override {
    for (size_t i = 0; i < window.indices.size(); ++i) {
      const auto sum = static_cast<float>(std::ldexp(static_cast<double>(window.sums[i]), window.exponent));
      update.emplace_back(window.begin + window.indices[i], sum);
    }
    window.each_returned([this](uint32_t index, float value) { returned.emplace_back(index, value); });
  }
  void step_done(uint32_t) override { done = true; }

  Stream take(std::vector<std::pair<uint32_t, float>>& entries) const {
    std::ranges::sort(entries, {}, &std::pair<uint32_t, float>::first);
    Stream stream = Stream::empty(dimension);
    for (const auto& [index, value] : std::exchange(entries, {})) {
      stream.indices.push_back(index);
      stream.values.push_back(value);
    }
    return stream;
  }

  Node sink;
  worker::SwitchClient client;
  uint32_t dimension;
  std::vector<std::pair<uint32_t, float>> update;
  std::vector<std::pair<uint32_t, float>> returned;
  bool done = false;
};

SwitchSteps::SwitchSteps(const SwitchStepsOptions& options)
    : options_(options), random_(RandomKey::from(options.seed)), aggregator_(aggregator_options(options), 77) {
  switch_agg::SwitchJob job;
  job.job = 1;
  job.name = "identity";
  job.workers = options.workers;
  job.window_indices = options.window_indices;
  job.slots = kSwitchSlots;
  job.reselect_k = options.reselect_k;
  MILLRACE_CHECK(aggregator_.add_job(job, now_).has_value());
  worker::SwitchEpoch epoch;
  epoch.epoch = 1;
  epoch.live = (uint64_t{1} << options.workers) - 1;
  epoch.membership_hash = 5;
  epoch.decider = endpoint(kSwitchPort);
  for (uint32_t number = 0; number < options.workers; ++number) {
    workers_.push_back(std::make_unique<Worker>(options, static_cast<uint16_t>(number), under_way_));
    workers_.back()->client.set_epoch(epoch, now_, workers_.back()->sink);
  }
}

SwitchSteps::~SwitchSteps() = default;

void SwitchSteps::deliver_one() {
  if (under_way_.empty()) {
    now_ += kNsPerMs;
    Node sink(under_way_, kSwitchPort);
    aggregator_.tick(now_, sink);
    for (const auto& one : workers_) one->client.tick(now_, one->sink);
    return;
  }
  now_ += 1'000;
  const auto at = under_way_.begin() + static_cast<ptrdiff_t>(random_.next_below(under_way_.size()));
  const Packet packet = std::move(*at);
  under_way_.erase(at);
  const protocol::ReceivedPacket received{packet.bytes, packet.from};
  if (packet.to.port == kSwitchPort) {
    Node sink(under_way_, kSwitchPort);
    aggregator_.receive(received, now_, sink);
  } else {
    Worker& to = *workers_.at(packet.to.port);
    to.client.receive(received, now_, to.sink);
  }
}

std::vector<SwitchSteps::Result> SwitchSteps::step(const std::vector<Stream>& offers) {
  for (size_t at = 0; at < workers_.size(); ++at) {
    Worker& one = *workers_[at];
    one.done = false;
    if (!one.client.begin_step(step_, offers[at].indices, offers[at].values, now_, one.sink)) return {};
  }
  ++step_;
  const auto is_done = [](const auto& one) { return one->done; };
  for (int i = 0; i < kDeliveriesMax && !std::ranges::all_of(workers_, is_done); ++i) deliver_one();
  if (!std::ranges::all_of(workers_, is_done)) return {};
  std::vector<Result> results;
  for (const auto& one : workers_) results.push_back({one->take(one->update), one->take(one->returned)});
  return results;
}

}  // namespace millrace::training::testing
