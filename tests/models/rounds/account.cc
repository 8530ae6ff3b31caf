// The outcome of a worker's contributions: R4, R6, R9b, R9c.

#include "tests/models/rounds/moves.h"

namespace millrace::model {

// `slot` was sent, and an update counts this worker: the incarnation that it names decides. Without the update's bytes
// no process knows which entries it carried. The values to return are then lost, and in the ledger.
void Moves::resolve_counted(WorkerPart& mine, int slot, const Update& update, int w, bool bytes_known) const {
  const int named = update.life_of(w);
  const bool counted = on(Rule::kNamedLife) ? named == mine.sent_life[slot] : named != 0;
  const Mass sent = mine.outstanding[slot];
  mine.outstanding[slot] = 0;
  if (!counted) {
    mine.residual |= sent;
  } else if (!update.carried && bytes_known) {
    if (on(Rule::kReturned)) mine.residual |= sent;
  } else if (!update.carried) {
    mine.ledger |= sent;
  }
}

// The update at `index` of the log is in this worker's weights from now on. Synchronous: the contribution to that step
// is counted or returned. Asynchronous: the update names the contribution that it counts, and does not settle the
// others.
void Moves::settle_with(WorkerPart& mine, int w, int index, const Update& update, bool bytes_known) const {
  if (config_.asynchronous) {
    const int slot = static_cast<int>(update.counter);
    const bool counts = update.life_of(w) != 0 && (!on(Rule::kNamedLife) || update.life_of(w) == mine.sent_life[slot]);
    if (counts && mine.outstanding[slot] != 0) resolve_counted(mine, slot, update, w, bytes_known);
    return;
  }
  if (mine.outstanding[index] == 0) return;
  if (!bytes_known && !on(Rule::kSummary)) {
    (on(Rule::kUnreturnable) ? mine.ledger : mine.residual) |= mine.outstanding[index];
    mine.outstanding[index] = 0;
    return;
  }
  resolve_counted(mine, index, update, w, bytes_known);
}

// Asynchronous: once all decisions before the fence are in the weights, contributions of an older incarnation that no
// update named will never be counted.
void Moves::settle_old_lives(WorkerPart& mine, int incarnation) const {
  if (!config_.asynchronous || mine.told == 0 || mine.next < mine.told) return;
  for (int slot = 0; slot < kSteps; ++slot) {
    if (mine.outstanding[slot] == 0 || mine.sent_life[slot] == incarnation) continue;
    mine.residual |= mine.outstanding[slot];
    mine.outstanding[slot] = 0;
  }
  mine.told = 0;
}

// Returns the index at which the contribution of `slot` was counted, according to the summary; -1: never. The summary
// keeps the last counted one of an incarnation; the order of counting determines the others.
int Moves::last_index_counting(const WorkerPart& mine, int w, int slot, const Shard& shard) const {
  for (int index = 0; index < shard.decided; ++index) {
    const Update& update = shard.log[index];
    if (update.life_of(w) == mine.sent_life[slot] && static_cast<int>(update.counter) >= slot) return index;
  }
  return -1;
}

bool Moves::already_counted(const Shard& shard, int w, int incarnation, int counter) const {
  if (!on(Rule::kCountedOnce)) return false;
  for (int index = 0; index < shard.decided; ++index) {
    const Update& update = shard.log[index];
    if (update.life_of(w) == incarnation && static_cast<int>(update.counter) >= counter) return true;
  }
  return false;
}

bool Moves::counted_since(const Shard& shard, int w, int next) const {
  for (int index = next; index < shard.decided; ++index) {
    const bool known = on(Rule::kSummary) || (shard.kept >> index & 1);
    if (known && shard.log[index].life_of(w) != 0) return true;
  }
  return false;
}

// R9c: `next` steps are in the weights with which it continues.
void Moves::settle_expelled(WorkerPart& mine, int w, int next, int snapshot_kept, const Shard& shard) const {
  for (int step = 0; step < kSteps; ++step) {
    if (mine.outstanding[step] == 0) continue;
    if (step < next || (step < shard.decided && !on(Rule::kSettleWithin))) {
      const bool bytes_known = (shard.kept | snapshot_kept) >> step & 1;
      settle_with(mine, w, step, shard.log[step], bytes_known);
    } else if (step >= shard.decided) {
      mine.residual |= mine.outstanding[step];
      mine.outstanding[step] = 0;
    }
  }
}

// R16c.
void Moves::settle_expelled_asynchronous(WorkerPart& mine, int w, int next, int snapshot_kept,
                                         const Shard& shard) const {
  for (int slot = 0; slot < kSteps; ++slot) {
    if (mine.outstanding[slot] == 0) continue;
    const int index = last_index_counting(mine, w, slot, shard);
    if (index >= 0 && (index < next || !on(Rule::kSettleWithin))) {
      const bool bytes_known = (shard.kept | snapshot_kept) >> index & 1;
      resolve_counted(mine, slot, shard.log[index], w, bytes_known);
    } else if (index < 0 && !on(Rule::kKeepUntilTold)) {
      mine.residual |= mine.outstanding[slot];
      mine.outstanding[slot] = 0;
    }
  }
  mine.told = 0;
  for (const Mass sent : mine.outstanding)
    if (sent != 0) mine.told = shard.decided;
}

}  // namespace millrace::model
