#include "tests/worker/toys/toy_cluster.h"

#include <algorithm>
#include <cmath>

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
      settle_random_(random_key(options.seed, 1)),
      fault_random_(random_key(options.seed, 2)) {
  for (uint32_t number = 0; number < options.shards; ++number) {
    shards_.push_back(std::make_unique<ToyShard>(table_, number));
    shards_.back()->prefers_snapshot = [this] { return fault_random_.next_unit() < options_.snapshot_rate; };
    shards_.back()->voided = [this](uint32_t part, const ToyDecision& decision) { void_step(part, decision); };
  }
  table_.truncate = [this](uint32_t part, uint64_t n) { shards_[table_.layout.parts[part].shard]->truncate(part, n); };
  for (const protocol::BucketLayout& bucket : table_.layout.buckets) voided_.emplace_back(bucket.dimension, 0.0);
  saved_.resize(options.spec.workers);
  lives_.resize(options.spec.workers);
  adopted_.assign(options.shards, 0);
  wires_.resize(static_cast<size_t>(options.spec.workers) * options.shards);
  delivered_.resize(options.spec.workers);
  logs_.resize(options.spec.workers);
  for (uint32_t number = 0; number < options.spec.workers; ++number) {
    nonces_.push_back(1'000 + number);
    weights_.emplace_back();
    for (const protocol::PartLayout& part : table_.layout.parts) weights_.back().emplace_back(part.end - part.begin);
    cores_.push_back(std::make_unique<WatchedCore>(config_of(number)));
  }
  for (uint32_t number = 0; number < workers(); ++number) {
    with_core(number, [&](worker::SessionCore& core, worker::Actions& actions) { core.start(now_, actions); });
  }
}

worker::CoreConfig ToyCluster::config_of(uint32_t worker) const {
  worker::CoreConfig config;
  config.worker = worker;
  config.nonce = nonces_[worker];
  config.spec = options_.spec;
  config.random_seed = options_.seed;
  config.has_weights = options_.returns;
  // Time passes in leaps here, messages one by one.
  if (options_.returns) config.shard_silence = 100'000 * kNsPerS;
  for (uint32_t shard = 0; shard < options_.shards; ++shard)
    config.shard_addresses.push_back("toy:" + std::to_string(shard));
  return config;
}

void ToyCluster::with_core(uint32_t worker, const std::function<void(worker::SessionCore&, worker::Actions&)>& call) {
  worker::Actions actions;
  call(*cores_[worker], actions);
  carry_out(worker, actions);
}

void ToyCluster::carry_out(uint32_t worker, worker::Actions& actions) {
  for (const LogLine& line : actions.log) logs_[worker].push_back(line.text);
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
  lives_[worker].insert(cores_[worker]->incarnation());
  for (worker::DeliveredUpdate& update : actions.delivered) {
    deliver_to_weights(worker, update);
    delivered_[worker].push_back(std::move(update));
  }
  const std::vector<worker::GiveWeights> asked = std::move(actions.give_weights);
  for (const worker::GiveWeights& give : asked) {
    with_core(worker,
              [&](auto& core, auto& more) { core.give_weights(give, weights_[worker][give.part], now_, more); });
  }
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
      if (message.header.shard_incarnation > shards_[shard]->incarnation) return true;
      shards_[shard]->on_message(worker, message, out);
      send_out(shard, out);
      return true;
    }
    if (!line.down_queue.empty()) {
      protocol::Message message = std::move(line.down_queue.front());
      line.down_queue.pop_front();
      with_core(worker, [&](auto& core, auto& actions) {
        core.on_message(shard, std::move(message), now_, actions);
        if (random_.next_below(3) == 0) core.end_pass(now_, actions);
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
  with_core(worker, [&](auto& core, auto& actions) {
    core.on_disconnected(shard, {ErrorCode::kUnavailable, "broken by the test"}, now_, actions);
  });
}

void ToyCluster::raise_epoch() {
  if (!table_.membership.started) return;
  ++table_.membership.epoch;
}

void ToyCluster::pass_time() {
  TimeNs next = INT64_MAX;
  for (const auto& core : cores_) next = std::min(next, core->next_deadline());
  if (next != INT64_MAX) now_ = std::max(now_ + 1, next);
  for (uint32_t worker = 0; worker < workers(); ++worker) {
    with_core(worker, [&](auto& core, auto& actions) {
      core.on_tick(now_, actions);
      core.end_pass(now_, actions);
    });
  }
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    ToyShard::Out out;
    if (adopted_[shard] == table_.membership.epoch) {
      shards_[shard]->poll(out);
    } else {
      adopted_[shard] = table_.membership.epoch;
      shards_[shard]->adopt_membership(out);
    }
    send_out(shard, out);
  }
}

void ToyCluster::step() {
  for (const auto& core : cores_) {
    if (settle_random_.next_unit() < options_.settle_rate) core->resolve_one_deferred();
  }
  if (breaks_ && random_.next_unit() < options_.disconnect_rate) break_one();
  if (breaks_ && random_.next_unit() < options_.epoch_rate) raise_epoch();
  if (faults_on_ && options_.returns) maybe_fault();
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
  if (decided == log.end()) return value;
  const auto& counted = decided->second.update.contributors;
  if (std::ranges::find(counted, protocol::ContributorId{worker, out.incarnation}) == counted.end()) return value;
  // Counted: the entries that the update carries are in the log, the rest will be returned.
  return decided->second.carried.contains(index) ? 0.0 : value;
}

/// Adds the carried entries of unreturnable contributions. The ledger has all of such a contribution, the log only the
/// carried entries.
void ToyCluster::add_carried_of_unreturnable(const WatchedCore& core, uint32_t worker, uint32_t bucket,
                                             std::vector<double>& books) const {
  for (const UnreturnableContribution& lost : core.unreturnable()) {
    const protocol::PartLayout& layout = table_.layout.parts[lost.part];
    const auto& log = shards_[layout.shard]->log(lost.part);
    const auto decided = log.find(lost.step);
    if (layout.bucket != bucket || decided == log.end()) continue;
    const auto& counted = decided->second.update.contributors;
    if (std::ranges::find(counted, protocol::ContributorId{worker, lost.incarnation}) == counted.end()) continue;
    const Stream& stream = decided->second.streams.at(worker);
    for (size_t i = 0; i < stream.values.size(); ++i) {
      const uint64_t index = layout.begin + (stream.dense ? i : stream.indices[i]);
      if (decided->second.carried.contains(index)) books[index] += static_cast<double>(stream.values[i]);
    }
  }
}

/// Adds entered + opening - ledger - the values that it holds.
void ToyCluster::take_books(const WatchedCore& core, uint32_t worker, uint32_t bucket,
                            std::vector<double>& books) const {
  const auto ledger = core.ledger(bucket);
  for (uint64_t i = 0; i < ledger.size(); ++i)
    books[i] += core.entered(bucket)[i] + core.opening_residual(bucket)[i] - ledger[i];
  add_carried_of_unreturnable(core, worker, bucket, books);
  const Stream residual = core.residual(bucket);
  for (size_t i = 0; i < residual.values.size(); ++i) {
    books[residual.dense ? i : residual.indices[i]] -= static_cast<double>(residual.values[i]);
  }
  for (const worker::OutstandingView& out : core.outstanding(bucket)) {
    for (size_t i = 0; i < out.sent.values.size(); ++i) {
      books[out.begin + (out.sent.dense ? i : out.sent.indices[i])] -= in_flight(out, worker, i);
    }
  }
}

std::vector<double> ToyCluster::imbalance(uint32_t bucket) const {
  const protocol::BucketLayout& layout = table_.layout.buckets[bucket];
  std::vector<double> difference(layout.dimension, 0.0);
  for (uint32_t worker = 0; worker < cores_.size(); ++worker) take_books(*cores_[worker], worker, bucket, difference);
  for (const Ended& ended : ended_) take_books(*ended.core, ended.worker, bucket, difference);
  for (uint32_t part = layout.first_part; part < layout.first_part + layout.part_count; ++part) {
    for (const auto& [step, decision] : shards_[table_.layout.parts[part].shard]->log(part)) {
      for (const auto& [index, value] : decision.carried) difference[index] -= value;
    }
  }
  for (size_t i = 0; i < difference.size(); ++i) difference[i] -= voided_[bucket][i];
  return difference;
}

double ToyCluster::lost() const {
  double sum = 0;
  const auto add = [&sum](const WatchedCore& core) {
    for (uint32_t bucket = 0; bucket < core.layout().buckets.size(); ++bucket)
      for (const double value : core.ledger(bucket)) sum += std::abs(value);
  };
  for (const auto& core : cores_) add(*core);
  for (const Ended& ended : ended_) add(*ended.core);
  return sum;
}

std::vector<std::string> ToyCluster::complaints() const {
  std::vector<std::string> all;
  for (const auto& shard : shards_) all.insert(all.end(), shard->complaints.begin(), shard->complaints.end());
  return all;
}

}  // namespace millrace::testing
