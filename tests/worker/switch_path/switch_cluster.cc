#include "tests/worker/switch_path/switch_cluster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "switch_agg/aggregator/split_by_lanes.h"

namespace millrace::testing {
namespace {

constexpr uint16_t kFirstWorkerPort = 1'000;
constexpr TimeNs kTick = kNsPerMs / 2;

protocol::JobKey key_of_job() {
  protocol::JobKey key{};
  key.fill(3);
  return key;
}

}  // namespace

void SwitchCluster::Sink::send(size_t bytes, const protocol::Endpoint& to) {
  if (cluster_.blocked && cluster_.blocked(own_, to)) return;
  if (cluster_.loses_results && to.port >= kFirstWorkerPort && to.port < kFirstWorkerPort + cluster_.workers()) {
    const auto datagram = protocol::parse_datagram(ByteSpan(room_).first(bytes));
    const bool is_result = datagram && datagram->header.type == protocol::DatagramType::kResult;
    if (is_result && cluster_.loses_results(uint32_t{to.port} - kFirstWorkerPort)) return;
  }
  if (cluster_.random_.next_unit() < cluster_.options_.loss) return;
  const Packet packet{own_, to, ByteBuffer(room_.begin(), room_.begin() + static_cast<std::ptrdiff_t>(bytes))};
  cluster_.network_.push_back(packet);
  if (cluster_.random_.next_unit() < cluster_.options_.copies) cluster_.network_.push_back(packet);
}

protocol::Endpoint SwitchCluster::endpoint(uint16_t port) {
  protocol::Endpoint endpoint;
  endpoint.port = port;
  return endpoint;
}

SwitchCluster::SwitchCluster(const Options& options) : options_(options), random_(random_key(options.seed)) {
  protocol::JobSpec& spec = options_.spec;
  spec.path = protocol::Path::kSwitch;
  spec.switch_path.address = options_.address;
  spec.switch_path.job = kSwitchJob;
  spec.switch_path.slots = options_.slots;
  spec.switch_path.lanes = options_.lanes;
  spec.switch_path.return_after = std::chrono::milliseconds(1'000);
  spec.grid.block_indices = options_.window_indices;
  spec.grid.exponent_initial = -6;
  const Status valid = protocol::validate(spec);
  EXPECT_TRUE(valid.has_value()) << valid.error().message;
  membership_.job = kJob;
  membership_.epoch = 3;
  membership_.started = true;
  membership_.path = protocol::Path::kSwitch;
  membership_.shards = {{"tcp://a:1", 1, options_.has_fallback ? "shard:7600" : ""}, {"tcp://b:2", 1}};
  for (uint32_t worker = 0; worker < spec.workers; ++worker) membership_.members.push_back({worker, 1, 1'000 + worker});
  first_view_ = membership_;
  start_aggregator(kSwitchPort);
  if (options_.has_fallback) start_aggregator(kShardPort);
  for (size_t rack = 0; rack < options_.racks.size(); ++rack) start_aggregator(static_cast<uint16_t>(kRackPort + rack));
  for (uint32_t worker = 0; worker < spec.workers; ++worker) {
    auto node = std::make_unique<Node>();
    node->sink = std::make_unique<Sink>(*this, endpoint(static_cast<uint16_t>(kFirstWorkerPort + worker)));
    nodes_.push_back(std::move(node));
    start_core(worker);
  }
}

void SwitchCluster::start_core(uint32_t worker) {
  Node& node = *nodes_[worker];
  node.nonce = 1'000 + worker + 100 * node.starts++;
  worker::CoreConfig config;
  config.worker = worker;
  config.nonce = node.nonce;
  config.spec = options_.spec;
  config.has_weights = options_.has_weights;
  config.shard_addresses = {"tcp://a:1", "tcp://b:2"};
  config.switch_access.key = key_of_job();
  config.switch_access.sink = node.sink.get();
  config.switch_access.resolve = [](std::string_view text) -> Result<protocol::Endpoint> {
    if (text == "switch:7700") return endpoint(kSwitchPort);
    if (text == "shard:7600") return endpoint(kShardPort);
    return fail(ErrorCode::kUnavailable, "no such name");
  };
  for (size_t rack = 0; rack < options_.racks.size(); ++rack) {
    if ((options_.racks[rack] >> worker & 1) != 0)
      config.switch_access.rack = endpoint(static_cast<uint16_t>(kRackPort + rack));
  }
  node.core = std::make_unique<WatchedCore>(config);
  node.weights.clear();
  node.actions.clear();
  for (const protocol::BucketLayout& bucket : node.core->layout().buckets)
    node.weights.emplace_back(bucket.dimension, 0.0f);
}

void SwitchCluster::start_aggregator(uint16_t port) {
  switch_agg::AggregatorOptions options;
  options.jobs_max = std::max(2U, options_.lanes);
  options.slots_max = 16;
  options.window_indices_max = 1'024;
  Decider decider;
  decider.sink = std::make_unique<Sink>(*this, endpoint(port));
  decider.aggregator = std::make_unique<switch_agg::Aggregator>(options, options_.seed * 1'000 + ++lives_);
  switch_agg::SwitchJob job;
  job.job = kSwitchJob;
  job.name = "toy";
  job.key = key_of_job();
  job.workers = options_.spec.workers;
  job.window_indices = options_.window_indices;
  const protocol::JobLayout layout = protocol::plan_layout(options_.spec, 2);
  job.slots = protocol::plan_switch_layout(options_.spec, layout).slots;
  if (port == kSwitchPort && options_.slots_at_switch != 0) job.slots = options_.slots_at_switch;
  job.reselect_k = options_.reselect_k;
  const uint16_t decides = options_.address == "shard:7600" ? kShardPort : kSwitchPort;
  if (port == decides) job.racks = options_.racks;
  if (port >= kRackPort) {
    job.role = switch_agg::Role::kCombine;
    job.rack_number = static_cast<uint16_t>(port - kRackPort);
    job.rack = options_.racks[job.rack_number];
    job.shard = endpoint(decides);
    job.reselect_k = options_.rack_reselect_k;
  }
  job.lanes = options_.lanes;
  for (const switch_agg::SwitchJob& lane : switch_agg::split_by_lanes(job)) {
    if (port == kSwitchPort && lane.job - job.job >= lanes_at_switch) continue;
    const Status added = decider.aggregator->add_job(lane, now_);
    EXPECT_TRUE(added.has_value()) << added.error().message;
  }
  aggregators_.insert_or_assign(port, std::move(decider));
}

void SwitchCluster::join(uint32_t worker) {
  Node& node = *nodes_[worker];
  node.core->start(now_, node.actions);
  for (uint32_t shard = 0; shard < 2; ++shard) node.core->on_connected(shard, now_, node.actions);
  welcome(worker);
}

void SwitchCluster::welcome(uint32_t worker) {
  for (uint32_t shard = 0; shard < 2; ++shard) {
    protocol::Welcome welcome;
    welcome.membership = membership_;
    hear(worker, shard, welcome);
  }
  carry_out(worker);
}

void SwitchCluster::join_all() {
  for (uint32_t worker = 0; worker < workers(); ++worker) join(worker);
}

void SwitchCluster::hear(uint32_t worker, uint32_t shard, protocol::Body body) {
  hear_word({worker, nodes_[worker]->incarnation, membership_.epoch, shard, std::move(body), {}});
}

void SwitchCluster::hear_word(const Word& word) {
  Node& node = *nodes_[word.worker];
  protocol::Message message;
  message.header = {
      kJob, word.epoch, word.worker, word.incarnation, word.shard, membership_.shards[word.shard].incarnation};
  message.body = word.body;
  message.payload = word.payload;
  node.core->on_message(word.shard, std::move(message), now_, node.actions);
  carry_out(word.worker);
}

void SwitchCluster::raise(const std::function<void(protocol::Membership&)>& change) {
  ++membership_.epoch;
  change(membership_);
  for (uint32_t worker = 0; worker < workers(); ++worker) raise_for(worker);
}

void SwitchCluster::raise_for(uint32_t worker) {
  if (!nodes_[worker]->alive) return;
  for (uint32_t shard = 0; shard < 2; ++shard) {
    protocol::MembershipChange changed;
    changed.membership = membership_;
    hear(worker, shard, changed);
  }
}

void SwitchCluster::set_path(protocol::Path path) {
  raise([path](protocol::Membership& membership) { membership.path = path; });
}

void SwitchCluster::push(uint32_t worker, uint32_t tensor, const std::map<uint32_t, float>& entries) {
  std::vector<uint32_t> indices;
  std::vector<float> values;
  for (const auto& [index, value] : entries) {
    indices.push_back(index);
    values.push_back(value);
  }
  const auto pushed = core(worker).push_sparse(tensor, indices, values, 1, now_);
  ASSERT_TRUE(pushed.has_value()) << pushed.error().message;
  carry_out(worker);
}

void SwitchCluster::push_dense(uint32_t worker, uint32_t tensor, const std::vector<float>& gradient) {
  const auto pushed = core(worker).push_dense(tensor, gradient, 1, now_);
  ASSERT_TRUE(pushed.has_value()) << pushed.error().message;
  carry_out(worker);
}

void SwitchCluster::carry_out(uint32_t worker) {
  Node& node = *nodes_[worker];
  while (node.core->work(now_, node.actions)) {
  }
  node.core->end_pass(now_, node.actions);
  for (LogLine& line : node.actions.log) node.log.push_back(std::move(line.text));
  for (worker::SendAction& send : node.actions.sends) {
    on_message_to_shard(worker, send);
    node.sent.push_back(std::move(send));
  }
  for (worker::DeliveredUpdate& update : node.actions.delivered) {
    const StreamView& sum = update.sum.view;
    std::vector<float>& weights = node.weights[update.bucket];
    if (update.replaces) {
      std::ranges::copy(sum.values, weights.begin() + static_cast<std::ptrdiff_t>(update.begin));
      continue;
    }
    for (size_t i = 0; i < sum.values.size(); ++i) {
      weights[update.begin + sum.indices[i]] +=
          static_cast<float>(static_cast<double>(sum.values[i]) / update.denominator);
    }
    node.delivered.push_back(std::move(update));
  }
  const std::vector<worker::GiveWeights> asked = std::move(node.actions.give_weights);
  node.actions.clear();
  for (const worker::GiveWeights& give : asked) {
    const protocol::PartLayout& part = node.core->layout().parts[give.part];
    node.core->give_weights(give, std::span(node.weights[part.bucket]).subspan(part.begin, part.end - part.begin), now_,
                            node.actions);
    carry_out(worker);
  }
}

void SwitchCluster::deliver(const Packet& packet) {
  const protocol::ReceivedPacket received{packet.bytes, packet.from};
  if (const auto decider = aggregators_.find(packet.to.port); decider != aggregators_.end()) {
    decider->second.aggregator->receive(received, now_, *decider->second.sink);
    return;
  }
  const uint32_t worker = packet.to.port - uint32_t{kFirstWorkerPort};
  if (packet.to.port < kFirstWorkerPort || worker >= workers() || !nodes_[worker]->alive) return;
  nodes_[worker]->core->on_packet(received, now_, nodes_[worker]->actions);
  carry_out(worker);
}

void SwitchCluster::tick_all() {
  now_ += kTick;
  for (auto& [port, decider] : aggregators_) decider.aggregator->tick(now_, *decider.sink);
  for (uint32_t worker = 0; worker < workers(); ++worker) {
    Node& node = *nodes_[worker];
    if (!node.alive || now_ < node.core->next_deadline()) continue;
    // The shards answer heartbeats: no worker takes them for dead.
    for (uint32_t shard = 0; shard < 2; ++shard) hear(worker, shard, protocol::Heartbeat{});
    node.core->on_tick(now_, node.actions);
    carry_out(worker);
  }
}

void SwitchCluster::step() {
  if (random_.next_below(4) == 0 && pass_a_word()) return;
  if (network_.empty() || random_.next_below(8) == 0) return tick_all();
  const size_t at = random_.next_below(std::min<size_t>(network_.size(), 16));
  const Packet packet = std::move(network_[at]);
  network_.erase(network_.begin() + static_cast<std::ptrdiff_t>(at));
  deliver(packet);
}

void SwitchCluster::run_until(const std::function<bool()>& condition, uint64_t steps_max) {
  for (uint64_t count = 0; !condition(); ++count) {
    ASSERT_LT(count, steps_max) << "worker 0: " << core(0).waiting_for();
    step();
  }
}

void SwitchCluster::pass(TimeNs span) {
  const TimeNs end = now_ + span;
  while (now_ < end) step();
}

bool SwitchCluster::all_applied(uint64_t steps) {
  for (uint32_t worker = 0; worker < workers(); ++worker) {
    if (!nodes_[worker]->alive) continue;
    for (uint32_t bucket = 0; bucket < core(worker).layout().buckets.size(); ++bucket) {
      if (core(worker).steps_applied(bucket) < steps) return false;
    }
  }
  return true;
}

std::vector<double> SwitchCluster::imbalance(uint32_t bucket) {
  std::vector<double> books(core(0).layout().buckets[bucket].dimension, 0.0);
  bool first = true;
  for (uint32_t number = 0; number < workers(); ++number) {
    if (!nodes_[number]->alive) continue;
    const WatchedCore& core = *nodes_[number]->core;
    const auto applied = core.applied(bucket);
    const std::vector<double> handed_over = core.handed_over(bucket);
    for (size_t i = 0; i < books.size(); ++i) books[i] += handed_over[i] - (first ? applied[i] : 0);
    first = false;
  }
  return books;
}

}  // namespace millrace::testing
