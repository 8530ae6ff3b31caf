// A shard's end and its successor, the cut, and reading the table: R7, R8, R10.

#include "tests/models/rounds/moves.h"

namespace millrace::model {

// Answering moves the worker into the successor's epoch permanently.
void Moves::collect(int part, int incarnation) {
  const Shard& shard = now().shard[part][incarnation];
  for (int w = 0; w < kWorkers; ++w) {
    const Worker& other = worker(w);
    if (shard.member[w] == 0 || (shard.answered >> w & 1) || !up(other) || other.standing == Standing::kRemoved)
      continue;
    if (other.incarnation != shard.member[w] || other.view > shard.view) continue;
    State& state = add(Move::kCollect, incarnation, part, w).state;
    Shard& after = state.shard[part][incarnation];
    Worker& answering = state.worker[w];
    if (on(Rule::kCollectFence)) {
      if (answering.view != shard.view && on(Rule::kSettleEpoch)) answering.settled = 0;
      answering.view = shard.view;
    }
    after.answered |= 1 << w;
    if (!synced(other)) continue;
    const WorkerPart& theirs = other.part[part];
    after.synced_answers |= 1 << w;
    after.parent = std::max(after.parent, theirs.branch);
    if (!on(Rule::kPartLineage)) after.job_parent = std::max(after.job_parent, other.job_lineage);
    for (; after.decided < theirs.next; ++after.decided) after.log[after.decided] = theirs.weights[after.decided];
    after.kept |= theirs.kept;
  }
}

// A new branch of the log: it may be shorter than the log that was decided before.
void Moves::activate(int part, int incarnation) {
  const Shard& shard = now().shard[part][incarnation];
  const bool is_judge = shard.view == now().table.epoch && now().is_current(part, incarnation);
  if (on(Rule::kActivationLineage) && (!is_judge || now().table.branches + 1 >= kLineages)) return;
  bool all = true;
  for (int w = 0; w < kWorkers; ++w) all = all && (shard.member[w] == 0 || (shard.answered >> w & 1));
  if (shard.synced_answers == 0 || (!all && on(Rule::kCollectAll))) return;
  Successor& next = add(Move::kActivate, incarnation, part);
  State& state = next.state;
  Shard& after = state.shard[part][incarnation];
  Table& table = state.table;
  if (on(Rule::kActivationLineage)) {
    const uint8_t fresh = ++table.branches;
    table.branch[part] = fresh;
    table.parent[part][fresh] = shard.parent;
    table.job_parent[fresh] = shard.job_parent;
    table.activated[part] = table.epoch;
    if (kShardsKnowLineage) after.branch = fresh;
  }
  after.active = 1;
  after.answered = after.synced_answers = after.parent = after.job_parent = 0;
  if (config_.store) load_store(next, part, incarnation);
}

void Moves::cut_if_nobody_is_synced(int part, int incarnation) {
  const Shard& shard = now().shard[part][incarnation];
  if (shard.view != now().table.epoch || !now().is_current(part, incarnation) || shard.synced_answers != 0) return;
  bool any = false;
  for (int w = 0; w < kWorkers; ++w) {
    if (shard.member[w] == 0) continue;
    any = true;
    if (!(shard.answered >> w & 1)) return;
  }
  if (any) cut(part, incarnation);
}

// The shard lives, but all workers returned with older saves, and it does not keep the updates that they lack.
void Moves::cut_if_stranded(int part, int incarnation) {
  const Shard& shard = now().shard[part][incarnation];
  if (!on(Rule::kGoOn) || shard.view != now().table.epoch || !epoch_left()) return;
  bool any = false;
  for (int w = 0; w < kWorkers; ++w) {
    if (shard.member[w] == 0) continue;
    any = true;
    const Worker& other = worker(w);
    if (!returning(other) || other.incarnation != shard.member[w] || other.view != shard.view) return;
    if (on(Rule::kGoOnAllParts) ? can_go_on_everywhere(w) : shard.has_weights || can_go_on(w, part)) return;
  }
  if (any) cut(part, incarnation);
}

namespace {

/// How far a state is: of two branches the younger, of one branch the longer.
int reach_of(int branch, const Log& weights, int next, bool by_lineage) {
  const int epoch = next > 0 ? static_cast<int>(weights[next - 1].epoch) : 0;
  return ((by_lineage ? branch : 0) * 32 + epoch) * 8 + next;
}

using Reach = std::array<int, kParts>;

bool beats(const Reach& a, const Reach& b) {
  return a != b && std::equal(a.begin(), a.end(), b.begin(), [](int x, int y) { return x >= y; });
}

}  // namespace

// Chooses a state that no other state exceeds: none is further in one part and as far in the others.
void Moves::cut(int part, int incarnation) {
  const Shard& shard = now().shard[part][incarnation];
  if (now().table.branches + 1 >= kLineages || (on(Rule::kGoOn) && !epoch_left())) return;
  std::vector<Reach> states;
  std::array<Reach, kWorkers> of{};
  const bool by_lineage = on(Rule::kLineage);
  for (int w = 0; w < kWorkers; ++w) {
    if (!up(worker(w)) || shard.member[w] == 0 || shard.member[w] != worker(w).incarnation) continue;
    for (int p = 0; p < kParts; ++p) {
      const WorkerPart& mine = worker(w).part[p];
      of[w][p] = reach_of(mine.branch, mine.weights, mine.next, by_lineage);
    }
    states.push_back(of[w]);
  }
  Reach stores{};
  bool have_stores = config_.store;
  for (int p = 0; p < kParts; ++p) {
    const StoreSave& saved = now().store[p];
    have_stores = have_stores && saved.exists;
    stores[p] = reach_of(saved.branch, saved.weights, saved.decided, by_lineage);
  }
  if (have_stores) states.push_back(stores);
  const auto beaten = [&](const Reach& one) {
    return on(Rule::kCutNewest) && std::ranges::any_of(states, [&](const Reach& other) { return beats(other, one); });
  };
  for (int w = 0; w < kWorkers; ++w) {
    const Worker& other = worker(w);
    if (!up(other) || synced(other) || shard.member[w] == 0 || shard.member[w] != other.incarnation || beaten(of[w]))
      continue;
    cut_to_worker(part, incarnation, w);
  }
  if (have_stores && !beaten(stores)) cut_to_stores(part, incarnation);
}

void Moves::begin_cut(State& state, int part, int incarnation, std::span<const uint8_t> parents) const {
  Table& table = state.table;
  const uint8_t fresh = ++table.branches;
  for (int p = 0; p < kParts; ++p) {
    table.parent[p][fresh] = parents[p];
    table.branch[p] = fresh;
    table.activated[p] = table.epoch + 1;
  }
  // A new epoch, which fences the messages that were sent before.
  if (on(Rule::kGoOn)) ++table.epoch;
  table.cut = table.epoch;
  table.cut_lineage = fresh;
  table.cut_to_stores = 0;
  Shard& shard = state.shard[part][incarnation];
  shard.view = table.epoch;
  shard.open = {};
  shard.acked = {};
  shard.kept = shard.answered = shard.synced_answers = shard.parent = shard.job_parent = 0;
  shard.active = 1;
  shard.log = {};
  shard.weights = {};
  shard.has_weights = 0;
  if (config_.store || kShardsKnowLineage) shard.branch = fresh;
}

void Moves::cut_to_worker(int part, int incarnation, int w) {
  State& state = add(Move::kCut, incarnation, part, w).state;
  Worker& chosen = state.worker[w];
  std::array<uint8_t, kParts> parents{};
  for (int p = 0; p < kParts; ++p) parents[p] = chosen.part[p].branch;
  begin_cut(state, part, incarnation, parents);
  if (!on(Rule::kPartLineage)) {
    state.table.job_parent[state.table.branches] = chosen.job_lineage;
    chosen.job_lineage = state.table.branches;
  }
  for (WorkerPart& mine : chosen.part) {
    mine.branch = state.table.cut_lineage;
    for (Mass& sent : mine.outstanding) {
      if (chosen.standing == Standing::kEvicted) mine.residual |= sent;
      sent = 0;
    }
    mine.kept = mine.told = 0;
    if (chosen.standing != Standing::kLoaded) continue;
    mine.entered = mine.residual;
    mine.ledger = 0;
  }
  chosen.view = state.table.epoch;
  become_synced(state, w);
  if (config_.everyone) state.table.first[w] = 0;
  Shard& shard = state.shard[part][incarnation];
  shard.first = state.table.first;
  shard.decided = chosen.part[part].next;
  std::copy_n(chosen.part[part].weights.begin(), shard.decided, shard.log.begin());
  for (int p = 0; p < kParts; ++p)
    if (p != part && config_.one_process && on(Rule::kCutAllParts)) restart_part(state, p);
}

// Every other shard, also one that did not crash, starts as its own successor. Its decisions past the cut are void. Its
// summary as of the cut is with the chosen worker.
void Moves::restart_part(State& state, int part) const {
  Shard& shard = state.current(part);
  if (!shard.up) return;
  start_empty(state, part);
  if (state.table.cut_to_stores) start_from_store(state, part, state.table.shard_incarnation[part] - 1);
}

// One process reads the table for all the parts that it holds.
void Moves::shard_reads_table(int process) {
  bool late = false;
  for (int part = 0; part < kParts; ++part) {
    const Shard& current = now().current(part);
    late = late || (holds(process, part) && current.up && current.view < now().table.epoch);
    for (int incarnation = 0; incarnation < kShardLives; ++incarnation) {
      const Shard& other = now().shard[part][incarnation];
      if (!holds(process, part) || !other.up || now().is_current(part, incarnation) || other.view >= now().table.epoch)
        continue;
      add(Move::kShardReadsTable, incarnation, part).state.shard[part][incarnation] = {};
    }
  }
  if (!late) return;
  State& state = add(Move::kShardReadsTable, now().table.shard_incarnation[process] - 1, process).state;
  for (int part = 0; part < kParts; ++part)
    if (holds(process, part) && now().current(part).up && now().current(part).view < now().table.epoch)
      adopt_membership(state, part);
}

void Moves::adopt_membership(State& state, int part) const {
  Shard& shard = state.current(part);
  const Table& table = state.table;
  if (kParts > 1 && shard.view < table.cut && on(Rule::kCutAllParts)) {
    restart_part(state, part);
    return;
  }
  shard.view = table.epoch;
  for (int w = 0; w < kWorkers; ++w) {
    const bool same = shard.member[w] == table.member[w];
    if (!same) shard.acked[w] = 0;
    if (on(Rule::kDropOpen) && !(same && config_.keep_open))
      for (auto& step : shard.open) step[w] = {};
  }
  shard.member = table.member;
  shard.first = table.first;
  if (shard.active) {
    tell(state, part, table.shard_incarnation[part] - 1);
    return;
  }
  shard.answered = shard.synced_answers = shard.parent = shard.job_parent = shard.decided = shard.kept = 0;
  shard.log = {};
}

void Moves::shard_crash(int process) {
  if (now().spent.shard_crashes >= at_most().shard_crashes) return;
  bool incarnations = false;
  for (int part = 0; part < kParts; ++part)
    incarnations = incarnations || (holds(process, part) && now().current(part).up);
  if (!incarnations) return;
  State& state = add(Move::kShardCrash, now().table.shard_incarnation[process] - 1, process, 0, 0, Kind::kFault).state;
  for (int part = 0; part < kParts; ++part)
    if (holds(process, part)) state.current(part) = {};
  ++state.spent.shard_crashes;
}

// A process starts, empty, for the parts whose shard is dead, or replaces one that only seemed to be.
void Moves::takeover(int process) {
  if (!epoch_left()) return;
  bool dead = false, possible = true;
  for (int part = 0; part < kParts; ++part) {
    if (!holds(process, part)) continue;
    dead = dead || !now().current(part).up;
    possible = possible && now().table.shard_incarnation[part] < kShardLives;
  }
  if (!possible || (!dead && now().spent.replacements >= at_most().replacements)) return;
  const Kind kind = dead ? Kind::kProtocol : Kind::kFault;
  State& state = add(Move::kTakeover, now().table.shard_incarnation[process], process, dead ? 1 : 0, 0, kind).state;
  if (!dead) ++state.spent.replacements;
  ++state.table.epoch;
  for (int part = 0; part < kParts; ++part) {
    if (!holds(process, part) || (dead && now().current(part).up)) continue;
    ++state.table.shard_incarnation[part];
    start_empty(state, part);
  }
}

void Moves::start_empty(State& state, int part) const {
  Shard& shard = state.current(part);
  shard = {};
  shard.up = 1;
  shard.view = state.table.epoch;
  shard.member = state.table.member;
  shard.first = state.table.first;
}

// All live synced members stand at one step, and no process keeps its update. The part starts again, which makes it
// void.
void Moves::takeover_by_bound(int part) {
  const Shard& shard = now().current(part);
  if (!on(Rule::kMemoryBound) || !epoch_left() || now().table.shard_incarnation[part] >= kShardLives) return;
  if (!shard.up || !shard.active || shard.view != now().table.epoch || shard.has_weights) return;
  int furthest = -1;
  for (int w = 0; w < kWorkers; ++w) {
    if (shard.member[w] == 0) continue;
    const Worker& other = worker(w);
    if (!up(other) || other.incarnation != shard.member[w] || other.view != shard.view) return;
    if (synced(other))
      furthest = std::max<int>(furthest, other.part[part].next);
    else if (can_go_on(w, part))
      return;
  }
  if (furthest < 0 || furthest >= shard.decided || (shard.kept >> furthest & 1)) return;
  State& state = add(Move::kTakeover, now().table.shard_incarnation[part], part, 2).state;
  state.current(part) = {};
  ++state.table.shard_incarnation[part];
  ++state.table.epoch;
  start_empty(state, part);
}

}  // namespace millrace::model
