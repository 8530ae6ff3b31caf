#include "tests/sim/sim_world.h"

#include <cstdio>

#include "tests/sim/sim_shard.h"
#include "tests/sim/sim_worker.h"

namespace millrace::testing {

SimWorld::SimWorld(const Scenario& drawn)
    : scenario(drawn),
      scheduler(drawn.seed),
      network(scheduler, drawn.shards + drawn.spec.workers),
      layout(protocol::plan_layout(drawn.spec, drawn.shards)),
      oracle(scenario, layout),
      table_state(protocol::make_memory_table_state()),
      table(protocol::open_memory_table(table_state)) {}

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
  const protocol::JobView& view = (**record).view;
  if (job != 0 && oracle.views().contains(view.epoch)) return;
  job = view.job;
  oracle.on_view(view);
  std::string members;
  for (const auto& member : view.members)
    members += ' ' + std::to_string(member.worker) + '/' + std::to_string(member.life);
  trace("table: epoch " + std::to_string(view.epoch) + (view.started ? " started" : "") +
        (view.finished ? " finished" : "") + " members" + members);
  scheduler.note(view.epoch);
}

void SimProcess::set_alive(bool alive) {
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
  // A timer that fires too early asks again, so only an earlier one than what is set needs another event.
  if (deadline >= armed_for_) return;
  armed_for_ = deadline;
  world_.scheduler.at(deadline, [this, generation = generation_, deadline] {
    run_in(generation, [this, deadline] {
      if (armed_for_ != deadline) return;
      armed_for_ = kNever;
      fire();
    });
  });
}

void SimProcess::fire() {
  const TimeNs now = world_.scheduler.now();
  if (deadline() > now) return arm(deadline());
  tick();
  if (!alive_) return;
  if (deadline() > now) {
    ticks_without_progress_ = 0;
    return arm(deadline());
  }
  if (++ticks_without_progress_ == 100) world_.fault(name_ + ": its deadline stays in the past: a busy loop");
  arm(now + kNsPerUs);
}

}  // namespace millrace::testing
