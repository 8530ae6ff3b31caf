#include <fmt/format.h>

#include "tests/models/rounds/invariants.h"
#include "tests/models/rounds/moves.h"

namespace millrace::model {

namespace {

std::string update_text(const Update& update) {
  std::string by;
  for (int w = 0; w < kWorkers; ++w)
    if (update.life_of(w)) by += fmt::format("{}{} ", name_of(w), update.life_of(w));
  return fmt::format("[by {}{} {}, decided in epoch {}]", by, update.carried ? "carries" : "carries nothing of",
                     text_of(static_cast<Mass>(update.mass)), static_cast<int>(update.epoch));
}

std::string of_part(int part) { return kParts > 1 ? fmt::format(" of part {}", part) : ""; }

std::string move_of_worker(const State& before, const State& after, const Action& act) {
  const Worker& was = before.worker[act.actor];
  const Worker& is = after.worker[act.actor];
  const std::string who = fmt::format("{}{}", name_of(act.actor), was.incarnation);
  const std::string part = of_part(act.part);
  const WorkerPart& mine = is.part[act.part];
  switch (act.move) {
    case Move::kPush:
      return fmt::format("{} computes step {}{}, sends {} in epoch {}", who, act.a, part,
                         text_of(mine.outstanding[act.a]), was.view);
    case Move::kResend: return fmt::format("{} sends step {}{} again, in epoch {}", who, act.a, part, was.view);
    case Move::kEmpty: return fmt::format("{} has nothing for step {}{}, and reports it", who, act.a, part);
    case Move::kDeliver:
    case Move::kDeliverMerged:
      return fmt::format("{} (epoch {}) applies update {}{} sent in epoch {}: {}{}", who, was.view, act.a, part, act.b,
                         update_text(mine.weights[act.a]),
                         act.move == Move::kDeliver ? "" : ", as the last of a sum: it keeps none of them");
    case Move::kSave:
      return act.a ? fmt::format("{} saves its part {} (n = {})", who, act.part, mine.next)
                   : fmt::format("{} saves its state (n = {})", who, is.part[0].next);
    case Move::kReadTable:
      return fmt::format("{} reads the table: {}", who,
                         is.standing == Standing::kRemoved ? "it was removed" : "a new epoch");
    case Move::kCrash: return who + " crashes";
    case Move::kRestart:
      return fmt::format("{} restarts as incarnation {} from its save (n = {}, residual {}), epoch {}",
                         name_of(act.actor), is.incarnation, is.part[0].next, text_of(is.part[0].residual), is.view);
    case Move::kRejoin:
      return fmt::format("{} joins again as incarnation {}, epoch {}", name_of(act.actor), is.incarnation, is.view);
    case Move::kAnnounce:
      return fmt::format("{} tells the table that it takes part from step {} on", who, after.table.first[act.actor]);
    case Move::kSnapshot:
      return fmt::format("{} gives {} its weights{} (n = {})", name_of(act.a), name_of(act.actor), part,
                         after.snapshot[act.actor][act.part].next);
    case Move::kTakeSnapshot:
      return fmt::format("{} settles its account{}, takes the snapshot: n = {}, residual {}", who, part, mine.next,
                         text_of(mine.residual));
    case Move::kGoOn:
      return fmt::format("{} settles its account{}, continues with its own weights: n = {}, residual {}", who, part,
                         mine.next, text_of(mine.residual));
    case Move::kApply:
      return fmt::format("{} hears in epoch {} that k members have them: its application has the updates{} below {}",
                         who, was.view, part, mine.applied);
    default:
      return fmt::format("{} is too far behind, takes weights{} of {}: n = {}, residual {}, ledger {}", who, part,
                         name_of(act.a), mine.next, text_of(mine.residual), text_of(mine.ledger));
  }
}

std::string move_of_shard(const State& before, const State& after, const Action& act) {
  const std::string who =
      kParts > 1 ? fmt::format("shard {} of part {}", act.actor + 1, act.part) : fmt::format("shard {}", act.actor + 1);
  const Shard& was = before.shard[act.part][act.actor];
  const Shard& is = after.shard[act.part][act.actor];
  switch (act.move) {
    case Move::kAdmit: {
      const int w = act.a / kSteps, step = act.a % kSteps;
      return fmt::format("{} (epoch {}) admits {}'s {} to step {}", who, was.view, name_of(w),
                         text_of(static_cast<Mass>(is.open[step][w].mass)), step);
    }
    case Move::kDecide: return fmt::format("{} decides step {}: {}", who, act.a, update_text(is.log[act.a]));
    case Move::kServe: return fmt::format("{} serves update {} again, in epoch {}", who, act.a, was.view);
    case Move::kAck: return fmt::format("{} hears that {} has n = {}", who, name_of(act.a), is.acked[act.a]);
    case Move::kForget: return fmt::format("{}: memory ends, update {} is forgotten everywhere", who, act.a);
    case Move::kCollect:
      return fmt::format("{} collects from {} (n = {})", who, name_of(act.a), before.worker[act.a].part[act.part].next);
    case Move::kActivate: return fmt::format("{} is active, steps below {} are decided", who, is.decided);
    case Move::kCut: return fmt::format("{} cuts to {}'s state, n = {}", who, name_of(act.a), is.decided);
    case Move::kCutToStore: return fmt::format("{} cuts to the stores' saves, n = {}", who, is.decided);
    case Move::kShardReadsTable:
      return fmt::format("{} reads the table: {}", who,
                         is.up ? fmt::format("epoch {}", is.view) : "it was replaced, and stops");
    case Move::kShardCrash: return who + " crashes";
    case Move::kTakeover: {
      constexpr std::array<std::string_view, 3> kOld{"the old one lives", "the old one is dead",
                                                     "no worker keeps the updates that all need"};
      return fmt::format("{} starts empty ({}), epoch {}", who, kOld[act.a], after.table.epoch);
    }
    case Move::kStoreSave: return fmt::format("{} saves its store at {}", who, act.a);
    case Move::kStoreFetch: return fmt::format("{} takes weights for its store from {}", who, name_of(act.a));
    default: return fmt::format("{} gives {} the store's weights (n = {})", who, name_of(act.a), was.decided);
  }
}

}  // namespace

std::string describe(const State& before, const State& after, const Action& act) {
  if (act.move == Move::kRaiseEpoch) return fmt::format("epoch {} for another reason", after.table.epoch);
  if (act.move == Move::kRemove)
    return fmt::format("{} ({}) is removed, epoch {}", name_of(act.actor), act.a ? "dead" : "alive", after.table.epoch);
  return act.move < Move::kAdmit ? move_of_worker(before, after, act) : move_of_shard(before, after, act);
}

}  // namespace millrace::model
