#include "tests/sim/cluster_sim.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <set>

#include "server/base/limits.h"
#include "server/membership/membership_changes.h"
#include "tests/sim/sim_shard.h"
#include "tests/sim/sim_worker.h"

namespace millrace::testing {
namespace {

using worker::Phase;
using Kind = SimFault::Kind;

/// After the network is calm: a resend (30 s at most, with jitter), reconnecting, removing the dead, and the steps
/// left.
constexpr TimeNs kProgressBound = 120 * kNsPerS;
/// How often, over events, the law is checked.
constexpr uint64_t kLawCheckEvery = 400;

FailingTable::Mode table_mode_of(Kind kind) {
  if (kind == Kind::kTableFails) return FailingTable::Mode::kWritesFail;
  return kind == Kind::kTableAway ? FailingTable::Mode::kUnavailable : FailingTable::Mode::kMaybe;
}

class Cluster {
 public:
  Cluster(const Scenario& scenario, SimTrace trace) : world_(scenario) { world_.tracing = trace == SimTrace::kPrinted; }

  SimReport run();

 private:
  void start();
  void inject(const SimFault& fault);
  void isolate(uint32_t node, TimeNs until);
  SimWorker& newest(uint32_t worker);
  void restart_worker(uint32_t worker);
  void kill_worker(uint32_t worker, TimeNs restart_after);
  void expect_removal(uint32_t process, uint64_t incarnation);
  void calm_down();
  void check_law();
  bool all_over() const;
  bool a_shard_fell() const;
  bool a_shard_is_gone() const;
  bool too_few_for_a_successor() const;
  bool was_removed(uint32_t worker, uint64_t incarnation) const;
  bool below_minimum() const;
  bool job_can_start() const;
  bool store_may_be_lost() const;
  bool lacks_finished_steps(const SimWorker& process, bool unheard = false) const;
  bool lost_worker_may_return() const;
  bool was_member_at_the_end(const SimWorker& process) const;
  std::optional<ErrorCode> code_of_the_end(const SimWorker& process) const;
  bool reaches(const SimFault& fault, const SimWorker& process) const;
  bool explained(const SimWorker& process) const;
  bool has_successor(const SimWorker& process) const;
  void judge_worker(const SimWorker& process);
  void judge();
  void check_name_is_free();
  bool left_unheard(const SimWorker& process) const;
  void check_finished_agree();
  SimReport report() const;

  SimWorld world_;
  TimeNs calm_from_ = 0;
  uint64_t law_checks_ = 0;
  uint32_t starts_to_come_ = 0;
};

void Cluster::start() {
  const Scenario& scenario = world_.scenario;
  if (world_.tracing) world_.trace(describe(scenario));
  world_.network.set_faults(scenario.link);
  world_.network.set_real_bytes(scenario.real_bytes);
  for (uint32_t shard = 0; shard < scenario.shards; ++shard)
    world_.shards.push_back(std::make_unique<SimShard>(world_, shard));
  for (uint32_t worker = 0; worker < scenario.spec.workers; ++worker)
    world_.workers.push_back(std::make_unique<SimWorker>(world_, worker, worker, nullptr, scenario.steps[worker]));
  // Any process may be first: workers that start before the servers must find them.
  for (const auto& shard : world_.shards) {
    world_.scheduler.at(world_.scheduler.draw(0, scenario.shard_start_max), [&shard] { shard->start_first(); });
  }
  for (const auto& worker : world_.workers) {
    world_.scheduler.at(world_.scheduler.draw(0, 300 * kNsPerMs), [process = worker.get()] { process->start(); });
  }
  calm_from_ = scenario.calm_from;
  for (const SimFault& fault : scenario.faults) {
    calm_from_ = std::max(calm_from_, fault.at + fault.duration);
    world_.scheduler.at(fault.at, [this, &fault] { inject(fault); });
  }
  world_.scheduler.at(calm_from_, [this] { calm_down(); });
}

void Cluster::calm_down() {
  if (calm_from_ > 0) world_.trace("the network is calm from now on");
  world_.network.set_faults({});
}

void Cluster::inject(const SimFault& fault) {
  world_.trace("inject: " + describe(fault));
  world_.scheduler.note(static_cast<uint64_t>(fault.kind));
  const TimeNs until = world_.scheduler.now() + fault.duration;
  switch (fault.kind) {
    case Kind::kPartition:
      world_.network.block(fault.a, fault.b, until);
      world_.network.block(fault.b, fault.a, until);
      return;
    case Kind::kOneWay: world_.network.block(fault.a, fault.b, until); return;
    case Kind::kIsolate: isolate(fault.a, until); return;
    case Kind::kStall:
      if (fault.a < world_.shards.size()) {
        world_.shards[fault.a]->stall_until(until);
      } else {
        newest(static_cast<uint32_t>(fault.a - world_.shards.size())).stall_until(until);
      }
      return;
    case Kind::kDisconnect: newest(fault.a).lose_connection(fault.b, "the connection broke"); return;
    case Kind::kKillWorker: kill_worker(fault.a, fault.duration); return;
    case Kind::kKillAllWorkers:
      for (uint32_t worker = 0; worker < world_.scenario.spec.workers; ++worker)
        kill_worker(worker, world_.scheduler.draw(0, fault.duration));
      return;
    case Kind::kLeave: newest(fault.a).leave(); return;
    case Kind::kRestartWorker: restart_worker(fault.a); return;
    case Kind::kKillShard:
      world_.shards[fault.a]->kill();
      if (fault.duration > 0)
        world_.scheduler.at(until, [shard = world_.shards[fault.a].get()] { shard->start_again(); });
      return;
    case Kind::kShutdownShard: world_.shards[fault.a]->shut_down(); return;
    case Kind::kTableFails:
    case Kind::kTableAway:
    case Kind::kTableMaybe:
      world_.shards[fault.a]->set_table_mode(table_mode_of(fault.kind));
      world_.scheduler.at(
          until, [shard = world_.shards[fault.a].get()] { shard->set_table_mode(FailingTable::Mode::kWorks); });
      return;
    case Kind::kTableSlow:
      world_.shards[fault.a]->slow_table(static_cast<TimeNs>(fault.b) * kNsPerMs);
      world_.scheduler.at(until, [shard = world_.shards[fault.a].get()] { shard->slow_table(0); });
      return;
  }
}

void Cluster::isolate(uint32_t node, TimeNs until) {
  for (uint32_t other = 0; other < world_.scenario.shards + world_.scenario.spec.workers; ++other) {
    world_.network.block(node, other, until);
    world_.network.block(other, node, until);
  }
}

SimWorker& Cluster::newest(uint32_t worker) {
  for (auto process = world_.workers.rbegin(); process != world_.workers.rend(); ++process) {
    if ((*process)->worker() == worker) return **process;
  }
  return *world_.workers[worker];
}

/// Starts another process of that worker, with the files that the earlier one left on its disk. It makes the remaining
/// pushes.
void Cluster::restart_worker(uint32_t worker) {
  const SimWorker& before = newest(worker);
  const bool forgets = world_.scheduler.chance(world_.scenario.forgets);
  const uint64_t left =
      std::max<uint64_t>(1, before.pushes_wanted() - std::min(before.pushes_wanted(), before.pushed()));
  auto process = std::make_unique<SimWorker>(world_, static_cast<uint32_t>(world_.workers.size()), worker,
                                             forgets ? nullptr : before.save().get(), left);
  world_.workers.push_back(std::move(process));
  world_.workers.back()->start();
}

void Cluster::kill_worker(uint32_t worker, TimeNs restart_after) {
  SimWorker& process = newest(worker);
  if (!process.alive() || process.over()) return;
  const uint64_t incarnation = process.incarnation();
  process.kill();
  if (incarnation != 0) expect_removal(process.number(), incarnation);
  if (!world_.scenario.restarts) return;
  ++starts_to_come_;
  world_.scheduler.after(restart_after, [this, worker] {
    --starts_to_come_;
    restart_worker(worker);
  });
}

/// Checks later that the dead worker has left the table. The limit is dead_after and a few heartbeats of a calm
/// network. It may stay as the only member.
void Cluster::expect_removal(uint32_t process, uint64_t incarnation) {
  const TimeNs from = std::max(world_.scheduler.now(), calm_from_);
  const TimeNs bound =
      from + (world_.scenario.spec.dead_after.count() + 5 * world_.scenario.spec.heartbeat.count()) * kNsPerMs +
      kNsPerS;
  world_.scheduler.at(bound, [this, process, incarnation] {
    const bool moot = world_.oracle.views().empty() || a_shard_fell() || all_over();
    if (moot || was_removed(world_.workers[process]->worker(), incarnation)) return;
    const protocol::Membership& membership = world_.oracle.views().rbegin()->second;
    if (membership.finished || membership.members.size() == 1) return;
    world_.fault(world_.workers[process]->name() + " is dead and still a member");
  });
}

bool Cluster::was_removed(uint32_t worker, uint64_t incarnation) const {
  if (world_.oracle.views().empty()) return false;
  const auto& members = world_.oracle.views().rbegin()->second.members;
  return std::none_of(members.begin(), members.end(), [&](const protocol::Member& member) {
    return member.worker == worker && member.incarnation == incarnation;
  });
}

void Cluster::check_law() {
  ++law_checks_;
  for (const auto& worker : world_.workers) worker->check_law();
  for (const auto& shard : world_.shards) shard->check_store();
}

bool Cluster::all_over() const {
  return starts_to_come_ == 0 && std::all_of(world_.workers.begin(), world_.workers.end(), [](const auto& worker) {
           return worker->core() != nullptr && worker->over();
         });
}

bool Cluster::a_shard_fell() const {
  return std::any_of(world_.shards.begin(), world_.shards.end(),
                     [](const auto& shard) { return shard->was_killed() || shard->was_shut_down(); });
}

bool Cluster::a_shard_is_gone() const {
  return std::any_of(world_.shards.begin(), world_.shards.end(), [](const auto& shard) {
    return (shard->was_shut_down() || shard->was_killed()) && !shard->alive();
  });
}

/// R8c: Returns whether too few members can answer a shard that restarted empty, which waits for half of the members.
/// One that finished or died, and is still a member, never answers.
bool Cluster::too_few_for_a_successor() const {
  const auto& views = world_.oracle.views();
  if (views.empty() || !a_shard_fell()) return false;
  const auto& members = views.rbegin()->second.members;
  const auto is_there = [this](const protocol::Member& member) {
    return std::any_of(world_.workers.begin(), world_.workers.end(), [&](const auto& worker) {
      return worker->alive() && worker->worker() == member.worker && worker->incarnation() == member.incarnation &&
             worker->core()->phase() != Phase::kFinished && !worker->has_left();
    });
  };
  return 2 * std::count_if(members.begin(), members.end(), is_there) < static_cast<int64_t>(members.size());
}

bool Cluster::below_minimum() const {
  const auto& views = world_.oracle.views();
  return !views.empty() && views.rbegin()->second.started &&
         views.rbegin()->second.members.size() < world_.scenario.spec.workers_min;
}

/// Returns whether the job has started, which needs that all have joined once. A worker that died earlier leaves the
/// others waiting; their caller must end that.
bool Cluster::job_can_start() const {
  const auto& views = world_.oracle.views();
  return !views.empty() &&
         std::any_of(views.begin(), views.end(), [](const auto& membership) { return membership.second.started; });
}

/// Returns whether a store may be lost. A killed shard finds its weights again where it saves, and while members retain
/// the updates after the save. A cut goes back behind them.
bool Cluster::store_may_be_lost() const {
  const Scenario& scenario = world_.scenario;
  if (!scenario.spec.has_store()) return false;
  const bool cut =
      std::ranges::any_of(world_.oracle.views(), [](const auto& membership) { return membership.second.cut != 0; });
  if (!a_shard_fell() && !cut) return false;
  if (!scenario.store_saves || scenario.disk_fails > 0 || scenario.job_memory_bytes > 0) return true;
  return std::ranges::any_of(world_.oracle.views(), [](const auto& membership) {
    return std::ranges::any_of(membership.second.members,
                               [](const protocol::Member& one) { return one.incarnation > 1; });
  });
}

bool Cluster::has_successor(const SimWorker& process) const {
  return std::ranges::any_of(world_.workers, [&process](const auto& other) {
    return other.get() != &process && other->worker() == process.worker();
  });
}

/// R10f: Returns whether the process lacks a step of some worker that finished, `unheard` with a Goodbye that was lost.
bool Cluster::lacks_finished_steps(const SimWorker& process, bool unheard) const {
  return std::ranges::any_of(world_.workers, [&](const auto& other) {
    if (other->core() == nullptr || other->has_left() || other->core()->phase() != Phase::kFinished) return false;
    if (unheard && !left_unheard(*other)) return false;
    return std::ranges::any_of(world_.layout.parts, [&](const protocol::PartLayout& part) {
      return !world_.oracle.is_on_path(part.part, other->at(part.part), process.at(part.part));
    });
  });
}

/// R10f: Returns whether a killed process had not finished, and nothing has its number now. The shards wait for it: it
/// may have the steps that a worker lacks.
bool Cluster::lost_worker_may_return() const {
  return std::ranges::any_of(world_.workers, [this](const auto& other) {
    return !other->alive() && (other->core() == nullptr || other->core()->phase() != Phase::kFinished) &&
           !has_successor(*other);
  });
}

bool Cluster::was_member_at_the_end(const SimWorker& process) const {
  const auto& views = world_.oracle.views();
  return !views.empty() && views.rbegin()->second.finished &&
         server::is_member(views.rbegin()->second, process.worker(), process.incarnation());
}

/// Returns the one code with which the process may end. Empty: it ended before its job, or the job was not its own any
/// more.
std::optional<ErrorCode> Cluster::code_of_the_end(const SimWorker& process) const {
  const bool later = process.over_at() > world_.job_ended_at && process.core()->membership().job == world_.job;
  if (!later || process.has_left() || world_.scenario.link.corruption > 0) return {};
  const ErrorCode code = process.core()->error()->code;
  // No shard that knew the end was left to answer.
  const bool none_is_left = std::ranges::none_of(world_.shards, [](const auto& shard) { return shard->alive(); });
  if (code == ErrorCode::kTimeout && none_is_left && process.heard_at() < world_.job_ended_at) return {};
  const bool replaced = code == ErrorCode::kIdentityInUse && has_successor(process);
  if (replaced || (!was_member_at_the_end(process) && !world_.scenario.may_rejoin())) return {};
  return world_.job_end_code;
}

/// Returns whether the fault concerns a shard, the table, or this worker's process or links.
bool Cluster::reaches(const SimFault& fault, const SimWorker& process) const {
  const uint32_t own = world_.worker_node(process.worker());
  const auto is_shard = [this](uint32_t node) { return node < world_.scenario.shards; };
  switch (fault.kind) {
    case Kind::kPartition:
    case Kind::kOneWay: return fault.a == own || fault.b == own || (is_shard(fault.a) && is_shard(fault.b));
    case Kind::kIsolate:
    case Kind::kStall: return fault.a == own || is_shard(fault.a);
    case Kind::kDisconnect:
    case Kind::kKillWorker:
    case Kind::kLeave:
    case Kind::kRestartWorker: return fault.a == process.worker();
    case Kind::kKillAllWorkers:
    case Kind::kKillShard:
    case Kind::kShutdownShard:
    case Kind::kTableFails:
    case Kind::kTableAway:
    case Kind::kTableMaybe:
    case Kind::kTableSlow: return true;
  }
  return true;
}

bool Cluster::explained(const SimWorker& process) const {
  // Too few are left; or bytes were altered on the way, which TCP all but excludes: no wrong sum and no hang is enough.
  if (below_minimum() || world_.scenario.link.corruption > 0 || process.has_left()) return true;
  const bool second = &process != world_.workers[process.worker()].get();
  const bool removed = may_silence_workers(world_.scenario) && was_removed(process.worker(), process.incarnation());
  const bool job_ended = !world_.oracle.views().empty() && world_.oracle.views().rbegin()->second.finished;
  // A worker that cannot take weights over can rejoin only where the updates that it lacks are retained. No worker
  // returns to a job whose other workers have finished.
  const bool no_return = !world_.scenario.may_rejoin() || (job_ended && !world_.job_end_code);
  switch (process.core()->error()->code) {
    case ErrorCode::kNotAMember: return no_return && (second || a_shard_fell() || removed);
    case ErrorCode::kUnsupported:
    case ErrorCode::kShardLost: return !world_.scenario.may_rejoin() || too_few_for_a_successor();
    // A shard that was shut down ended the job, and a Hello that was on its way began another one of its name.
    case ErrorCode::kShardMapMismatch:
      return std::ranges::find(world_.scenario.faults, Kind::kShutdownShard, &SimFault::kind) !=
             world_.scenario.faults.end();
    // Its place may be another process's by now.
    case ErrorCode::kTimeout:
      return a_shard_is_gone() || too_few_for_a_successor() || has_successor(process) ||
             (world_.scenario.spec.mode == protocol::Mode::kSynchronous &&
              (lacks_finished_steps(process, true) || (lost_worker_may_return() && lacks_finished_steps(process))));
    case ErrorCode::kIdentityInUse: return second || has_successor(process) || world_.scenario.hostile > 0;
    case ErrorCode::kUnavailable:
      return world_.job_end_code == ErrorCode::kUnavailable ||
             std::ranges::any_of(world_.scenario.faults,
                                 [&](const SimFault& fault) { return reaches(fault, process); });
    case ErrorCode::kStale: return job_ended && lacks_finished_steps(process);
    case ErrorCode::kIo: return store_may_be_lost();
    case ErrorCode::kLimitExceeded: return world_.scenario.job_memory_bytes > 0;
    default: return false;
  }
}

void Cluster::judge_worker(const SimWorker& process) {
  if (!process.alive()) return;
  if (process.core()->phase() == Phase::kFinished) return;
  if (process.core()->phase() == Phase::kEnded) {
    const std::optional<ErrorCode> end = code_of_the_end(process);
    if (end && process.core()->error()->code != *end)
      world_.fault(process.name() + " did not end as its job, with " + std::string(error_code_name(*end)) + ": " +
                   process.core()->error()->message);
    if (!explained(process))
      world_.fault(process.name() + " ended without a reason in the scenario: " + process.core()->error()->message);
    return;
  }
  // A run that a fault cut short has not hung.
  if (!job_can_start() || !world_.faults.empty() || !world_.oracle.faults().empty()) return;
  world_.fault(process.name() + " hangs: " + process.core()->waiting_for());
}

/// When all that took part have finished, and nothing was in the way of their goodbyes, the job's name is free again.
void Cluster::check_name_is_free() {
  if (!world_.scenario.faults.empty() || world_.scenario.link.loss > 0 || world_.scenario.link.corruption > 0) return;
  if (world_.scenario.hostile > 0) return;  // a stranger may be in the place of one that has finished
  const auto open = world_.table->read_job(world_.scenario.spec.name);
  if (open && open->has_value()) world_.fault("all workers have finished and the job is still open");
}

/// Returns whether the table removed the process otherwise than as finished. No shard heard its Goodbye then.
bool Cluster::left_unheard(const SimWorker& process) const {
  const auto& views = world_.oracle.views();
  const auto has_it = [&process](const auto& membership) {
    return server::is_member(membership.second, process.worker(), process.incarnation());
  };
  const auto last = std::ranges::find_if(views.rbegin(), views.rend(), has_it);
  return last != views.rbegin() && last != views.rend() && std::prev(last)->second.left == last->second.left;
}

/// R10f: The models of workers that finished are of one log, in mode synchronous: no step of one is void for another.
void Cluster::check_finished_agree() {
  if (world_.scenario.spec.mode != protocol::Mode::kSynchronous) return;
  std::map<std::pair<uint64_t, uint32_t>, std::set<LogPosition>> places;  // by job and part
  for (const auto& worker : world_.workers) {
    const bool finished = worker->alive() && worker->core() != nullptr && !worker->has_left() &&
                          worker->core()->phase() == Phase::kFinished && !left_unheard(*worker);
    for (uint32_t part = 0; finished && part < world_.layout.parts.size(); ++part) {
      places[{worker->core()->membership().job, part}].insert(worker->at(part));
    }
  }
  for (const auto& [key, ends] : places) {
    for (auto later = ends.begin(); later != ends.end(); ++later) {
      if (later == ends.begin() || world_.oracle.is_on_path(key.second, *std::prev(later), *later)) continue;
      world_.fault("part " + std::to_string(key.second) + ": two workers finished with models of different logs");
    }
  }
}

void Cluster::judge() {
  check_law();
  check_finished_agree();
  for (const auto& worker : world_.workers) {
    judge_worker(*worker);
    if (worker->core() != nullptr && worker->alive() && worker->core()->phase() == Phase::kFinished &&
        !worker->has_left())
      worker->check_finished();
  }
  for (const auto& sentence : world_.oracle.faults()) world_.fault(sentence);
  for (const auto& sentence : world_.network.byte_faults()) world_.fault("message bytes: " + sentence);
}

SimReport Cluster::report() const {
  SimReport report;
  report.faults = world_.faults;
  report.trace_hash = world_.scheduler.trace_hash();
  report.events = world_.scheduler.events_run();
  report.steps_decided = world_.oracle.steps_decided();
  report.law_checks = law_checks_;
  report.virtual_time = world_.scheduler.now();
  for (const auto& worker : world_.workers) {
    if (worker->was_killed()) ++report.killed;
    if (!worker->alive() || worker->core() == nullptr) continue;
    if (worker->core()->phase() == Phase::kFinished) {
      ++report.finished;
      if (report.first_finished == 0 || worker->over_at() < report.first_finished)
        report.first_finished = worker->over_at();
    }
    if (worker->core()->phase() != Phase::kEnded) continue;
    ++report.ended;
    if (worker->core()->error()->code == ErrorCode::kIo) report.stores_lost = 1;
  }
  for (const auto& worker : world_.workers) {
    if (worker->core() == nullptr) continue;
    const worker::CoreCounters& counters = worker->core()->counters();
    report.returns += counters.returns;
    report.shortened += counters.history_shortened;
    report.shortened_refused += counters.history_refused;
    for (const auto& bucket : world_.layout.buckets) {
      for (const double value : worker->core()->ledger(bucket.bucket)) report.lost += std::fabs(value);
    }
  }
  report.steps_void = world_.oracle.steps_void();
  report.updates_merged = world_.oracle.updates_merged();
  for (auto membership = world_.oracle.views().begin(); membership != world_.oracle.views().end(); ++membership)
    report.cuts += membership->second.cut == membership->first ? 1 : 0;
  for (const auto& shard : world_.shards) {
    report.removed += static_cast<uint32_t>(shard->removed());
    report.refused += shard->refused();
    report.digests_agreed += shard->digests_agreed();
    report.store_checks += shard->store_checks();
    report.stores_found_again += shard->stores_found_again();
    report.shard_restarts += shard->incarnation() > 1 ? shard->incarnation() - 1 : 0;
  }
  return report;
}

SimReport Cluster::run() {
  start();
  // With little memory every step is slow, and one that does not fit ends the job only then.
  const uint32_t patience_ms = world_.scenario.job_memory_bytes > 0 ? server::Limits{}.abandon_ms : 0;
  const TimeNs limit = calm_from_ + kProgressBound + static_cast<TimeNs>(patience_ms) * kNsPerMs;
  uint64_t next_check = 50;
  size_t oracle_faults = 0;
  while (!world_.scheduler.idle() && world_.scheduler.next_time() <= limit && world_.faults.empty()) {
    if (all_over() && (world_.scenario.stop_when_over || world_.scheduler.now() >= calm_from_)) break;
    world_.scheduler.step();
    if (world_.scheduler.events_run() >= next_check) {
      next_check += 1 + world_.scheduler.dice().next_below(2 * kLawCheckEvery);
      check_law();
    }
    if (world_.oracle.faults().size() == oracle_faults) continue;
    oracle_faults = world_.oracle.faults().size();
    break;
  }
  const bool finished = all_over();
  judge();
  // The last goodbyes are still on their way.
  const TimeNs settled = world_.scheduler.now() + 10 * kNsPerS;
  while (world_.faults.empty() && finished && !world_.scheduler.idle() && world_.scheduler.next_time() <= settled)
    world_.scheduler.step();
  if (finished && world_.faults.empty()) check_name_is_free();
  return report();
}

}  // namespace

SimReport run_cluster(const Scenario& scenario, SimTrace trace) { return Cluster(scenario, trace).run(); }

}  // namespace millrace::testing
