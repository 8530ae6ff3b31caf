#include "tests/sim/sim_worker.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/sim/sim_shard.h"

namespace millrace::testing {

using worker::Phase;

protocol::PeerId SimPeer::id() const {
  return {(is_shard ? "s" : "w") + std::to_string(number) + "#" + std::to_string(connection)};
}

SimPeer SimPeer::from(const protocol::PeerId& id) {
  const size_t mark = id.bytes.find('#');
  return {.is_shard = id.bytes[0] == 's',
          .number = static_cast<uint32_t>(std::stoul(id.bytes.substr(1, mark - 1))),
          .connection = std::stoull(id.bytes.substr(mark + 1))};
}

SimWorker::SimWorker(SimWorld& world, uint32_t number, uint32_t worker)
    : SimProcess(world, "worker " + std::to_string(worker) +
                            (number == worker ? "" : " (process " + std::to_string(number) + ")")),
      number_(number),
      worker_(worker),
      random_(random_key(world.scenario.seed, number, 7)),
      connection_(world.scenario.shards, 0),
      pushed_(world.scenario.spec.tensors.size(), 0),
      applied_(world.layout.parts.size(), 0) {
  for (const auto& bucket : world.layout.buckets) entered_.emplace_back(bucket.dimension, 0.0);
  for (const auto& part : world.layout.parts) weights_.emplace_back(part.end - part.begin, 0.0f);
}

void SimWorker::start() {
  worker::CoreConfig config;
  config.worker = worker_;
  config.nonce = random_.next_u64();
  config.spec = world_.scenario.spec;
  for (uint32_t shard = 0; shard < world_.scenario.shards; ++shard)
    config.shard_addresses.push_back("tcp://sim:" + std::to_string(7'000 + shard));
  config.random_seed = random_.next_u64();
  config.software = "sim";
  config.ledger = worker::LedgerMode::kPerIndex;
  core_ = std::make_unique<worker::SessionCore>(std::move(config));
  set_alive(true);
  world_.trace(name() + " starts");
  worker::Actions actions;
  core_->start(world_.scheduler.now(), actions);
  turn(actions);
}

void SimWorker::kill() {
  if (!alive()) return;
  world_.trace(name() + " is killed");
  was_killed_ = true;
  set_alive(false);
}

void SimWorker::leave() {
  run([this] {
    if (over()) return;
    world_.trace(name() + " leaves");
    left_ = true;
    worker::Actions actions;
    if (random_.next_unit() < 0.5) {
      core_->leave(protocol::Goodbye::Reason::kShutdown, "enough", world_.scheduler.now(), actions);
    } else {
      core_->fail_session({ErrorCode::kTimeout, "the caller waited long enough"}, world_.scheduler.now(), actions);
    }
    turn(actions);
  });
}

void SimWorker::tick() {
  worker::Actions actions;
  core_->on_tick(world_.scheduler.now(), actions);
  turn(actions);
}

void SimWorker::deliver(uint32_t shard, uint64_t connection, protocol::Message message) {
  run([this, shard, connection, message = std::move(message)] {
    // What was on its way over a connection that has broken since is lost with it.
    if (connection_[shard] != connection || over()) return;
    if (world_.tracing)
      world_.trace("  " + name() + " <- shard " + std::to_string(shard) + ": " + describe_message(message));
    worker::Actions actions;
    protocol::Message seen(message);
    auto* heartbeat = std::get_if<protocol::Heartbeat>(&seen.body);
    if (heartbeat != nullptr && !world_.scenario.decided_lists) heartbeat->decided.clear();
    core_->on_message(shard, std::move(seen), world_.scheduler.now(), actions);
    turn(actions);
  });
}

void SimWorker::lose_connection(uint32_t shard, const std::string& reason) {
  if (!alive() || connection_[shard] == 0) return;
  const uint64_t connection = connection_[shard];
  world_.scheduler.after(world_.scheduler.draw(0, 500 * kNsPerMs), [this, shard, connection, reason] {
    run([this, shard, connection, reason] {
      if (connection_[shard] != connection || over()) return;
      connection_[shard] = 0;
      worker::Actions actions;
      core_->on_disconnected(shard, reason, world_.scheduler.now(), actions);
      turn(actions);
    });
  });
}

void SimWorker::turn(worker::Actions& actions) {
  code(actions);
  core_->end_turn(world_.scheduler.now(), actions);
  if (core_->view().job != 0 && world_.job != 0 && core_->view().job != world_.job) {
    // The name was free again: this is another job's first worker, and no part of this run.
    world_.trace(name() + " opens another job");
    left_the_run_ = true;
    set_alive(false);
    return;
  }
  carry_out(std::move(actions));
  if (over()) {
    const std::string why = core_->error()
                                ? std::string(error_code_name(core_->error()->code)) + ": " + core_->error()->message
                                : "finished";
    world_.trace(name() + " is over, " + why);
    return;
  }
  schedule_push();
  arm(core_->next_deadline());
}

void SimWorker::code(worker::Actions& actions) {
  if (++code_turns_ % 3 == 0) core_->settle_one();  // else it is done where it is needed
  uint64_t pieces = world_.scenario.eager_work ? UINT64_MAX : world_.scheduler.dice().next_below(3);
  for (; pieces > 0; --pieces) {
    if (!core_->work(world_.scheduler.now(), actions)) return;
  }
  if (turn_scheduled_) return;
  turn_scheduled_ = true;
  world_.scheduler.after(world_.scheduler.draw(0, 200 * kNsPerUs), [this] {
    run([this] {
      turn_scheduled_ = false;
      if (over()) return;
      worker::Actions more;
      turn(more);
    });
  });
}

void SimWorker::carry_out(worker::Actions&& actions) {
  for (const auto& line : actions.log) world_.trace("  " + name() + " says: " + line.text);
  for (const auto& delivered : actions.delivered) apply(delivered);
  for (const auto& action : actions.sends) send(action);
  for (uint32_t shard : actions.connects) connect(shard);
}

void SimWorker::send(const worker::SendAction& action) {
  world_.oracle.on_sent_by_worker(action.message);
  world_.scheduler.note(fingerprint(action.message));
  if (world_.tracing)
    world_.trace(name() + " -> shard " + std::to_string(action.shard) + ": " + describe_message(action.message));
  if (action.shard >= world_.shards.size()) return world_.fault(name() + " sends to no shard");
  if (world_.scheduler.chance(world_.scenario.hostile)) repeat_as_stranger(action);
  if (connection_[action.shard] == 0) return;  // dropped, as a socket without a peer does
  SimShard& shard = *world_.shards[action.shard];
  const protocol::PeerId peer =
      SimPeer{.is_shard = false, .number = number_, .connection = connection_[action.shard]}.id();
  world_.network.send(world_.worker_node(worker_), action.shard, action.message,
                      [&shard, peer](protocol::Message message) { shard.deliver(peer, std::move(message)); });
}

/// Somebody who is no worker of the job says nearly what a worker said: nothing of it may change a round.
void SimWorker::repeat_as_stranger(const worker::SendAction& action) {
  RandomSequence& random = world_.scheduler.dice();
  protocol::Message message = action.message;
  if (random.next_unit() < 0.3)
    message.header.worker = static_cast<uint32_t>(random.next_below(world_.scenario.spec.workers + 1));
  if (random.next_unit() < 0.3) message.header.life = random.next_below(4);
  if (random.next_unit() < 0.3) message.header.epoch += random.next_below(3);
  if (auto* contribution = std::get_if<protocol::Contribution>(&message.body))
    contribution->step += random.next_below(3);
  if (auto* ack = std::get_if<protocol::Ack>(&message.body)) {
    for (auto& entry : ack->entries) entry.n += random.next_below(3);
  }
  // The process's secret: without it a Hello for this identity is a second process.
  if (auto* hello = std::get_if<protocol::Hello>(&message.body)) {
    hello->nonce = random.next_u64();
    if (!world_.oracle.started()) return;  // before the start anybody may join
  }
  SimShard& shard = *world_.shards[action.shard];
  const protocol::PeerId peer{"x" + std::to_string(random.next_below(3))};
  world_.network.send(world_.worker_node(worker_), action.shard, message,
                      [&shard, peer](protocol::Message repeated) { shard.deliver(peer, std::move(repeated)); });
}

void SimWorker::connect(uint32_t shard) {
  connection_[shard] = 0;
  const TimeNs trip = world_.network.draw_latency() + world_.network.draw_latency();
  world_.scheduler.after(trip, [this, shard] {
    run([this, shard] {
      if (over()) return;
      const uint32_t node = world_.worker_node(worker_);
      const bool reached =
          world_.shards[shard]->alive() && !world_.network.blocked(node, shard) && !world_.network.blocked(shard, node);
      worker::Actions actions;
      if (reached) {
        connection_[shard] = ++world_.connections;
        core_->on_connected(shard, world_.scheduler.now(), actions);
      } else {
        connection_[shard] = 0;
        core_->on_disconnected(shard, "cannot be reached", world_.scheduler.now(), actions);
      }
      turn(actions);
    });
  });
}

void SimWorker::apply(const worker::DeliveredUpdate& update) {
  const std::string where = name() + " part " + std::to_string(update.part) + " step " + std::to_string(update.step);
  if (update.part >= applied_.size()) return world_.fault(where + ": no such part");
  if (update.delivered_before) {
    if (update.step >= applied_[update.part] || update.sum.view.count() != 0)
      world_.fault(where + " was not delivered before");
    return;
  }
  if (update.step != applied_[update.part])
    return world_.fault(where + " is delivered, " + std::to_string(applied_[update.part]) + " is next");
  if (update.step >= world_.oracle.log(update.part).size())
    return world_.fault(where + " is delivered, and was never decided");
  const DecidedStep& decided = world_.oracle.log(update.part)[update.step];
  const double denominator = denominator_of(world_.scenario.spec, decided.contributors.size(), decided.weight_sum);
  // An update without entries divides nothing.
  if (update.sum.view.count() > 0 && update.denominator != denominator)
    world_.fault(where + ": denominator " + std::to_string(update.denominator) + " instead of " +
                 std::to_string(denominator));
  if (update.contributors != decided.contributors.size())
    world_.fault(where + ": another number of contributors than the update's");
  if (update.counted != world_.oracle.counted(update.part, update.step, worker_, core_->life()))
    world_.fault(where + ": the worker is wrong about being counted");
  apply_update(weights_[update.part], update.sum.view, update.denominator);
  ++applied_[update.part];
  if (weights_[update.part] != world_.oracle.weights(update.part, applied_[update.part]))
    world_.fault(where + ": other weights than the contributors' replay");
}

void SimWorker::schedule_push() {
  if (push_scheduled_ || core_->phase() != Phase::kRunning) return;
  const bool done = std::all_of(pushed_.begin(), pushed_.end(),
                                [this](uint64_t steps) { return steps >= world_.scenario.steps[worker_]; });
  if (done && finish_asked_) return;
  if (!done && pushable().empty()) return;
  push_scheduled_ = true;
  constexpr TimeNs kSlowThinkMin = 50 * kNsPerMs;
  const TimeNs think = worker_ == world_.scenario.slow_worker ? 10 * std::max(world_.scenario.think_max, kSlowThinkMin)
                                                              : world_.scenario.think_max;
  world_.scheduler.after(world_.scheduler.draw(0, think), [this] {
    run([this] {
      push_scheduled_ = false;
      if (!over()) push_one();
    });
  });
}

std::vector<uint32_t> SimWorker::pushable() const {
  std::vector<uint32_t> tensors;
  // Where pushes are not steps, whoever is through with one tensor and not with another would keep a quorum of the first waiting.
  const bool abreast = world_.scenario.spec.mode != protocol::Mode::kSynchronous;
  const uint64_t behind = std::ranges::min(pushed_);
  for (const auto& bucket : world_.layout.buckets) {
    uint64_t least = abreast ? behind : UINT64_MAX;
    for (const auto& member : bucket.members) least = std::min(least, pushed_[member.tensor]);
    for (const auto& member : bucket.members) {
      const bool wanted = pushed_[member.tensor] == least && least < world_.scenario.steps[worker_];
      if (wanted && pushed_[member.tensor] < core_->steps_allowed(member.tensor)) tensors.push_back(member.tensor);
    }
    if (world_.scenario.tensors_in_turn && least < world_.scenario.steps[worker_]) break;
  }
  return tensors;
}

void SimWorker::push_one() {
  worker::Actions actions;
  const std::vector<uint32_t> tensors = pushable();
  if (tensors.empty()) {
    const bool done = std::all_of(pushed_.begin(), pushed_.end(),
                                  [this](uint64_t steps) { return steps >= world_.scenario.steps[worker_]; });
    if (done && !finish_asked_ && core_->phase() == Phase::kRunning) {
      finish_asked_ = true;
      world_.trace(name() + " asks to finish");
      if (auto finished = core_->finish(world_.scheduler.now(), actions); !finished)
        world_.fault(name() + " may not finish: " + finished.error().message);
    }
    return turn(actions);
  }
  const uint32_t tensor = tensors[random_.next_below(tensors.size())];
  Gradient gradient = draw_gradient(tensor, pushed_[tensor]);
  if (random_.next_unit() < world_.scenario.non_finite_pushes) {
    const Gradient bad = with_non_finite(tensor, gradient);
    if (world_.scenario.spec.non_finite == protocol::NonFinite::kRefuse) {
      expect_refusal(tensor, bad);
    } else {
      gradient = bad;
    }
  }
  const auto step = push(tensor, gradient, random_.next_unit() < world_.scenario.sparse_pushes);
  if (!step) {
    world_.fault(name() + " cannot push although it is allowed: " + step.error().message);
    return turn(actions);
  }
  if (*step != pushed_[tensor])
    world_.fault(name() + ": push returns step " + std::to_string(*step) + " instead of " +
                 std::to_string(pushed_[tensor]));
  enter(tensor, gradient);
  ++pushed_[tensor];
  ++pushes_;
  turn(actions);
}

SimWorker::Gradient SimWorker::draw_gradient(uint32_t tensor, uint64_t step) const {
  const Scenario& scenario = world_.scenario;
  RandomSequence random(random_key(scenario.seed, tensor, step, worker_), /*stream=*/2);
  const uint64_t dimension = scenario.spec.tensors[tensor].dimension;
  const double most = std::max(1.0, scenario.density_max * static_cast<double>(dimension));
  const uint64_t entries = random.next_below(static_cast<uint64_t>(most) + 1);
  const float unit = std::ldexp(1.0f, scenario.grid_exponent);
  Gradient gradient;
  for (uint64_t i = 0; i < entries; ++i) {
    const auto level =
        static_cast<int64_t>(random.next_below(2 * scenario.grid_steps_max + 1)) - scenario.grid_steps_max;
    gradient.indices.push_back(static_cast<uint32_t>(random.next_below(dimension)));
    gradient.values.push_back(static_cast<float>(level) * unit);
  }
  if (scenario.spec.combine == protocol::Combine::kWeightedMean)
    gradient.weight = std::ldexp(1.0f, static_cast<int>(random.next_below(3)) - 1);
  return gradient;
}

Result<uint64_t> SimWorker::push(uint32_t tensor, const Gradient& gradient, bool sparse) {
  if (sparse)
    return core_->push_sparse(tensor, gradient.indices, gradient.values, gradient.weight, world_.scheduler.now());
  std::vector<float> dense(world_.scenario.spec.tensors[tensor].dimension, 0.0f);
  for (size_t i = 0; i < gradient.indices.size(); ++i) dense[gradient.indices[i]] += gradient.values[i];
  return core_->push_dense(tensor, dense, gradient.weight, world_.scheduler.now());
}

/// The gradient with one more entry, NaN or infinity, and nothing else at that entry's index.
SimWorker::Gradient SimWorker::with_non_finite(uint32_t tensor, const Gradient& gradient) {
  const auto index = static_cast<uint32_t>(random_.next_below(world_.scenario.spec.tensors[tensor].dimension));
  Gradient bad;
  bad.weight = gradient.weight;
  for (size_t i = 0; i < gradient.indices.size(); ++i) {
    if (gradient.indices[i] == index) continue;
    bad.indices.push_back(gradient.indices[i]);
    bad.values.push_back(gradient.values[i]);
  }
  bad.indices.push_back(index);
  bad.values.push_back(random_.next_unit() < 0.5 ? std::numeric_limits<float>::quiet_NaN()
                                                 : -std::numeric_limits<float>::infinity());
  return bad;
}

void SimWorker::expect_refusal(uint32_t tensor, const Gradient& bad) {
  const auto step = push(tensor, bad, random_.next_unit() < world_.scenario.sparse_pushes);
  if (step || step.error().code != ErrorCode::kNonFinite) {
    world_.fault(name() + ": a gradient with a NaN or an infinity was not refused as such");
  }
}

void SimWorker::enter(uint32_t tensor, const Gradient& gradient) {
  for (const auto& bucket : world_.layout.buckets) {
    for (const auto& member : bucket.members) {
      if (member.tensor != tensor) continue;
      std::vector<double>& entered = entered_[bucket.bucket];
      for (size_t i = 0; i < gradient.indices.size(); ++i) {
        if (!std::isfinite(gradient.values[i])) continue;
        entered[member.offset + gradient.indices[i]] +=
            static_cast<double>(gradient.weight) * static_cast<double>(gradient.values[i]);
      }
    }
  }
}

}  // namespace millrace::testing
