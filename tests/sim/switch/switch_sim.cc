#include "tests/sim/switch/switch_sim.h"

#include <algorithm>
#include <optional>
#include <set>

#include "kernels/base/check.h"
#include "tests/sim/switch/switch_network.h"
#include "tests/sim/switch/switch_oracle.h"
#include "tests/sim/switch/switch_rounds.h"
#include "worker/switch/switch_client.h"

namespace millrace::testing {
namespace {

constexpr TimeNs kPatience =
    30 * kNsPerS;  ///< virtual, after the faults: that it ends; check_rounds() has in how many rounds
constexpr TimeNs kTick = kNsPerMs;
constexpr TimeNs kTableUnreadMax = 60 * kNsPerMs;  ///< a worker looks at the table so often

class Reference : public SwitchDecider {
 public:
  Reference(const SwitchScenario& scenario, uint64_t incarnation_seed, SwitchMutation mutation, TimeNs now)
      : reference_(incarnation_seed, scenario.packet_bytes, mutation) {
    for (const SwitchSimJob& job : scenario.jobs) {
      for (uint32_t lane = 0; lane < job.lanes; ++lane)
        reference_.add_job(
            {job.job + lane, job.key, job.window_indices, (job.slots + job.slots_spare) / job.lanes, scenario.lease_ns},
            now);
    }
  }
  void receive(const protocol::ReceivedPacket& packet, TimeNs now, protocol::PacketSink& sink) override {
    reference_.receive(packet, now, sink);
  }
  void tick(TimeNs now, protocol::PacketSink& sink) override { reference_.tick(now, sink); }
  std::string impossible() const override {
    return reference_.impossible() > 0 ? "contributions or positions that cannot be" : "";
  }

 private:
  SwitchReference reference_;
};

struct World;

/// The membership table's say on one job.
struct SimTable {
  worker::SwitchEpoch epoch;
  uint32_t path = 0;
  TimeNs raised_at = 0;
};

/// A worker process: its client, its offers, its knowledge of the table.
class SimSwitchWorker : public worker::SwitchOutcome {
 public:
  SimSwitchWorker(World& world, uint32_t job, uint16_t number, uint32_t node, const worker::SwitchHandover* handover);

  void on_completed(const worker::CompletedWindow& window) override;
  void step_done(uint32_t step) override;

  void receive(const protocol::ReceivedPacket& packet);
  void tick();
  void kill();
  void move_to(uint32_t new_node);
  bool over() const { return client_->finished(); }
  bool between_steps() const { return between_ && !over() && !finishing_; }
  worker::SwitchHandover handover() const { return client_->handover(); }

  World& world;
  uint32_t job;
  uint16_t number;
  uint32_t node;
  bool alive = true;
  bool leaves = false;
  TimeNs stalled_until = 0;
  std::optional<uint32_t> frozen_until_epoch;  ///< a handover of it is out
  SwitchRecord record;
  const worker::SwitchClient& client() const { return *client_; }

 private:
  void begin();
  void read_table();

  std::unique_ptr<worker::SwitchClient> client_;
  std::unique_ptr<SimSink> sink_;
  RandomSequence random_;
  std::vector<float> residual_;
  bool between_ = true;
  bool finishing_ = false;
  uint32_t next_step_ = 0;
  TimeNs begins_at_ = 0;
  TimeNs reads_table_at_ = 0;
};

struct World {
  World(const SwitchScenario& scenario_given, const MakeDecider& make_given);

  uint32_t deciders_count() const { return scenario.switches + 1; }
  /// And the racks' switches behind them.
  uint32_t aggregators_count() const { return deciders_count() + scenario.racks; }
  bool through_racks(uint32_t path) const { return scenario.racks > 0 && path == scenario.switches; }
  void start_decider(uint32_t node);
  void restart_decider(uint32_t node, TimeNs down);
  void look_at_decider(uint32_t node);
  void deliver_to_worker(SimSwitchWorker& worker, const protocol::ReceivedPacket& packet);
  void raise(uint32_t job, uint64_t live, uint32_t path);
  void add_worker(uint32_t job, uint16_t number, const worker::SwitchHandover* handover);
  void kill_worker(uint32_t job);
  void move_worker(uint32_t job);
  void try_join(uint32_t job, uint32_t tries);
  void change_path(uint32_t job);
  void stall();
  void watch_jobs();
  void plan_faults();
  bool over() const;
  std::string unfinished() const;
  void listen(uint32_t to, ByteSpan packet);
  void watch_rounds(uint32_t from, uint32_t to, ByteSpan packet);
  void run();
  void check();
  void check_rounds();
  /// The same for all workers of a job.
  bool is_in_cluster(const SwitchSimJob& spec, uint32_t step, uint32_t index) const {
    RandomSequence random(random_key(scenario.seed, step, index / spec.cluster));
    return random.next_unit() < spec.density;
  }
  void fault(const std::string& text) {
    if (report.faults.size() < 20) report.faults.push_back("seed " + std::to_string(scenario.seed) + ": " + text);
  }

  const SwitchScenario& scenario;
  const MakeDecider& make;
  SimScheduler scheduler;
  SwitchNetwork network;
  CodedUnion unions;
  std::vector<std::unique_ptr<SwitchDecider>> deciders;
  std::vector<std::unique_ptr<SimSink>> decider_sinks;
  std::vector<SimTable> tables;
  std::vector<std::vector<std::unique_ptr<SimSwitchWorker>>> workers;  ///< by job, in the order of their numbers
  std::set<std::pair<uint64_t, uint64_t>> results_seen;  ///< (job and slot, turn) whose first result has arrived
  uint32_t nodes = 0;
  SwitchRounds rounds;
  std::vector<uint32_t> suspicions;  ///< by job: paths left though all was quiet
  SwitchSimReport report;
};

worker::SwitchClientOptions client_options(const World& world, uint32_t job_index, uint16_t number,
                                           uint64_t nonce_seed) {
  const SwitchSimJob& job = world.scenario.jobs[job_index];
  worker::SwitchClientOptions out;
  out.job = job.job;
  out.key = job.key;
  out.worker = number;
  out.workers = job.workers + job.joiners;
  out.window_indices = job.window_indices;
  out.dimension = job.window_indices * job.windows - 5;
  out.slots = job.slots;
  out.lanes = job.lanes;
  out.packet_bytes_max = world.scenario.packet_bytes;
  out.exponent_initial = job.exponent_initial;
  out.codecs = job.codecs;
  out.through_racks = world.scenario.racks > 0;
  out.nonce_seed = nonce_seed;
  out.round_trip.max_ns = world.scenario.timeout_max;
  return out;
}

SimSwitchWorker::SimSwitchWorker(World& world_given, uint32_t job_given, uint16_t number_given, uint32_t node_given,
                                 const worker::SwitchHandover* handover)
    : world(world_given),
      job(job_given),
      number(number_given),
      node(node_given),
      random_(random_key(world_given.scenario.seed, 0xBEEF, job_given, number_given)) {
  const auto options = client_options(world, job, number, random_.next_u64());
  client_ = handover == nullptr ? std::make_unique<worker::SwitchClient>(options, *this)
                                : std::make_unique<worker::SwitchClient>(options, *this, *handover);
  next_step_ = handover == nullptr ? 0 : handover->next_step;
  residual_.assign(options.dimension, 0.0F);
  record.worker = number;
  record.first_step = next_step_;
  leaves = random_.next_unit() < world.scenario.leavers;
  move_to(node);
}

void SimSwitchWorker::on_completed(const worker::CompletedWindow& window) {
  ++world.report.turns;
  if (record.told.contains({window.slot, window.turn})) world.fault("a turn was settled twice");
  record.note(window);
  window.each_returned([this](uint32_t index, float value) { residual_[index] += value; });
}

void SimSwitchWorker::step_done(uint32_t step) {
  if (step + 1 != next_step_) world.fault("another step was done than the one that was begun");
  between_ = true;
  const TimeNs think = world.scenario.jobs[job].think_max;
  begins_at_ = world.scheduler.now() + (think > 0 ? world.scheduler.draw(0, think) : 0);
}

void SimSwitchWorker::begin() {
  const SwitchSimJob& spec = world.scenario.jobs[job];
  between_ = false;
  const TimeNs now = world.scheduler.now();
  if (next_step_ == spec.steps) {
    finishing_ = true;
    MILLRACE_CHECK(client_->finish(now, *sink_).has_value());
    return;
  }
  std::vector<uint32_t> indices;
  std::vector<float> values;
  const double density = random_.next_unit() < 0.1 ? 0 : spec.density;
  for (uint32_t index = 0; index < residual_.size(); ++index) {
    float value = residual_[index];
    const bool drawn = random_.next_unit() < density;
    const bool clustered = spec.cluster > 1;
    if (clustered ? world.is_in_cluster(spec, next_step_, index) : drawn)
      value += static_cast<float>(static_cast<int>(random_.next_below(2001)) - 1000) / 64;
    residual_[index] = 0;
    if (value == 0) continue;
    indices.push_back(index);
    values.push_back(value);
    record.offered[next_step_][index] = value;
  }
  const Status begun = client_->begin_step(next_step_++, indices, values, now, *sink_);
  MILLRACE_CHECK(begun.has_value());
}

void SimSwitchWorker::read_table() {
  const TimeNs now = world.scheduler.now();
  const bool told = client_->epoch_seen() > world.tables[job].epoch.epoch;
  if (told) world.fault("an aggregator spoke of an epoch that the table does not have");
  if (now < reads_table_at_) return;
  reads_table_at_ = now + world.scheduler.draw(kNsPerMs, world.scheduler.chance(0.1) ? kTableUnreadMax : 8 * kNsPerMs);
  worker::SwitchEpoch epoch = world.tables[job].epoch;
  const uint32_t rack = rack_of(world.scenario, number);
  if (world.through_racks(world.tables[job].path) && rack < world.scenario.racks) {
    epoch.rack = sim_endpoint(world.deciders_count() + rack);
  }
  client_->set_epoch(epoch, now, *sink_);
  if (frozen_until_epoch && world.tables[job].epoch.epoch >= *frozen_until_epoch) frozen_until_epoch.reset();
}

void SimSwitchWorker::receive(const protocol::ReceivedPacket& packet) {
  client_->receive(packet, world.scheduler.now(), *sink_);
}

void SimSwitchWorker::tick() {
  const TimeNs now = world.scheduler.now();
  if (!alive || now < stalled_until) return;
  read_table();
  if (between_ && !finishing_ && now >= begins_at_ && !frozen_until_epoch) begin();
  client_->tick(now, *sink_);
  if (over() && leaves && world.scheduler.chance(0.05)) kill();
}

void SimSwitchWorker::kill() {
  alive = false;
  world.network.detach(node);
}

void SimSwitchWorker::move_to(uint32_t new_node) {
  world.network.detach(node);
  node = new_node;
  sink_ = std::make_unique<SimSink>(world.network, node, world.scenario.packet_bytes);
  world.network.attach(node,
                       [this](const protocol::ReceivedPacket& packet) { world.deliver_to_worker(*this, packet); });
}

World::World(const SwitchScenario& scenario_given, const MakeDecider& make_given)
    : scenario(scenario_given),
      make(make_given),
      scheduler(scenario_given.seed),
      network(scheduler, scenario),
      deciders(aggregators_count()) {
  nodes = aggregators_count();
  for (uint32_t node = 0; node < aggregators_count(); ++node) {
    decider_sinks.push_back(std::make_unique<SimSink>(network, node, scenario.packet_bytes));
    start_decider(node);
  }
  tables.resize(scenario.jobs.size());
  workers.resize(scenario.jobs.size());
  suspicions.resize(scenario.jobs.size());
  for (uint32_t job = 0; job < scenario.jobs.size(); ++job) {
    const uint32_t count = scenario.jobs[job].workers;
    for (uint32_t number = 0; number < count; ++number) add_worker(job, static_cast<uint16_t>(number), nullptr);
    raise(job, (uint64_t{1} << count) - 1, scenario.racks > 0 ? scenario.switches : job % scenario.switches);
  }
}

void World::start_decider(uint32_t node) {
  const uint64_t incarnation_seed = scheduler.dice().next_u64();
  deciders[node] = node < deciders_count()
                       ? make(scenario, node, incarnation_seed, scheduler.now())
                       : make_rack(scenario, node - deciders_count(), incarnation_seed, scheduler.now());
  network.attach(node, [this, node](const protocol::ReceivedPacket& packet) {
    deciders[node]->receive(packet, scheduler.now(), *decider_sinks[node]);
  });
}

void World::look_at_decider(uint32_t node) {
  report.racks += deciders[node]->rack_counts();
  const std::string met = deciders[node]->impossible();
  if (!met.empty()) fault("decider " + std::to_string(node) + " met what no honest worker sends: " + met);
}

void World::restart_decider(uint32_t node, TimeNs down) {
  if (deciders[node] == nullptr) return;
  ++report.restarts;
  look_at_decider(node);
  deciders[node].reset();
  network.detach(node);
  rounds.disturbed_until(scheduler.now() + down);
  scheduler.after(down, [this, node] { start_decider(node); });
}

/// Now and then a result reaches one worker only, and its sender dies.
void World::deliver_to_worker(SimSwitchWorker& worker, const protocol::ReceivedPacket& packet) {
  if (scheduler.now() < worker.stalled_until) {
    const ByteBuffer bytes(packet.bytes.begin(), packet.bytes.end());
    scheduler.at(worker.stalled_until, [this, &worker, bytes, from = packet.from] {
      if (worker.alive) deliver_to_worker(worker, {.bytes = bytes, .from = from});
    });
    return;
  }
  worker.receive(packet);
  const auto datagram = protocol::parse_datagram(packet.bytes);
  if (!datagram || datagram->header.type != protocol::DatagramType::kResult || scheduler.now() >= scenario.calm_from)
    return;
  const uint64_t place = uint64_t{datagram->header.job} << 32 | datagram->header.slot;
  if (!results_seen.insert({place, datagram->header.turn}).second || !scheduler.chance(scenario.subset_kills)) return;
  const uint32_t from = packet.from.port - 1u;
  ++report.subset_kills;
  network.lose_from(from);
  restart_decider(from, scheduler.draw(0, 20 * kNsPerMs));
}

void World::raise(uint32_t job, uint64_t live, uint32_t path) {
  SimTable& table = tables[job];
  ++table.epoch.epoch;
  table.epoch.live = live;
  table.epoch.membership_hash = random_words(RandomKey::from(live), path)[0];
  table.epoch.decider = sim_endpoint(path);
  table.epoch.role = through_racks(path) ? worker::SwitchRole::kCombine : worker::SwitchRole::kReduce;
  table.path = path;
  table.raised_at = scheduler.now();
  rounds.disturbed_until(scheduler.now() + kTableUnreadMax + 10 * kTick);
  ++report.epochs;
}

void World::add_worker(uint32_t job, uint16_t number, const worker::SwitchHandover* handover) {
  workers[job].push_back(std::make_unique<SimSwitchWorker>(*this, job, number, nodes++, handover));
}

void World::kill_worker(uint32_t job) {
  std::vector<SimSwitchWorker*> living;
  for (const auto& worker : workers[job]) {
    if (worker->alive && !worker->over()) living.push_back(worker.get());
  }
  if (living.size() < 2) return;
  living[scheduler.dice().next_below(living.size())]->kill();
  ++report.deaths;
}

/// Gives a worker another address, as a new route does. Packets under way to the old one are lost.
void World::move_worker(uint32_t job) {
  SimSwitchWorker& worker = *workers[job][scheduler.dice().next_below(workers[job].size())];
  if (worker.alive) worker.move_to(nodes++);
}

/// Adds a worker beside one that stands between two steps; the latter waits until the table has both.
void World::try_join(uint32_t job, uint32_t tries) {
  for (const auto& donor : workers[job]) {
    if (!donor->alive || !donor->between_steps() || donor->frozen_until_epoch || scheduler.now() < donor->stalled_until)
      continue;
    if ((tables[job].epoch.live >> donor->number & 1) == 0) continue;
    const worker::SwitchHandover handover = donor->handover();
    const auto number = static_cast<uint16_t>(workers[job].size());
    donor->frozen_until_epoch = tables[job].epoch.epoch + 1;
    add_worker(job, number, &handover);
    raise(job, tables[job].epoch.live | uint64_t{1} << number, tables[job].path);
    ++report.joined;
    return;
  }
  if (tries > 0) scheduler.after(kNsPerMs, [this, job, tries] { try_join(job, tries - 1); });
}

void World::change_path(uint32_t job) {
  const uint32_t path =
      (tables[job].path + 1 + static_cast<uint32_t>(scheduler.dice().next_below(scenario.switches))) % deciders_count();
  raise(job, tables[job].epoch.live, path);
}

void World::stall() {
  const uint32_t job = static_cast<uint32_t>(scheduler.dice().next_below(workers.size()));
  const bool all = scheduler.chance(0.3);
  const TimeNs until = scheduler.now() + scheduler.draw(5 * kNsPerMs, 250 * kNsPerMs);
  for (const auto& worker : workers[job]) {
    if (all || scheduler.chance(0.3)) worker->stalled_until = until;
  }
  rounds.disturbed_until(until);
}

/// Acts as the table's watch: removes dead workers, and leaves a path that its workers suspect.
void World::watch_jobs() {
  for (uint32_t job = 0; job < workers.size(); ++job) {
    SimTable& table = tables[job];
    uint64_t gone = 0;
    bool suspect = false;
    for (const auto& worker : workers[job]) {
      if (!worker->alive) gone |= uint64_t{1} << worker->number;
      const bool counts = worker->alive && worker->client().phase() != worker::SwitchPhase::kOutside;
      suspect = suspect || (counts && worker->client().path_suspect());
    }
    const uint64_t stay = table.epoch.live & ~gone;
    if (scheduler.now() - table.raised_at < 3 * kNsPerMs || stay == 0) continue;
    if (stay != table.epoch.live && scheduler.chance(0.2)) {
      raise(job, stay, table.path);
    } else if (suspect && scheduler.now() - table.raised_at > 100 * kNsPerMs) {
      if (rounds.is_quiet(scheduler.now())) ++suspicions[job];
      change_path(job);
    }
  }
}

void World::plan_faults() {
  const auto at_some_time = [this](const std::function<void()>& what) {
    scheduler.at(scheduler.draw(0, scenario.calm_from), what);
  };
  const auto some_job = [this] { return static_cast<uint32_t>(scheduler.dice().next_below(workers.size())); };
  for (uint32_t i = 0; i < scenario.restarts; ++i) {
    const auto node = static_cast<uint32_t>(scheduler.dice().next_below(deciders_count()));
    const TimeNs down = scheduler.draw(0, 80 * kNsPerMs);
    at_some_time([this, node, down] { restart_decider(node, down); });
  }
  for (uint32_t i = 0; i < scenario.rack_restarts && scenario.racks > 0; ++i) {
    const auto node = deciders_count() + static_cast<uint32_t>(scheduler.dice().next_below(scenario.racks));
    const TimeNs down = scheduler.draw(0, 80 * kNsPerMs);
    at_some_time([this, node, down] { restart_decider(node, down); });
  }
  for (uint32_t i = 0; i < scenario.deaths; ++i) at_some_time([this, job = some_job()] { kill_worker(job); });
  for (uint32_t i = 0; i < scenario.path_changes; ++i) at_some_time([this, job = some_job()] { change_path(job); });
  for (uint32_t i = 0; i < scenario.stalls; ++i) at_some_time([this] { stall(); });
  for (uint32_t i = 0; i < scenario.moves; ++i) at_some_time([this, job = some_job()] { move_worker(job); });
  for (uint32_t job = 0; job < scenario.jobs.size(); ++job) {
    for (uint32_t i = 0; i < scenario.jobs[job].joiners; ++i) at_some_time([this, job] { try_join(job, 100); });
  }
}

bool World::over() const {
  for (const auto& job : workers) {
    for (const auto& worker : job) {
      if (worker->alive && !worker->over()) return false;
    }
  }
  return true;
}

/// Returns the positions of all workers, for the sentence of a hang.
std::string World::unfinished() const {
  std::string out;
  for (uint32_t job = 0; job < workers.size(); ++job) {
    out += "; job " + std::to_string(job) + " epoch " + std::to_string(tables[job].epoch.epoch) + " live " +
           std::to_string(tables[job].epoch.live) + " path " + std::to_string(tables[job].path) + ":";
    for (const auto& worker : workers[job]) {
      out += " [" + std::to_string(worker->number) + (worker->alive ? "" : " dead") + (worker->over() ? " over" : "") +
             (worker->frozen_until_epoch ? " frozen" : "") + " phase " +
             std::to_string(static_cast<int>(worker->client().phase())) + " turns " +
             std::to_string(worker->client().counters().results) + " epoch seen " +
             std::to_string(worker->client().epoch_seen()) + "]";
    }
  }
  return out;
}

/// To every packet that is handed over.
void World::listen(uint32_t to, ByteSpan packet) {
  if (to >= aggregators_count()) return;
  const auto datagram = protocol::parse_datagram(packet);
  if (datagram && datagram->header.type == protocol::DatagramType::kContribution && datagram->header.entries > 0) {
    ++report.contributions[{datagram->header.index_codec, datagram->header.value_codec}];
  }
  if (scenario.adds_up_unions && to >= deciders_count())
    unions.take(to - deciders_count(), packet, scenario.jobs[0].window_indices);
}

/// To every packet that is sent.
void World::watch_rounds(uint32_t from, uint32_t to, ByteSpan packet) {
  const TimeNs now = scheduler.now();
  const auto datagram = protocol::parse_datagram(packet);
  if (!datagram) return;
  if (from < deciders_count()) rounds.sent_by_decider(from, datagram->header, now);
  if (from >= aggregators_count()) rounds.sent_by_worker(from, to, datagram->header, now);
}

void World::run() {
  plan_faults();
  network.tap([this](uint32_t to, ByteSpan packet) { listen(to, packet); });
  rounds.disturbed_until(scenario.calm_from + scenario.slow_max + kTick);
  network.tap_sent([this](uint32_t from, uint32_t to, ByteSpan packet) { watch_rounds(from, to, packet); });
  const std::function<void()> tick = [&] {
    if (over()) return;
    watch_jobs();
    for (uint32_t node = 0; node < aggregators_count(); ++node) {
      if (deciders[node] != nullptr) deciders[node]->tick(scheduler.now(), *decider_sinks[node]);
    }
    for (const auto& job : workers) {
      for (const auto& worker : job) worker->tick();
    }
    scheduler.after(kTick, tick);
  };
  scheduler.at(0, tick);
  while (!over() && scheduler.now() < scenario.calm_from + kPatience && scheduler.step()) continue;
  report.took = scheduler.now();
  if (!over()) fault("hang: " + std::to_string(kPatience / kNsPerS) + " s after the faults" + unfinished());
  check();
}

/// DESIGN.md, "Rounds".
void World::check_rounds() {
  const uint32_t sends_max = SwitchRounds::sends_max(scenario.timeout_max);
  report.sends_most = rounds.sends_most();
  if (rounds.sends_most() > sends_max) {
    fault("rounds: a turn took " + std::to_string(rounds.sends_most()) + " sends of a worker, " +
          std::to_string(sends_max) + " are the most");
  }
  const bool leases_outlast = scenario.lease_ns > SwitchRounds::silence_max(scenario.timeout_max);
  if (leases_outlast && rounds.lives_begun() > 0)
    fault("rounds: a decider began an incarnation though its workers speak");
  for (uint32_t job = 0; job < workers.size(); ++job) {
    if (scenario.slots_short == 0 && suspicions[job] > 1) {
      fault("rounds: job " + std::to_string(job) + " left " + std::to_string(suspicions[job]) + " paths that live");
    }
    const SwitchSimJob& spec = scenario.jobs[job];
    for (const auto& worker : workers[job]) {
      const bool beyond = std::ranges::any_of(worker->record.told, [&spec](const auto& told) {
        const auto& [slot, turn] = told.first;
        const uint32_t stripe = (spec.windows - slot + spec.slots - 1) / spec.slots;
        return turn > uint64_t{spec.steps} * stripe + 1;
      });
      if (beyond) fault("rounds: worker " + std::to_string(worker->number) + " had turns after the closing one");
    }
  }
}

void World::check() {
  check_rounds();
  for (uint32_t node = 0; node < aggregators_count(); ++node) {
    if (deciders[node] != nullptr) look_at_decider(node);
  }
  for (uint32_t job = 0; job < workers.size(); ++job) {
    std::vector<const SwitchRecord*> records;
    for (const auto& worker : workers[job]) {
      worker->record.survived = worker->over();
      records.push_back(&worker->record);
      const worker::SwitchClientCounters& counters = worker->client().counters();
      report.new_lives += counters.new_lives;
      report.fetches += counters.fetches_answered;
      report.resends += counters.resends;
      if (counters.contradiction > 0) fault("a worker met what no honest aggregator sends");
      if (counters.bad_payload > 0) fault("a worker met a payload that does not decode");
    }
    const SwitchSimJob& spec = scenario.jobs[job];
    const int32_t limit = worker::grid_limit(spec.codecs.value, spec.workers + spec.joiners);
    const size_t payload = scenario.packet_bytes - protocol::kDatagramHeaderBytes - protocol::kDatagramMacBytes -
                           (scenario.racks > 0 ? protocol::kPartialTermsBytes : 0);
    const SwitchLawResult law = check_switch_law(records, {.codecs = spec.codecs,
                                                           .window_indices = spec.window_indices,
                                                           .steps = spec.steps,
                                                           .limit = limit,
                                                           .payload_bytes_max = payload});
    for (const std::string& text : law.faults) fault(text);
    report.entries_checked += law.entries;
    report.dead_in_results += law.dead_in_results;
    report.jobs_of_lanes += spec.lanes > 1 ? 1 : 0;
  }
  report.packets = network.sent();
  report.crowds = scenario.jobs.size() >= kCrowdJobsMin ? 1 : 0;
  report.bytes_to_decider = network.bytes_to(tables[0].path);
  if (scenario.adds_up_unions) report.unions = unions.bytes(scenario.jobs[0].window_indices, scenario.packet_bytes);
  report.bytes_to_worker = network.bytes_to(workers[0][0]->node);
}

}  // namespace

MakeDecider reference_decider(SwitchMutation mutation) {
  return [mutation](const SwitchScenario& scenario, uint32_t, uint64_t incarnation_seed, TimeNs now) {
    return std::make_unique<Reference>(scenario, incarnation_seed, mutation, now);
  };
}

SwitchSimReport run_switch_sim(const SwitchScenario& scenario, const MakeDecider& make) {
  World world(scenario, make);
  world.run();
  return world.report;
}

}  // namespace millrace::testing
