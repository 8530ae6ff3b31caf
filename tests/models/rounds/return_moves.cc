// Coming (back) in, and catching up: R6, R9.

#include "tests/models/rounds/moves.h"

namespace millrace::model {

namespace {

/// Whether the first `length` entries of `mine` are where `theirs`, of `their_length`, has the same.
bool is_prefix(const Log& mine, int length, const Log& theirs, int their_length, bool positions) {
  if (length > their_length) return false;
  // The facts that the protocol can see: the length, and the epoch in which the last step was decided.
  if (positions) return length == 0 || mine[length - 1].epoch == theirs[length - 1].epoch;
  return std::equal(mine.begin(), mine.begin() + length, theirs.begin());
}

}  // namespace

// Without the rule for a branch per part: whether a state that is on the part's log is dropped all the same. The cause
// is that another part's activation began the job's log branch, and that the worker's branch is not an ancestor of it.
bool Moves::is_dropped_needlessly(const State& state, int w, int part) const {
  if (on(Rule::kPartLineage) || !on(Rule::kLineage) || !on_log(state, w, part, state.current(part))) return false;
  for (int at = state.table.branches;; at = state.table.job_parent[at]) {
    if (at == state.worker[w].job_lineage) return false;
    if (at == 0) return true;
  }
}

bool Moves::is_ancestor(const Table& table, int part, int branch) const {
  if (!on(Rule::kLineage)) return true;
  for (int at = table.branch[part];; at = table.parent[part][at]) {
    if (at == branch) return true;
    if (at == 0) return false;
  }
}

bool Moves::on_log(const State& state, int w, int part, const Shard& shard) const {
  const WorkerPart& mine = state.worker[w].part[part];
  return is_prefix(mine.weights, mine.next, shard.log, shard.decided, config_.positions) &&
         is_ancestor(state.table, part, mine.branch);
}

// R9d: with its own weights, because the part's shard keeps all that they lack.
bool Moves::can_go_on(int w, int part) const {
  const Shard& shard = now().current(part);
  if (!on_log(now(), w, part, shard)) return false;
  for (int step = worker(w).part[part].next; step < shard.decided; ++step)
    if (!(shard.kept >> step & 1)) return false;
  return true;
}

// A part whose shard is dead or collecting is not judged here: its successor will find no synced member, and cut.
bool Moves::can_go_on_everywhere(int w) const {
  for (int part = 0; part < kParts; ++part) {
    const Shard& shard = now().current(part);
    if (shard.up && shard.active && !shard.has_weights && !can_go_on(w, part)) return false;
  }
  return true;
}

// The account of one part, against the log of its active shard; then the weights: a snapshot's, or its own.
void Moves::settle(Successor& successor, int w, int part, const Log& weights, int next, int kept) const {
  State& state = successor.state;
  if (is_dropped_needlessly(state, w, part))
    successor.violation = "NEEDLESS LOSS: a state on the log of its part is dropped";
  Worker& me = state.worker[w];
  WorkerPart& mine = me.part[part];
  const Shard& shard = state.current(part);
  const bool mine_is_on_log = on_log(state, w, part, shard);
  Log taken = weights;
  if (on(Rule::kKeepAhead) && mine_is_on_log && mine.next >= next) {
    taken = mine.weights;
    next = mine.next;
    kept = mine.kept;
  }
  const bool usable = mine_is_on_log || !on(Rule::kOnLog);
  if (!usable) mine.applied = 0;
  if (me.standing == Standing::kLoaded) {
    if (!usable || (on(Rule::kResidualOnce) && counted_since(shard, w, mine.next))) mine.residual = 0;
    mine.outstanding.fill(0);
    mine.entered = mine.residual;
    mine.ledger = 0;
  } else if (!usable) {
    mine.residual = mine.entered = mine.ledger = 0;
    mine.outstanding.fill(0);
  } else if (config_.asynchronous) {
    settle_expelled_asynchronous(mine, w, next, kept, shard);
  } else {
    settle_expelled(mine, w, next, kept, shard);
  }
  const bool by_shard = kShardsKnowLineage && on(Rule::kSettleLineage);
  mine.branch = by_shard ? shard.branch : state.table.branch[part];
  mine.next = static_cast<uint8_t>(next);
  mine.weights = taken;
  for (int step = next; step < kSteps; ++step) mine.weights[step] = {};
  mine.kept = static_cast<uint8_t>(on(Rule::kWorkersKeep) && on(Rule::kSnapshotKept) ? kept : 0);
  settle_old_lives(mine, me.incarnation);
  me.settled |= 1 << part;
  if (me.settled != (1 << kParts) - 1) return;
  become_synced(state, w);
  if (!on(Rule::kPartLineage)) me.job_lineage = state.table.branches;
}

// R9e: it takes part from one step on, the same in all parts.
void Moves::become_synced(State& state, int w) const {
  Worker& me = state.worker[w];
  me.standing = Standing::kSynced;
  me.settled = me.only_loaded = 0;
  int first = 0;
  for (WorkerPart& mine : me.part) {
    mine.push = config_.asynchronous ? 0 : mine.next;
    for (int step = 0; step < kSteps; ++step)
      if (mine.outstanding[step] != 0) mine.push = std::max<uint8_t>(mine.push, static_cast<uint8_t>(step + 1));
    first = std::max<int>(first, mine.push);
    mine.first = config_.asynchronous ? mine.push : uint8_t{0};
  }
  if (config_.asynchronous || !on(Rule::kFirstStep)) return;
  for (WorkerPart& mine : me.part) mine.push = static_cast<uint8_t>(first);
}

void Moves::moves_of_returning(int w, int part) {
  const Worker& me = worker(w);
  const Shard& shard = now().current(part);
  if (!returning(me) || (me.settled >> part & 1)) return;
  if (!shard.up || !shard.active || shard.member[w] != me.incarnation || shard.view != me.view) return;
  const Snapshot& here = now().snapshot[w][part];
  for (int giver = 0; giver < kWorkers; ++giver) {
    const Worker& other = worker(giver);
    if (giver == w || !synced(other) || other.view != me.view || shard.member[giver] != other.incarnation) continue;
    const WorkerPart& theirs = other.part[part];
    if (here.view == me.view && here.next >= theirs.next) continue;
    Snapshot& sent = add(Move::kSnapshot, w, part, giver).state.snapshot[w][part];
    sent = {theirs.weights, me.view, theirs.next, theirs.kept, 0};
  }
  if (here.view != 0 && (here.view == me.view || !on(Rule::kSnapshotEpoch)))
    settle(add(Move::kTakeSnapshot, w, part), w, part, here.weights, here.next, here.kept);
  if (on(Rule::kGoOn) && can_go_on(w, part)) {
    const WorkerPart& mine = me.part[part];
    settle(add(Move::kGoOn, w, part), w, part, mine.weights, mine.next, mine.kept);
  }
}

// A live member is too far behind: no process has the bytes that it needs next.
void Moves::resync(int w, int part) {
  const Worker& me = worker(w);
  const WorkerPart& mine = me.part[part];
  const Shard& shard = now().current(part);
  if (!synced(me) || !shard.up || !shard.active || shard.member[w] != me.incarnation || shard.view != me.view) return;
  if (mine.next >= shard.decided || (shard.kept >> mine.next & 1)) return;
  if (now().updates[me.view][part][mine.next].decided) return;
  for (int giver = 0; giver < kWorkers; ++giver) {
    const Worker& other = worker(giver);
    const WorkerPart& theirs = other.part[part];
    if (giver == w || !synced(other) || other.view != me.view || shard.member[giver] != other.incarnation) continue;
    if (theirs.next <= mine.next) continue;
    WorkerPart& after = add(Move::kResync, w, part, giver).state.worker[w].part[part];
    for (int index = mine.next; index < theirs.next; ++index) {
      settle_with(after, w, index, shard.log[index], (shard.kept | theirs.kept) >> index & 1);
      after.weights[index] = theirs.weights[index];
    }
    after.next = theirs.next;
    settle_old_lives(after, me.incarnation);
    if (!config_.asynchronous) after.push = std::max(after.push, after.next);
    after.kept = on(Rule::kWorkersKeep) && on(Rule::kSnapshotKept) ? theirs.kept : uint8_t{0};
  }
}

}  // namespace millrace::model
