#include "tests/models/rounds/moves.h"

namespace millrace::model {

std::vector<Successor>& Moves::from(const State& state) {
  now_ = &state;
  out_.clear();
  for (int w = 0; w < kWorkers; ++w) moves_of_worker(w);
  for (int part = 0; part < kParts; ++part) {
    for (int incarnation = 0; incarnation < kShardLives; ++incarnation) {
      const Shard& shard = state.shard[part][incarnation];
      if (!shard.up) continue;
      if (shard.active) {
        moves_of_active(part, incarnation);
        continue;
      }
      collect(part, incarnation);
      activate(part, incarnation);
      cut_if_nobody_is_synced(part, incarnation);
    }
    takeover_by_bound(part);
  }
  for (int process = 0; process < processes(); ++process) {
    shard_reads_table(process);
    shard_crash(process);
    takeover(process);
  }
  if (state.spent.epoch_raises < at_most().epoch_raises && epoch_left()) {
    State& next = add(Move::kRaiseEpoch, 0, 0, 0, 0, Kind::kFault).state;
    ++next.table.epoch;
    ++next.spent.epoch_raises;
  }
  for (Successor& next : out_) drop_dead_messages(next.state);
  return out_;
}

Successor& Moves::add(Move move, int actor, int part, int a, int b, Kind kind) {
  Successor& next = out_.emplace_back();
  next.action = {
      move, static_cast<uint8_t>(actor), static_cast<uint8_t>(part), static_cast<uint8_t>(a), static_cast<uint8_t>(b),
      0};
  next.kind = kind;
  next.state = *now_;
  return next;
}

// Messages that no process can accept any more are no part of the state: they would multiply the number of states.
void Moves::drop_dead_messages(State& state) const {
  int oldest_worker = state.table.epoch + 1;
  for (int w = 0; w < kWorkers; ++w) {
    Worker& me = state.worker[w];
    if (up(me)) oldest_worker = std::min<int>(oldest_worker, me.view);
    for (int part = 0; part < kParts; ++part) {
      WorkerPart& mine = me.part[part];
      for (int step = 0; step < kSteps; ++step)
        if (mine.outstanding[step] == 0) mine.sent_life[step] = 0;
      const bool needless = !up(me) || synced(me) || (me.settled >> part & 1);
      if (state.snapshot[w][part].view != 0 && needless) state.snapshot[w][part] = {};
    }
  }
  for (int epoch = 1; on(Rule::kUpdateEpoch) && epoch < oldest_worker; ++epoch) state.updates[epoch] = {};
  for (int epoch = 1; on(Rule::kToldEpoch) && epoch < oldest_worker; ++epoch) state.told[epoch] = {};
  for (int part = 0; on(Rule::kContributionEpoch) && part < kParts; ++part) {
    int oldest = state.table.epoch + 1, count = 0;
    const Shard* only = nullptr;
    for (const Shard& shard : state.shard[part]) {
      if (!shard.up) continue;
      oldest = std::min<int>(oldest, shard.view);
      ++count;
      only = &shard;
    }
    for (int epoch = 1; epoch < oldest; ++epoch) state.contributions[epoch][part] = {};
    if (count != 1 || !only->active) continue;
    for (int epoch = 1; epoch <= only->view; ++epoch) {
      for (int w = 0; w < kWorkers; ++w) {
        for (int step = 0; step < kSteps; ++step) {
          Contribution& sent = state.contributions[epoch][part][w][step];
          if (sent.incarnation == 0) continue;
          const bool done = config_.asynchronous ? already_counted(*only, w, static_cast<int>(sent.incarnation), step)
                                                 : step < only->decided;
          if (done) sent = {};
        }
      }
    }
  }
}

}  // namespace millrace::model
