#include "tests/sim/sim_worker.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "protocol/container/history_payload.h"
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

SimWorker::SimWorker(SimWorld& world, uint32_t number, uint32_t worker, const SimSave* save, uint64_t pushes)
    : SimProcess(world, "worker " + std::to_string(worker) +
                            (number == worker ? "" : " (process " + std::to_string(number) + ")")),
      number_(number),
      worker_(worker),
      steps_(pushes),
      random_(random_key(world.scenario.seed, number, 7)),
      broken_(world.scenario.shards),
      connection_(world.scenario.shards, 0),
      pushed_(world.scenario.spec.tensors.size(), 0),
      at_(world.layout.parts.size()),
      opening_(world.layout.parts.size()),
      verdicts_(world.layout.parts.size()),
      was_usable_(world.layout.parts.size()),
      was_unusable_(world.layout.parts.size()),
      may_lose_(world.layout.parts.size()),
      summary_until_(world.layout.parts.size()) {
  for (const auto& bucket : world.layout.buckets) entered_.emplace_back(bucket.dimension, 0.0);
  credited_ = entered_;
  for (const auto& part : world.layout.parts) weights_.emplace_back(part.end - part.begin, 0.0f);
  if (save == nullptr) return;
  loaded_ = std::make_shared<SimSave>(*save);
  weights_ = save->weights;
  at_ = save->at;
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
  config.history_saves_min = INT64_MIN;  // always: there is little of anything here
  config.link_bits_per_s = world_.scenario.link_rate;
  config.has_weights = world_.scenario.has_weights;
  config.takes_merged = world_.scenario.merged;
  config.returns = number_ != worker_;
  if (loaded_) config.saved = loaded_->state;
  core_ = std::make_unique<WatchedCore>(std::move(config));
  set_alive(true);
  world_.trace(name() + " starts");
  worker::Actions actions;
  core_->start(now(), actions);
  turn(actions);
}

void SimWorker::kill() {
  if (!alive()) return;
  world_.trace(name() + " is killed");
  was_killed_ = true;
  killed_at_ = world_.scheduler.now();
  set_alive(false);
}

void SimWorker::leave() {
  run([this] {
    if (over()) return;
    world_.trace(name() + " leaves");
    left_ = true;
    worker::Actions actions;
    if (random_.next_unit() < 0.5) {
      core_->leave(protocol::Goodbye::Reason::kShutdown, "enough", now(), actions);
    } else {
      core_->fail_session({ErrorCode::kTimeout, "the caller waited long enough"}, now(), actions);
    }
    turn(actions);
  });
}

void SimWorker::tick() {
  worker::Actions actions;
  core_->on_tick(now(), actions);
  turn(actions);
}

void SimWorker::deliver(uint32_t shard, uint64_t connection, protocol::Message message) {
  run([this, shard, connection, message = std::move(message)] {
    // A message on its way over a connection that has broken since is lost with it.
    if (connection_[shard] != connection || over()) return;
    heard_at_ = world_.scheduler.now();
    if (world_.tracing)
      world_.trace("  " + name() + " <- shard " + std::to_string(shard) + ": " + describe_message(message));
    worker::Actions actions;
    protocol::Message seen(message);
    auto* heartbeat = std::get_if<protocol::Heartbeat>(&seen.body);
    if (heartbeat != nullptr && !world_.scenario.decided_lists) heartbeat->decided.clear();
    const auto* settle = std::get_if<protocol::Settle>(&seen.body);
    if (settle != nullptr && seen.header.epoch == core_->membership().epoch) note_settle(*settle);
    core_->on_message(shard, std::move(seen), now(), actions);
    turn(actions);
  });
}

void SimWorker::lose_connection(uint32_t shard, const std::string& reason) {
  if (!alive() || connection_[shard] == 0) return;
  const uint64_t connection = connection_[shard];
  broken_[shard] = {connection, world_.scheduler.now()};
  world_.scheduler.after(world_.scheduler.draw(0, 500 * kNsPerMs), [this, shard, connection, reason] {
    run([this, shard, connection, reason] {
      if (connection_[shard] != connection || over()) return;
      connection_[shard] = 0;
      worker::Actions actions;
      core_->on_disconnected(shard, {ErrorCode::kUnavailable, reason}, now(), actions);
      turn(actions);
    });
  });
}

void SimWorker::turn(worker::Actions& actions) {
  code(actions);
  core_->end_pass(now(), actions);
  if (core_->membership().job != 0 && world_.job != 0 && core_->membership().job != world_.job) {
    // The name was free again: this is another job's first worker, and no part of this run.
    world_.trace(name() + " opens another job");
    left_the_run_ = true;
    killed_at_ = world_.scheduler.now();
    set_alive(false);
    return;
  }
  carry_out(std::move(actions));
  if (over()) {
    const std::string why = core_->error()
                                ? std::string(error_code_name(core_->error()->code)) + ": " + core_->error()->message
                                : "finished";
    world_.trace(name() + " is over, " + why);
    over_at_ = world_.scheduler.now();
    return;
  }
  schedule_push();
  arm(core_->next_deadline());
}

void SimWorker::code(worker::Actions& actions) {
  if (++code_turns_ % 3 == 0) core_->resolve_one_deferred();  // else it is done where it is needed
  uint64_t pieces = world_.scenario.eager_work ? UINT64_MAX : world_.scheduler.dice().next_below(3);
  for (; pieces > 0; --pieces) {
    if (!core_->work(now(), actions)) return;
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
  if (core_->incarnation() != 0) lives_.insert(core_->incarnation());
  if (std::exchange(told_a_place_, false)) take_places();
  for (const auto& delivered : actions.delivered) apply(delivered);
  credit_held();
  for (const auto& action : actions.sends) send(action);
  for (const auto& asked : actions.give_weights) give_weights(asked);
  for (uint32_t shard : actions.connects) connect(shard);
}

// Gives the oracle the plain bytes, by which it identifies contributions. A shard that reads a shortened form restores
// them.
void SimWorker::tell_oracle(const protocol::Message& message) {
  const auto* body = std::get_if<protocol::Contribution>(&message.body);
  if (body == nullptr || !is_shortened(message.payload.bytes)) return world_.oracle.on_sent_by_worker(message);
  const uint32_t bucket = core_->layout().parts[body->part].bucket;
  for (const auto& out : core_->outstanding(bucket)) {
    if (out.part != body->part || out.step != body->step || out.incarnation != message.header.incarnation) continue;
    protocol::Message plain = message;
    plain.payload = SharedBytes::from(ByteBuffer(out.payload.begin(), out.payload.end()));
    return world_.oracle.on_sent_by_worker(plain);
  }
}

void SimWorker::send(const worker::SendAction& action) {
  tell_oracle(action.message);
  if (const auto* ack = std::get_if<protocol::Ack>(&action.message.body)) {
    for (const protocol::Ack::Entry& entry : ack->entries) {
      world_.oracle.on_acknowledged(worker_, entry.part,
                                    {core_->part_steps_applied(entry.part), core_->part_decided_in(entry.part)});
    }
  }
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

/// Sends nearly a worker's message as a stranger that is no worker of the job: it must not change a round.
void SimWorker::repeat_as_stranger(const worker::SendAction& action) {
  RandomSequence& random = world_.scheduler.dice();
  protocol::Message message = action.message;
  if (random.next_unit() < 0.3)
    message.header.worker = static_cast<uint32_t>(random.next_below(world_.scenario.spec.workers + 1));
  if (random.next_unit() < 0.3) message.header.incarnation = random.next_below(4);
  if (random.next_unit() < 0.3) message.header.epoch += random.next_below(3);
  if (auto* contribution = std::get_if<protocol::Contribution>(&message.body))
    contribution->step += random.next_below(3);
  if (auto* ack = std::get_if<protocol::Ack>(&message.body)) {
    for (auto& entry : ack->entries) entry.n += random.next_below(3);
  }
  // The process's secret: without it a Hello for this identity is a second process.
  if (auto* hello = std::get_if<protocol::Hello>(&message.body)) {
    hello->nonce = random.next_u64();
    if (!world_.oracle.started()) return;  // before the start any worker may join
  }
  SimShard& shard = *world_.shards[action.shard];
  const protocol::PeerId peer{"x" + std::to_string(random.next_below(3))};
  world_.network.send(world_.worker_node(worker_), action.shard, message,
                      [&shard, peer](protocol::Message repeated) { shard.deliver(peer, std::move(repeated)); });
}

void SimWorker::connect(uint32_t shard) {
  if (connection_[shard] != 0 && broken_[shard].connection != connection_[shard])
    broken_[shard] = {connection_[shard], world_.scheduler.now()};
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
        core_->on_connected(shard, now(), actions);
      } else {
        connection_[shard] = 0;
        core_->on_disconnected(shard, {ErrorCode::kUnavailable, "cannot be reached"}, now(), actions);
      }
      turn(actions);
    });
  });
}

void SimWorker::apply(const worker::DeliveredUpdate& update) {
  const std::string where = name() + " part " + std::to_string(update.part) + " step " + std::to_string(update.step);
  if (update.part >= at_.size()) return world_.fault(where + ": no such part");
  LogPosition& at = at_[update.part];
  if (update.replaces) return replace(where, update);
  if (update.delivered_before) {
    if (update.sum.view.count() != 0) world_.fault(where + " was not delivered before");
    return;
  }
  if (update.first_step != at.n) return world_.fault(where + " is delivered, " + std::to_string(at.n) + " is next");
  const LogPosition after{update.step + 1, update.decided_in};
  const std::vector<LogPosition> places = world_.oracle.path(update.part, at.n, after);
  if (places.size() != after.n - at.n) return world_.fault(where + " is delivered, and was never decided");
  if (world_.oracle.find(update.part, places.front())->before != at)
    return world_.fault(where + " belongs to another log than this worker's");
  check_applied(where, update, places);
  check_backed(where, update.part, after);
  apply_update(weights_[update.part], update.sum.view, update.denominator);
  at = after;
  for (const LogPosition& place : places) credit(update.part, place);
  if (weights_[update.part] != world_.oracle.weights(update.part, at))
    world_.fault(where + ": other weights than the contributors' replay");
}

void SimWorker::credit(uint32_t part, LogPosition at) {
  const protocol::PartLayout& range = world_.layout.parts[part];
  for (const uint64_t incarnation : lives_) {
    if (!world_.oracle.counted(part, at, worker_, incarnation) || !credited_at_.emplace(part, at).second) continue;
    const std::span<double> books = std::span(credited_[range.bucket]).subspan(range.begin, range.end - range.begin);
    world_.oracle.add_carried(part, at, worker_, incarnation, books);
  }
}

/// Weights of another worker, after some steps of the log: all of these are this worker's now.
void SimWorker::replace(const std::string& where, const worker::DeliveredUpdate& update) {
  const LogPosition after{update.steps, update.decided_in};
  if (!go_to(where, update.part, after)) return;
  if (!update.sum.view.dense || !std::ranges::equal(update.sum.view.values, weights_[update.part]))
    world_.fault(where + ": the weights taken over are not the replay's");
}

/// Without weights of its own, in a job whose shards have them: its place in the log is another one now; nothing is
/// delivered.
void SimWorker::take_places() {
  const worker::SavedState state = core_->saved_state();
  for (uint32_t part = 0; part < at_.size(); ++part) {
    const LogPosition after{state.parts[part].n, state.parts[part].decided_in};
    if (after != at_[part]) go_to(name() + " part " + std::to_string(part), part, after);
  }
}

bool SimWorker::go_to(const std::string& where, uint32_t part, LogPosition after) {
  if (after.n > 0 && world_.oracle.find(part, after) == nullptr) {
    world_.fault(where + ": a place that no log has");
    return false;
  }
  world_.trace("  " + name() + " takes over part " + std::to_string(part) + " after " + std::to_string(after.n) +
               " steps");
  check_backed(where, part, after);
  credit_path(part, after);
  weights_[part] = world_.oracle.weights(part, after);
  at_[part] = after;
  return true;
}

void SimWorker::credit_path(uint32_t part, LogPosition after) {
  for (const LogPosition& place : world_.oracle.path(part, 0, after)) {
    if (credited_at_.contains({part, place})) continue;
    credit(part, place);
    if (!credited_at_.contains({part, place})) continue;
    for (const uint64_t incarnation : lives_) {
      if (world_.oracle.counted(part, place, worker_, incarnation)) skipped_.push_back({part, place, incarnation});
    }
  }
}

void SimWorker::credit_held() {
  if (!protocol::applies_after_acks(world_.scenario.spec)) return;
  for (uint32_t part = 0; part < at_.size(); ++part) {
    for (const worker::DeliveredUpdate& update : core_->awaiting_acks(part)) {
      if (update.replaces) {
        credit_path(part, {update.steps, update.decided_in});
      } else if (!update.delivered_before) {
        const LogPosition after{update.step + 1, update.decided_in};
        for (const LogPosition& place : world_.oracle.path(part, update.first_step, after)) credit(part, place);
      }
    }
  }
}

std::vector<float> SimWorker::whole_weights(uint32_t part) const {
  std::vector<float> weights = weights_[part];
  for (const worker::DeliveredUpdate& update : core_->awaiting_acks(part)) {
    if (update.delivered_before) continue;
    if (update.replaces) {
      weights.assign(update.sum.view.values.begin(), update.sum.view.values.end());
    } else {
      apply_update(weights, update.sum.view, update.denominator);
    }
  }
  return weights;
}

void SimWorker::check_backed(const std::string& where, uint32_t part, LogPosition at) {
  const uint32_t wanted = world_.scenario.spec.apply_after_acks;
  if (wanted <= 1 || at.n == 0 || world_.scenario.link.corruption > 0) return;
  const uint32_t have = world_.oracle.acknowledged(part, at);
  if (have >= std::min(wanted, world_.oracle.members_least())) return;
  world_.fault(where + " is handed out, and " + std::to_string(have) + " of " + std::to_string(wanted) +
               " members have acknowledged it");
}

void SimWorker::give_weights(const worker::GiveWeights& asked) {
  // The shell may take its time: it gives the weights of that moment.
  const TimeNs takes = world_.scheduler.chance(0.5) ? 0 : world_.scheduler.draw(0, 100 * kNsPerMs);
  world_.scheduler.after(takes, [this, asked] {
    run([this, asked] {
      if (over()) return;
      worker::Actions actions;
      core_->give_weights(asked, whole_weights(asked.part), now(), actions);
      turn(actions);
    });
  });
}

void SimWorker::save_now() {
  auto save = std::make_shared<SimSave>();
  save->state = core_->saved_state();
  save->at = at_;
  for (uint32_t part = 0; part < at_.size(); ++part) {
    save->weights.push_back(whole_weights(part));
    for (const worker::DeliveredUpdate& held : core_->awaiting_acks(part)) {
      if (!held.delivered_before) save->at[part] = {held.replaces ? held.steps : held.step + 1, held.decided_in};
    }
    const worker::SavedPart& saved = save->state.parts[part];
    const LogPosition at = save->at[part];
    if (saved.n != at.n || (saved.n > 0 && saved.decided_in != at.decided_in))
      world_.fault(name() + ": the saved place of part " + std::to_string(part) + " is not the one that is applied");
    if (save->weights[part] != world_.oracle.weights(part, at))
      world_.fault(name() + ": the saved weights of part " + std::to_string(part) + " are not the replay's");
  }
  save_ = std::move(save);
  world_.trace(name() + " saves its state");
}

void SimWorker::schedule_push() {
  if (push_scheduled_ || core_->phase() != Phase::kRunning) return;
  const bool done = has_pushed_all();
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

/// Returns whether pushes end at a common step. In mode synchronous a rejoined worker must go to that step from any
/// initial state.
bool SimWorker::goes_by_steps() const {
  const bool came_back = number_ != worker_ || core_->counters().returns > 0;
  return came_back && world_.scenario.spec.mode == protocol::Mode::kSynchronous;
}

uint64_t SimWorker::steps_done(uint64_t otherwise_in_flight) const {
  uint64_t least = UINT64_MAX;
  bool in_flight = false;
  for (uint32_t bucket = 0; bucket < world_.layout.buckets.size(); ++bucket) {
    least = std::min(least, core_->steps_applied(bucket));
    in_flight = in_flight || !core_->outstanding(bucket).empty();
  }
  return least + (in_flight ? otherwise_in_flight : 0);
}

bool SimWorker::wants_to_push(uint64_t least) const {
  if (!goes_by_steps()) return least < steps_;
  const uint64_t steps = world_.scenario.steps[worker_];
  return std::ranges::max(pushed_) > least || steps_done(steps) < steps;
}

bool SimWorker::has_pushed_all() const {
  const uint64_t least = std::ranges::min(pushed_);
  if (!goes_by_steps()) return least >= steps_;
  return std::ranges::max(pushed_) == least && steps_done(1) >= world_.scenario.steps[worker_];
}

std::vector<uint32_t> SimWorker::pushable() const {
  std::vector<uint32_t> tensors;
  // Where pushes are not steps, a worker that is done with one tensor and not with another would leave a quorum of the
  // first waiting. And a worker that may rejoin must have pushed all equally often.
  const bool undisturbed = world_.scenario.faults.empty() && !may_silence_workers(world_.scenario);
  const protocol::Mode mode = world_.scenario.spec.mode;
  const bool abreast = mode != protocol::Mode::kAsynchronous &&
                       (mode != protocol::Mode::kSynchronous || (!undisturbed && !world_.scenario.tensors_in_turn));
  const uint64_t behind = std::ranges::min(pushed_);
  for (const auto& bucket : world_.layout.buckets) {
    uint64_t least = abreast ? behind : UINT64_MAX;
    for (const auto& member : bucket.members) least = std::min(least, pushed_[member.tensor]);
    for (const auto& member : bucket.members) {
      const bool wanted = pushed_[member.tensor] == least && wants_to_push(least);
      if (wanted && pushed_[member.tensor] < core_->steps_allowed(member.tensor)) tensors.push_back(member.tensor);
    }
    if (world_.scenario.tensors_in_turn && wants_to_push(least)) break;
  }
  return tensors;
}

void SimWorker::push_one() {
  worker::Actions actions;
  const std::vector<uint32_t> tensors = pushable();
  if (tensors.empty()) {
    const bool done = has_pushed_all();
    if (done && !finish_asked_ && core_->phase() == Phase::kRunning) {
      finish_asked_ = true;
      world_.trace(name() + " asks to finish");
      if (auto finished = core_->finish(now(), actions); !finished)
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
  turn(actions);
  if (alive() && core_->phase() == Phase::kRunning && random_.next_unit() < world_.scenario.saves) save_now();
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
  if (sparse) return core_->push_sparse(tensor, gradient.indices, gradient.values, gradient.weight, now());
  std::vector<float> dense(world_.scenario.spec.tensors[tensor].dimension, 0.0f);
  for (size_t i = 0; i < gradient.indices.size(); ++i) dense[gradient.indices[i]] += gradient.values[i];
  return core_->push_dense(tensor, dense, gradient.weight, now());
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
