// The parameter store: a shard that holds the weights too. Its save is one more holder at COLLECT, never a synced one.

#include "tests/models/rounds/moves.h"

namespace millrace::model {

namespace {

bool same_prefix(const StoreSave& saved, const Shard& shard) {
  return saved.decided <= shard.decided &&
         std::equal(saved.weights.begin(), saved.weights.begin() + saved.decided, shard.log.begin());
}

bool keeps_all(const Shard& shard, int from) {
  for (int step = from; step < shard.decided; ++step)
    if (!(shard.kept >> step & 1)) return false;
  return true;
}

}  // namespace

// How many steps of this shard's log are in its weights' last save.
int Moves::saved_on_log(int part, const Shard& shard) const {
  const StoreSave& saved = now().store[part];
  return saved.exists && is_saved_on_log(now(), part, shard) ? saved.decided : 0;
}

bool Moves::is_saved_on_log(const State& state, int part, const Shard& shard) const {
  const StoreSave& saved = state.store[part];
  const bool by_digest = config_.store_alone && on(Rule::kStoreDigest);
  return (by_digest || is_ancestor(state.table, part, saved.branch)) && same_prefix(saved, shard);
}

// At activation: the save's weights, brought to `decided` with the updates that the members kept; if it is on the log.
void Moves::load_store(Successor& next, int part, int incarnation) const {
  State& state = next.state;
  Shard& shard = state.shard[part][incarnation];
  const StoreSave& saved = state.store[part];
  shard.branch = state.table.branch[part];
  const bool is_on_log = is_saved_on_log(state, part, shard);
  if (saved.exists && !on(Rule::kStoreNeverExtends) && saved.decided > shard.decided) {
    for (int step = shard.decided; step < saved.decided; ++step) shard.log[step] = saved.weights[step];
    shard.decided = saved.decided;
  }
  if (!saved.exists || (on(Rule::kStoreOnLog) && (!is_on_log || !keeps_all(shard, saved.decided)))) {
    shard.has_weights = shard.decided == 0 || (config_.store_alone && keeps_all(shard, 0));
    if (shard.has_weights) shard.weights = shard.log;
    if (!shard.has_weights && config_.store_alone)
      next.violation = "STORE LOST: no save, and not all that came after it";
    return;
  }
  shard.weights = saved.weights;
  for (int step = saved.decided; step < shard.decided; ++step) shard.weights[step] = shard.log[step];
  shard.has_weights = 1;
}

void Moves::start_from_store(State& state, int part, int incarnation) const {
  Shard& shard = state.shard[part][incarnation];
  const StoreSave& saved = state.store[part];
  shard.active = shard.has_weights = 1;
  shard.branch = state.table.cut_lineage;
  shard.decided = saved.decided;
  shard.log = shard.weights = saved.weights;
}

// The cut takes the stores of all parts; it leaves no worker synced, and all rejoin (R9).
void Moves::cut_to_stores(int part, int incarnation) {
  State& state = add(Move::kCutToStore, incarnation, part).state;
  std::array<uint8_t, kParts> parents{};
  for (int p = 0; p < kParts; ++p) parents[p] = state.store[p].branch;
  begin_cut(state, part, incarnation, parents);
  state.table.cut_to_stores = 1;
  start_from_store(state, part, incarnation);
  for (int p = 0; p < kParts; ++p)
    if (p != part && config_.one_process) restart_part(state, p);
}

// A file is written when the weights stand there, and counts (is renamed) when its steps are acknowledged.
uint8_t Moves::steps_to_save(const Shard& shard) const {
  uint8_t steps = shard.decided;
  for (int w = 0; config_.store_alone && on(Rule::kStoreAcked) && w < kWorkers; ++w)
    if (shard.member[w] != 0) steps = std::min(steps, shard.acked[w]);
  return steps;
}

void Moves::moves_of_store(int part, int incarnation) {
  const Shard& shard = now().shard[part][incarnation];
  const StoreSave& saved = now().store[part];
  const uint8_t steps = steps_to_save(shard);
  // Never saves less of this log than the disk has: a member that joins has acknowledged nothing yet.
  const bool is_newer = config_.store_alone ? steps > saved_on_log(part, shard) : saved.decided != steps;
  if (shard.has_weights && now().spent.store_saves < at_most().store_saves &&
      (!saved.exists || is_newer || (!config_.store_alone && saved.branch != shard.branch))) {
    State& state = add(Move::kStoreSave, incarnation, part, steps, 0, Kind::kFault).state;
    StoreSave& file = state.store[part];
    file = {{}, steps, shard.branch, 1, 0};
    std::copy_n(shard.weights.begin(), steps, file.weights.begin());
    ++state.spent.store_saves;
  }
  for (int w = 0; w < kWorkers; ++w) {
    const Worker& other = worker(w);
    if (shard.member[w] == 0 || shard.member[w] != other.incarnation || other.view != shard.view) continue;
    const WorkerPart& theirs = other.part[part];
    if (!config_.store_alone && !shard.has_weights && synced(other) && theirs.next <= shard.decided &&
        keeps_all(shard, theirs.next)) {
      Shard& after = add(Move::kStoreFetch, incarnation, part, w).state.shard[part][incarnation];
      after.weights = theirs.weights;
      for (int step = theirs.next; step < shard.decided; ++step) after.weights[step] = shard.log[step];
      after.has_weights = 1;
    }
    const Snapshot& here = now().snapshot[w][part];
    if (!shard.has_weights || !returning(other) || (other.settled >> part & 1) || !now().is_current(part, incarnation))
      continue;
    if (here.view == other.view && here.next >= shard.decided) continue;
    Snapshot& sent = add(Move::kStoreSnapshot, incarnation, part, w).state.snapshot[w][part];
    sent = {shard.weights, other.view, shard.decided, shard.kept, 0};
  }
}

}  // namespace millrace::model
