#include "tests/sim/sim_world.h"

#include <cstdio>

#include "kernels/base/hash.h"
#include "tests/sim/sim_shard.h"
#include "tests/sim/sim_worker.h"

namespace millrace::testing {

SimWorld::SimWorld(const Scenario& drawn)
    : scenario(drawn),
      scheduler(drawn.seed),
      network(scheduler, drawn.shards + drawn.spec.workers),
      layout(protocol::plan_layout(drawn.spec, drawn.shards)),
      oracle(scenario, layout),
      table_state(millrace::testing::make_memory_table_state()),
      table(millrace::testing::open_memory_table(table_state)) {}

SimWorld::~SimWorld() = default;

void SimWorld::trace(const std::string& line) {
  if (!tracing) return;
  std::printf("%12.6f  %s\n", static_cast<double>(scheduler.now()) / static_cast<double>(kNsPerS), line.c_str());
}

void SimWorld::fault(const std::string& sentence) {
  trace("FAULT " + sentence);
  if (faults.size() < 20) faults.push_back(std::to_string(scheduler.now() / kNsPerMs) + " ms: " + sentence);
}

void SimWorld::watch_table() {
  const auto changes = table->change_counter();
  if (!changes || *changes == table_changes) return;
  table_changes = *changes;
  auto record = job == 0 ? table->read_job(scenario.spec.name) : table->read_job(job);
  if (!record || !record->has_value()) return;
  const protocol::Membership& membership = (**record).membership;
  if (job != 0 && oracle.views().contains(membership.epoch)) return;
  job = membership.job;
  oracle.on_membership(membership);
  if (membership.finished) job_ended_at = scheduler.now();
  if (membership.finished && !(**record).end_reason.empty()) job_end_code = (**record).end_code;
  std::string members;
  for (const auto& member : membership.members)
    members += ' ' + std::to_string(member.worker) + '/' + std::to_string(member.incarnation);
  trace("table: epoch " + std::to_string(membership.epoch) + (membership.started ? " started" : "") +
        (membership.finished ? " finished" : "") + " members" + members);
  scheduler.note(membership.epoch);
}

SimProcess::SimProcess(SimWorld& world, std::string name)
    : world_(world), clock_random_(RandomKey::from(world.scenario.seed), hash64(name)), name_(std::move(name)) {
  draw_clock();
}

void SimProcess::draw_clock() {
  if (!world_.scenario.own_clocks) return;
  clock_.began = static_cast<TimeNs>(clock_random_.next_below(3'600ull * kNsPerS));
  const int64_t most = world_.scenario.clock_drift_ppm;
  clock_.drift_ppm = static_cast<int64_t>(clock_random_.next_below(2 * static_cast<uint64_t>(most) + 1)) - most;
}

TimeNs SimProcess::Clock::when(TimeNs shown) const {
  const double rate = 1 + static_cast<double>(drift_ppm) * 1e-6;
  TimeNs time = static_cast<TimeNs>(static_cast<double>(shown - began) / rate);
  while (at(time) >= shown) time -= kNsPerUs;
  while (at(time) < shown) ++time;
  return time;
}

void SimProcess::set_alive(bool alive) {
  if (!alive) draw_clock();  // the next process's
  alive_ = alive;
  ++generation_;
  armed_for_ = kNever;
  stalled_until_ = 0;
}

void SimProcess::run(const std::function<void()>& body) { run_in(generation_, body); }

void SimProcess::run_in(uint64_t generation, const std::function<void()>& body) {
  if (!alive_ || generation != generation_) return;
  if (stalled()) {
    world_.scheduler.at(stalled_until_, [this, generation, body] { run_in(generation, body); });
    return;
  }
  body();
}

void SimProcess::arm(TimeNs deadline) {
  // A timer that fires too early asks again, so that only a deadline before the armed one needs another event.
  if (deadline >= armed_for_) return;
  armed_for_ = deadline;
  const TimeNs when = deadline <= now() ? world_.scheduler.now() : clock_.when(deadline);
  world_.scheduler.at(when, [this, generation = generation_, deadline] {
    run_in(generation, [this, deadline] {
      if (armed_for_ != deadline) return;
      armed_for_ = kNever;
      fire();
    });
  });
}

void SimProcess::fire() {
  const TimeNs begun = now();
  if (deadline() > begun) return arm(deadline());
  tick();
  if (!alive_) return;
  if (deadline() > begun) {
    ticks_without_progress_ = 0;
    return arm(deadline());
  }
  if (++ticks_without_progress_ == 100) world_.fault(name_ + ": its deadline stays in the past: a busy loop");
  arm(begun + kNsPerUs);
}

}  // namespace millrace::testing
