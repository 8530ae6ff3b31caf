// What workers do: R1, R4, R7b and the beginning of R9.

#include "tests/models/rounds/moves.h"

namespace millrace::model {

void Moves::moves_of_worker(int w) {
  const Worker& me = worker(w);
  if (synced(me)) {
    for (int part = 0; part < kParts; ++part) {
      push(w, part);
      resend(w, part);
      send_empty(w, part);
      deliver(w, part);
      apply_held(w, part);
    }
    save(w);
    announce(w);
  }
  read_table(w);
  rejoin(w);
  crash_and_restart(w);
  remove(w);
  for (int part = 0; part < kParts; ++part) {
    moves_of_returning(w, part);
    resync(w, part);
  }
}

void Moves::send(Successor& next, int w, int part, int step, Contribution contribution) const {
  Contribution& slot = next.state.contributions[next.state.worker[w].view][part][w][step];
  if (slot.incarnation != 0 && slot != contribution) next.violation = "IDENTITY: other bytes under the same identity";
  slot = contribution;
}

// A gradient needs the weights of all parts: so no part may be further behind than the staleness allows.
void Moves::push(int w, int part) {
  const Worker& me = worker(w);
  const WorkerPart& mine = me.part[part];
  if (mine.push >= kSteps) return;
  if (config_.asynchronous) {
    int in_flight = 0;
    for (int slot = 0; slot < kSteps; ++slot)
      in_flight += mine.outstanding[slot] != 0 && mine.sent_life[slot] == me.incarnation;
    if (in_flight > config_.staleness) return;
  } else {
    for (const WorkerPart& other : me.part)
      if (mine.push > pushable_from(other) + config_.staleness) return;
  }
  const int step = mine.push;
  Successor& next = add(Move::kPush, w, part, step);
  WorkerPart& after = next.state.worker[w].part[part];
  const Mass fresh = gradient(w, me.incarnation, step);
  after.entered |= fresh;
  after.outstanding[step] = after.residual | fresh;
  after.sent_life[step] = me.incarnation;
  after.residual = 0;
  ++after.push;
  send(next, w, part, step, {after.outstanding[step], me.incarnation});
}

void Moves::resend(int w, int part) {
  const Worker& me = worker(w);
  const WorkerPart& mine = me.part[part];
  const Shard& shard = now().current(part);
  for (int step = config_.asynchronous ? 0 : mine.next; step < mine.push; ++step) {
    const bool mine_to_send = mine.outstanding[step] != 0 && mine.sent_life[step] == me.incarnation;
    if (!mine_to_send || now().contributions[me.view][part][w][step].incarnation != 0) continue;
    // It would be answered, not admitted.
    if (shard.up && shard.active && !config_.asynchronous && step < shard.decided) continue;
    if (shard.up && shard.active && config_.asynchronous && already_counted(shard, w, me.incarnation, step)) continue;
    send(add(Move::kResend, w, part, step), w, part, step, {mine.outstanding[step], me.incarnation});
  }
}

// Sends empty contributions. Below the first step that it computes, a worker has no entries to send. The same holds
// where an older incarnation's contribution is still to be settled. Without the empty one, a step that only needs this
// worker would never be decided.
void Moves::send_empty(int w, int part) {
  const Worker& me = worker(w);
  const WorkerPart& mine = me.part[part];
  const Shard& shard = now().current(part);
  if (config_.asynchronous || !on(Rule::kEmpty) || !shard.up || !shard.active) return;
  for (int step = std::max(mine.next, shard.decided); step < mine.push; ++step) {
    if (mine.sent_life[step] == me.incarnation || now().contributions[me.view][part][w][step].incarnation != 0)
      continue;
    send(add(Move::kEmpty, w, part, step), w, part, step, {0, me.incarnation});
  }
}

void Moves::deliver(int w, int part) {
  const Worker& me = worker(w);
  const int step = me.part[part].next;
  if (step >= kSteps) return;
  for (int epoch = 1; epoch <= now().table.epoch; ++epoch) {
    if (on(Rule::kUpdateEpoch) && epoch != me.view) continue;
    const Update& update = now().updates[epoch][part][step];
    if (!update.decided) continue;
    apply_update(add(Move::kDeliver, w, part, step, epoch).state, w, part, epoch, update);
    if (!config_.merged) continue;
    // The last one of several that come as one: their bytes are those of a sum, of which a successor cannot give a
    // single one.
    State& state = add(Move::kDeliverMerged, w, part, step, epoch).state;
    apply_update(state, w, part, epoch, update);
    state.worker[w].part[part].kept = 0;
  }
}

void Moves::apply_update(State& state, int w, int part, int epoch, const Update& update) const {
  Worker& me = state.worker[w];
  WorkerPart& mine = me.part[part];
  const int step = mine.next;
  mine.weights[step] = update;
  settle_with(mine, w, step, update, true);
  ++mine.next;
  settle_old_lives(mine, me.incarnation);
  // The log branch is that of the activation to which this update belongs.
  if (on(Rule::kActivationLineage) && epoch >= state.table.activated[part]) {
    mine.branch = state.table.branch[part];
    if (!on(Rule::kPartLineage)) me.job_lineage = std::max(me.job_lineage, mine.branch);
  }
  if (on(Rule::kWorkersKeep)) mine.kept |= 1 << step;
  if (!config_.asynchronous) mine.push = std::max(mine.push, mine.next);
}

// A file: all parts in one cut, outstanding contributions "as if it had been returned".
void Moves::save(int w) {
  const Worker& me = worker(w);
  if (now().spent.saves >= at_most().saves) return;
  const auto save_part = [](Worker& saving, int part) {
    const WorkerPart& mine = saving.part[part];
    SavedPart& saved = saving.saved[part];
    saved = {mine.weights, mine.residual, mine.next, mine.branch};
    for (const Mass sent : mine.outstanding) saved.residual |= sent;
  };
  bool changed = !me.has_save;
  for (int part = 0; part < kParts; ++part) {
    const bool this_one =
        me.part[part].next != me.saved[part].next || me.part[part].residual != me.saved[part].residual;
    changed = changed || this_one;
    if (on(Rule::kOneCut) || (me.has_save && !this_one)) continue;
    State& state = add(Move::kSave, w, part, 1, 0, Kind::kFault).state;
    save_part(state.worker[w], part);
    state.worker[w].has_save = 1;
    state.worker[w].saved_job_lineage = me.job_lineage;
    ++state.spent.saves;
  }
  if (!changed || !on(Rule::kOneCut)) return;
  State& state = add(Move::kSave, w, 0, 0, 0, Kind::kFault).state;
  for (int part = 0; part < kParts; ++part) save_part(state.worker[w], part);
  state.worker[w].has_save = 1;
  state.worker[w].saved_job_lineage = me.job_lineage;
  ++state.spent.saves;
}

void Moves::read_table(int w) {
  const Worker& me = worker(w);
  if (!up(me) || me.standing == Standing::kRemoved || me.view >= now().table.epoch) return;
  Worker& after = add(Move::kReadTable, w).state.worker[w];
  if (now().table.member[w] == me.incarnation)
    after.view = now().table.epoch;
  else
    after.standing = Standing::kRemoved;
  if (on(Rule::kSettleEpoch)) after.settled = 0;
}

void Moves::crash_and_restart(int w) {
  const Worker& me = worker(w);
  if (up(me) && now().spent.worker_crashes < at_most().worker_crashes) {
    State& state = add(Move::kCrash, w, 0, 0, 0, Kind::kFault).state;
    Worker& after = state.worker[w];
    after.part = {};
    after.standing = Standing::kDown;
    after.settled = after.only_loaded = after.job_lineage = 0;
    ++state.spent.worker_crashes;
  }
  if (up(me) || me.incarnation >= kLives || !epoch_left()) return;
  State& state = add(Move::kRestart, w, 0, 0, 0, Kind::kRestart).state;
  Worker& after = state.worker[w];
  ++after.incarnation;
  after.standing = Standing::kLoaded;
  after.only_loaded = 1;
  after.job_lineage = me.saved_job_lineage;
  after.view = ++state.table.epoch;
  state.table.member[w] = after.incarnation;
  state.table.first[w] = config_.everyone ? kJoining : 0;
  for (int part = 0; part < kParts && me.has_save; ++part) {
    const SavedPart& saved = me.saved[part];
    WorkerPart& mine = after.part[part];
    mine.weights = saved.weights;
    mine.residual = saved.residual;
    mine.next = saved.next;
    mine.branch = saved.branch;
    mine.push = config_.asynchronous ? 0 : saved.next;
  }
  if (on(Rule::kRestartJoins) || !me.has_save) return;
  after.standing = Standing::kSynced;
  for (WorkerPart& mine : after.part) mine.entered = mine.residual;
}

void Moves::rejoin(int w) {
  const Worker& me = worker(w);
  if (me.standing != Standing::kRemoved || !epoch_left()) return;
  if (on(Rule::kNewIncarnation) && me.incarnation >= kLives) return;
  State& state = add(Move::kRejoin, w).state;
  Worker& after = state.worker[w];
  after.standing = Standing::kSynced;
  if (on(Rule::kNewIncarnation)) {
    ++after.incarnation;
    // A state that was loaded and never settled stays so, under any number of incarnations.
    const bool loaded = on(Rule::kLoadedStays) && me.only_loaded;
    after.standing = loaded ? Standing::kLoaded : Standing::kEvicted;
  }
  after.view = ++state.table.epoch;
  state.table.member[w] = after.incarnation;
  state.table.first[w] = config_.everyone && on(Rule::kNewIncarnation) ? kJoining : 0;
}

// Tells the table from which step on a step that waits for every member waits for this one too.
void Moves::announce(int w) {
  const Worker& me = worker(w);
  if (now().table.first[w] != kJoining || now().table.member[w] != me.incarnation || !epoch_left()) return;
  State& state = add(Move::kAnnounce, w).state;
  int first = 0;
  if (!on(Rule::kEmpty))
    for (const WorkerPart& mine : me.part) first = std::max<int>(first, mine.push);
  state.table.first[w] = static_cast<uint8_t>(first);
  ++state.table.epoch;
}

void Moves::remove(int w) {
  const Worker& me = worker(w);
  const auto& members = now().table.member;
  if (members[w] == 0 || !epoch_left()) return;
  bool alone = true;
  for (int other = 0; other < kWorkers; ++other) alone = alone && (other == w || members[other] == 0);
  if (alone) return;
  const auto removed = [w](State& state) {
    state.table.member[w] = state.table.first[w] = 0;
    ++state.table.epoch;
  };
  if (!up(me) || me.incarnation != members[w]) {
    removed(add(Move::kRemove, w, 0, 1).state);
    return;
  }
  if (me.incarnation >= kLives) return;
  if (synced(me) && now().spent.removals < at_most().removals) {
    State& state = add(Move::kRemove, w, 0, 0, 0, Kind::kFault).state;
    ++state.spent.removals;
    removed(state);
  }
  if (returning(me) && now().spent.joiner_removals < at_most().joiner_removals) {
    State& state = add(Move::kRemove, w, 0, 0, 0, Kind::kFault).state;
    ++state.spent.joiner_removals;
    removed(state);
  }
}

}  // namespace millrace::model
