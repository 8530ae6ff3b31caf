#include "tests/worker/toy_cluster.h"

#include <algorithm>

namespace millrace::testing {

protocol::JobSpec toy_spec(uint32_t workers, const std::vector<uint64_t>& dimensions) {
  protocol::JobSpec spec;
  spec.name = "toy";
  spec.workers = workers;
  for (size_t i = 0; i < dimensions.size(); ++i) {
    protocol::TensorSpec tensor;
    tensor.name = "t" + std::to_string(i);
    tensor.dimension = dimensions[i];
    spec.tensors.push_back(tensor);
  }
  return spec;
}

ToyCluster::ToyCluster(const ToyClusterOptions& options)
    : options_(options),
      table_(options.spec, options.shards),
      random_(random_key(options.seed)),
      settle_random_(random_key(options.seed, 1)) {
  for (uint32_t number = 0; number < options.shards; ++number) {
    shards_.push_back(std::make_unique<ToyShard>(table_, number));
  }
  adopted_.assign(options.shards, 0);
  wires_.resize(static_cast<size_t>(options.spec.workers) * options.shards);
  delivered_.resize(options.spec.workers);
  logs_.resize(options.spec.workers);
  for (uint32_t number = 0; number < options.spec.workers; ++number) {
    worker::CoreConfig config;
    config.worker = number;
    config.nonce = 1'000 + number;
    config.spec = options.spec;
    config.random_seed = options.seed;
    config.ledger = options.ledger;
    for (uint32_t shard = 0; shard < options.shards; ++shard)
      config.shard_addresses.push_back("toy:" + std::to_string(shard));
    cores_.push_back(std::make_unique<worker::SessionCore>(config));
  }
  for (uint32_t number = 0; number < workers(); ++number) {
    with_core(number, [&](worker::SessionCore& core, worker::Actions& actions) { core.start(now_, actions); });
  }
}

void ToyCluster::with_core(uint32_t worker, const std::function<void(worker::SessionCore&, worker::Actions&)>& call) {
  worker::Actions actions;
  call(*cores_[worker], actions);
  carry_out(worker, actions);
}

void ToyCluster::carry_out(uint32_t worker, worker::Actions& actions) {
  for (const worker::LogLine& line : actions.log) logs_[worker].push_back(line.text);
  for (const uint32_t shard : actions.connects) {
    Wire& line = wire(worker, shard);
    line = {};
    line.wanted = true;
    shards_[shard]->disconnect(worker);
  }
  for (worker::SendAction& send : actions.sends) {
    Wire& line = wire(worker, send.shard);
    if (line.up) line.up_queue.push_back(std::move(send.message));
  }
  for (worker::DeliveredUpdate& update : actions.delivered) delivered_[worker].push_back(std::move(update));
}

void ToyCluster::send_out(uint32_t shard, ToyShard::Out& out) {
  for (auto& [worker, message] : out) {
    if (wire(worker, shard).up) wire(worker, shard).down_queue.push_back(std::move(message));
  }
}

bool ToyCluster::deliver_one() {
  const size_t count = wires_.size();
  const size_t first = random_.next_below(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t at = (first + i) % count;
    const auto worker = static_cast<uint32_t>(at / shards_.size());
    const auto shard = static_cast<uint32_t>(at % shards_.size());
    Wire& line = wires_[at];
    if (line.wanted && !line.up) {
      line.wanted = false;
      line.up = true;
      with_core(worker, [&](auto& core, auto& actions) { core.on_connected(shard, now_, actions); });
      return true;
    }
    const bool upwards = random_.next_below(2) == 0;
    if (!line.up_queue.empty() && (upwards || line.down_queue.empty())) {
      const protocol::Message message = std::move(line.up_queue.front());
      line.up_queue.pop_front();
      ToyShard::Out out;
      shards_[shard]->on_message(worker, message, out);
      send_out(shard, out);
      return true;
    }
    if (!line.down_queue.empty()) {
      protocol::Message message = std::move(line.down_queue.front());
      line.down_queue.pop_front();
      with_core(worker, [&](auto& core, auto& actions) {
        core.on_message(shard, std::move(message), now_, actions);
        if (random_.next_below(3) == 0) core.end_turn(now_, actions);
      });
      return true;
    }
  }
  return false;
}

bool ToyCluster::work_one() {
  const auto worker = static_cast<uint32_t>(random_.next_below(workers()));
  bool worked = false;
  with_core(worker, [&](auto& core, auto& actions) { worked = core.work(now_, actions); });
  return worked;
}

void ToyCluster::break_one() {
  const auto worker = static_cast<uint32_t>(random_.next_below(workers()));
  const auto shard = static_cast<uint32_t>(random_.next_below(shards_.size()));
  if (!wire(worker, shard).up) return;
  wire(worker, shard) = {};
  shards_[shard]->disconnect(worker);
  with_core(worker,
            [&](auto& core, auto& actions) { core.on_disconnected(shard, "broken by the test", now_, actions); });
}

void ToyCluster::raise_epoch() {
  if (!table_.view.started) return;
  ++table_.view.epoch;
}

void ToyCluster::pass_time() {
  TimeNs next = INT64_MAX;
  for (const auto& core : cores_) next = std::min(next, core->next_deadline());
  if (next != INT64_MAX) now_ = std::max(now_ + 1, next);
  for (uint32_t worker = 0; worker < workers(); ++worker) {
    with_core(worker, [&](auto& core, auto& actions) {
      core.on_tick(now_, actions);
      core.end_turn(now_, actions);
    });
  }
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    if (adopted_[shard] == table_.view.epoch) continue;
    adopted_[shard] = table_.view.epoch;
    ToyShard::Out out;
    shards_[shard]->adopt_view(out);
    send_out(shard, out);
  }
}

void ToyCluster::step() {
  for (const auto& core : cores_) {
    if (settle_random_.next_unit() < options_.settle_rate) core->settle_one();
  }
  if (breaks_ && random_.next_unit() < options_.disconnect_rate) break_one();
  if (breaks_ && random_.next_unit() < options_.epoch_rate) raise_epoch();
  // The network is usually faster than the deadlines; sometimes time passes with messages under way.
  const uint64_t choice = random_.next_below(100);
  if (choice < 40 && work_one()) return;
  if (choice < 98 && deliver_one()) return;
  if (!work_one()) pass_time();
}

bool ToyCluster::quiet() const {
  for (const Wire& line : wires_) {
    if (!line.up_queue.empty() || !line.down_queue.empty()) return false;
  }
  for (const auto& core : cores_) {
    for (uint32_t bucket = 0; bucket < core->layout().buckets.size(); ++bucket) {
      if (!core->outstanding(bucket).empty()) return false;
      for (const auto& member : core->layout().buckets[bucket].members) {
        if (core->steps_pushed(member.tensor) != core->steps_applied(bucket)) return false;
      }
    }
  }
  return true;
}

bool ToyCluster::settle(uint64_t steps_max) {
  breaks_ = false;
  for (uint64_t i = 0; i < steps_max; ++i) {
    if (quiet()) break;
    step();
  }
  const bool came_to_rest = quiet();
  breaks_ = true;
  return came_to_rest;
}

double ToyCluster::in_flight(const worker::OutstandingView& out, uint32_t worker, size_t entry) const {
  const uint64_t index = out.begin + (out.sent.dense ? entry : out.sent.indices[entry]);
  const auto value = static_cast<double>(out.sent.values[entry]);
  const auto& log = shards_[table_.layout.parts[out.part].shard]->log(out.part);
  const auto decided = log.find(out.step);
  if (decided == log.end() || !decided->second.counted.contains(worker)) return value;
  // Counted: what the update carries is in the log, the rest will come back.
  return decided->second.carried.contains(index) ? 0.0 : value;
}

std::vector<double> ToyCluster::imbalance(uint32_t bucket) const {
  const protocol::BucketLayout& layout = table_.layout.buckets[bucket];
  std::vector<double> difference(layout.dimension, 0.0);
  for (uint32_t worker = 0; worker < cores_.size(); ++worker) {
    const worker::SessionCore& core = *cores_[worker];
    const auto ledger = core.ledger(bucket);
    for (uint64_t i = 0; i < layout.dimension; ++i) difference[i] += core.entered(bucket)[i] - ledger[i];
    const Stream<float> residual = core.residual(bucket);
    for (size_t i = 0; i < residual.values.size(); ++i) {
      difference[residual.dense ? i : residual.indices[i]] -= static_cast<double>(residual.values[i]);
    }
    for (const worker::OutstandingView& out : core.outstanding(bucket)) {
      for (size_t i = 0; i < out.sent.values.size(); ++i) {
        difference[out.begin + (out.sent.dense ? i : out.sent.indices[i])] -= in_flight(out, worker, i);
      }
    }
  }
  for (uint32_t part = layout.first_part; part < layout.first_part + layout.part_count; ++part) {
    for (const auto& [step, decision] : shards_[table_.layout.parts[part].shard]->log(part)) {
      for (const auto& [index, value] : decision.carried) difference[index] -= value;
    }
  }
  return difference;
}

std::vector<std::string> ToyCluster::complaints() const {
  std::vector<std::string> all;
  for (const auto& shard : shards_) all.insert(all.end(), shard->complaints.begin(), shard->complaints.end());
  return all;
}

}  // namespace millrace::testing
