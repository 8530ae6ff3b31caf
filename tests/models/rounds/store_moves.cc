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

// At activation: the save's weights, brought to `decided` with the updates that the members kept; if it is on the log.
void Moves::load_store(State& state, int part, int life) const {
  Shard& shard = state.shard[part][life];
  const StoreSave& saved = state.store[part];
  shard.lineage = state.table.lineage[part];
  const bool is_on_log = is_ancestor(state.table, part, saved.lineage) && same_prefix(saved, shard);
  if (saved.exists && !on(Rule::kStoreNeverExtends) && saved.decided > shard.decided) {
    for (int step = shard.decided; step < saved.decided; ++step) shard.log[step] = saved.weights[step];
    shard.decided = saved.decided;
  }
  if (!saved.exists || (on(Rule::kStoreOnLog) && (!is_on_log || !keeps_all(shard, saved.decided)))) {
    shard.has_weights = shard.decided == 0;
    return;
  }
  shard.weights = saved.weights;
  for (int step = saved.decided; step < shard.decided; ++step) shard.weights[step] = shard.log[step];
  shard.has_weights = 1;
}

void Moves::start_from_store(State& state, int part, int life) const {
  Shard& shard = state.shard[part][life];
  const StoreSave& saved = state.store[part];
  shard.active = shard.has_weights = 1;
  shard.lineage = state.table.cut_lineage;
  shard.decided = saved.decided;
  shard.log = shard.weights = saved.weights;
}

// The cut takes the stores of all parts; nobody is synced by it, all come back by 9.
void Moves::cut_to_stores(int part, int life) {
  State& state = add(Move::kCutToStore, life, part).state;
  std::array<uint8_t, kParts> parents{};
  for (int p = 0; p < kParts; ++p) parents[p] = state.store[p].lineage;
  begin_cut(state, part, life, parents);
  state.table.cut_to_stores = 1;
  start_from_store(state, part, life);
  for (int p = 0; p < kParts; ++p)
    if (p != part && config_.one_process) restart_part(state, p);
}

void Moves::moves_of_store(int part, int life) {
  const Shard& shard = now().shard[part][life];
  const StoreSave& saved = now().store[part];
  if (shard.has_weights && now().spent.store_saves < at_most().store_saves &&
      (!saved.exists || saved.decided != shard.decided || saved.lineage != shard.lineage)) {
    State& state = add(Move::kStoreSave, life, part, 0, 0, Kind::kFault).state;
    state.store[part] = {shard.weights, shard.decided, shard.lineage, 1, 0};
    ++state.spent.store_saves;
  }
  for (int w = 0; w < kWorkers; ++w) {
    const Worker& other = worker(w);
    if (shard.member[w] == 0 || shard.member[w] != other.life || other.view != shard.view) continue;
    const WorkerPart& theirs = other.part[part];
    if (!shard.has_weights && synced(other) && theirs.next <= shard.decided && keeps_all(shard, theirs.next)) {
      Shard& after = add(Move::kStoreFetch, life, part, w).state.shard[part][life];
      after.weights = theirs.weights;
      for (int step = theirs.next; step < shard.decided; ++step) after.weights[step] = shard.log[step];
      after.has_weights = 1;
    }
    const Snapshot& here = now().snapshot[w][part];
    if (!shard.has_weights || !returning(other) || (other.settled >> part & 1) || !now().is_current(part, life))
      continue;
    if (here.view == other.view && here.next >= shard.decided) continue;
    Snapshot& sent = add(Move::kStoreSnapshot, life, part, w).state.snapshot[w][part];
    sent = {shard.weights, other.view, shard.decided, shard.kept, 0};
  }
}

}  // namespace millrace::model
