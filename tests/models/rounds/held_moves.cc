// Apply after k acknowledgements: a worker keeps and acknowledges updates as ever. Its application gets an update only
// once the shard announces that k members have it. `next` and all rules about it stay as they are.

#include <functional>

#include "tests/models/rounds/moves.h"

namespace millrace::model {

// The k-th greatest acknowledgement, whenever it grows: it stays said, and may be heard at any time.
void Moves::tell(State& state, int part, int incarnation) const {
  if (!applies_after_acks(config_)) return;
  const Shard& shard = state.shard[part][incarnation];
  std::array<int, kWorkers> acked{};
  for (int w = 0; w < kWorkers; ++w) {
    if (shard.member[w] == 0) continue;
    acked[w] = shard.acked[w];
    const Worker& other = state.worker[w];
    const bool settled = returning(other) && other.incarnation == shard.member[w] && (other.settled >> part & 1);
    if (!on(Rule::kSyncedAcks) && settled && other.view == shard.view)
      acked[w] = std::max<int>(acked[w], other.part[part].next);
  }
  std::array<int, kWorkers> ordered = acked;
  std::ranges::sort(ordered, std::greater<>());
  const int next = config_.acks <= kWorkers ? ordered[config_.acks - 1] : 0;
  Told& told = state.told[shard.view][part];
  for (int step = told.next; step < next; ++step) {
    Update by;
    for (int w = 0; w < kWorkers; ++w)
      if (acked[w] > step) by.count(w, shard.member[w]);
    told.by[step] = static_cast<Lives>(by.incarnations);
    told.of[step] = shard.log[step];
  }
  told.next = static_cast<uint8_t>(std::max<int>(told.next, next));
}

void Moves::apply_held(int w, int part) {
  const Worker& me = worker(w);
  const WorkerPart& mine = me.part[part];
  if (!applies_after_acks(config_) || mine.applied >= mine.next) return;
  for (int epoch = 1; epoch <= now().table.epoch; ++epoch) {
    if (on(Rule::kHeld) && on(Rule::kToldEpoch) && epoch != me.view) continue;
    const Told& told = now().told[epoch][part];
    const int below = on(Rule::kHeld) ? std::min<int>(told.next, mine.next) : mine.next;
    if (below <= mine.applied) continue;
    State& state = add(Move::kApply, w, part, below, epoch).state;
    state.worker[w].part[part].applied = static_cast<uint8_t>(below);
    for (int step = mine.applied; step < below; ++step) {
      Update alone;
      alone.count(w, me.incarnation);
      const bool same = on(Rule::kHeld) && told.of[step] == mine.weights[step];
      state.relied[part][step] = {mine.weights[step], same ? told.by[step] : alone.incarnations};
    }
    if (!on(Rule::kHeld)) return;
  }
}

}  // namespace millrace::model
