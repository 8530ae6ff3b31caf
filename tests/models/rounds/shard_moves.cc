// The moves of an active shard: R2, R3, R5, R6.

#include "tests/models/rounds/moves.h"

namespace millrace::model {

void Moves::moves_of_active(int part, int incarnation) {
  admit(part, incarnation);
  if (config_.asynchronous)
    decide_asynchronous(part, incarnation);
  else
    decide(part, incarnation);
  serve(part, incarnation);
  if (config_.forget || applies_after_acks(config_)) acknowledge(part, incarnation);
  forget_by_bound(part, incarnation);
  if (now().is_current(part, incarnation)) cut_if_stranded(part, incarnation);
  if (config_.store) moves_of_store(part, incarnation);
}

void Moves::admit(int part, int incarnation) {
  const Shard& shard = now().shard[part][incarnation];
  for (int w = 0; w < kWorkers; ++w) {
    for (int step = config_.asynchronous ? 0 : shard.decided; step < kSteps; ++step) {
      if (shard.member[w] == 0 || shard.open[step][w].incarnation != 0) continue;
      for (int epoch = 1; epoch <= now().table.epoch; ++epoch) {
        const Contribution sent = now().contributions[epoch][part][w][step];
        if (sent.incarnation == 0 || (on(Rule::kContributionEpoch) && epoch != shard.view)) continue;
        if (on(Rule::kContributionLife) && shard.member[w] != sent.incarnation) continue;
        if (config_.asynchronous && already_counted(shard, w, static_cast<int>(sent.incarnation), step)) continue;
        add(Move::kAdmit, incarnation, part, w * kSteps + step, epoch).state.shard[part][incarnation].open[step][w] =
            sent;
      }
    }
  }
}

bool Moves::expected_are_in(const Shard& shard) const {
  for (int w = 0; w < kWorkers; ++w) {
    const bool expected = shard.member[w] != 0 && (shard.first[w] <= shard.decided || !on(Rule::kFirstStep));
    if (expected && shard.open[shard.decided][w].incarnation == 0) return false;
  }
  return true;
}

// The only place where contributors are fixed: decide, keep and first sending are one action.
void Moves::record(int part, int incarnation, int step, int worker, const Update& update) {
  Successor& next = add(Move::kDecide, incarnation, part, step, worker * 2 + static_cast<int>(update.carried));
  Shard& shard = next.state.shard[part][incarnation];
  shard.log[step] = update;
  if (shard.has_weights) shard.weights[step] = update;
  shard.kept |= 1 << step;
  ++shard.decided;
  Update& sent = next.state.updates[shard.view][part][step];
  if (sent.decided && sent != update) next.violation = "IDENTITY: two different updates of one step in one epoch";
  sent = update;
  if (config_.asynchronous)
    shard.open[update.counter][worker] = {};
  else
    shard.open[step].fill({});
}

void Moves::decide(int part, int incarnation) {
  const Shard& shard = now().shard[part][incarnation];
  if (shard.decided >= kSteps) return;
  Update update;
  int in = 0;
  for (int w = 0; w < kWorkers; ++w) {
    const Contribution& open = shard.open[shard.decided][w];
    if (open.incarnation == 0) continue;
    ++in;
    update.mass |= open.mass;
    update.count(w, static_cast<int>(open.incarnation));
  }
  // Without the option that requires all contributions, the deadline may pass at any moment.
  if (in < config_.quorum || (config_.everyone && !expected_are_in(shard))) return;
  update.epoch = shard.view;
  update.decided = 1;
  for (int carried = config_.reselect ? 0 : 1; carried < 2; ++carried) {
    update.carried = static_cast<uint64_t>(carried);
    record(part, incarnation, shard.decided, 0, update);
  }
}

// Each contribution is a step of its own. Those of one incarnation are counted in the order in which it sent them.
void Moves::decide_asynchronous(int part, int incarnation) {
  const Shard& shard = now().shard[part][incarnation];
  if (shard.decided >= kSteps) return;
  for (int w = 0; w < kWorkers; ++w) {
    for (int counter = 0; counter < kSteps; ++counter) {
      const Contribution& open = shard.open[counter][w];
      if (open.incarnation == 0) continue;
      const int sent_by = static_cast<int>(open.incarnation);
      const bool first = worker(w).incarnation == sent_by && worker(w).part[part].first == counter;
      const bool next_in_order = first || counter == 0 || already_counted(shard, w, sent_by, counter - 1);
      if (on(Rule::kInOrder) && !next_in_order) continue;
      Update update;
      update.mass = open.mass;
      update.count(w, sent_by);
      update.counter = static_cast<uint64_t>(counter);
      update.epoch = shard.view;
      update.decided = 1;
      for (int carried = config_.reselect ? 0 : 1; carried < 2; ++carried) {
        update.carried = static_cast<uint64_t>(carried);
        record(part, incarnation, shard.decided, w, update);
      }
    }
  }
}

void Moves::serve(int part, int incarnation) {
  const Shard& shard = now().shard[part][incarnation];
  for (int step = 0; step < shard.decided; ++step) {
    if (!(shard.kept >> step & 1) || now().updates[shard.view][part][step].decided) continue;
    bool wanted = false;
    for (const Worker& other : now().worker)
      wanted = wanted || (synced(other) && other.part[part].next <= step && other.view <= shard.view);
    if (wanted) add(Move::kServe, incarnation, part, step).state.updates[shard.view][part][step] = shard.log[step];
  }
}

void Moves::acknowledge(int part, int incarnation) {
  const Shard& shard = now().shard[part][incarnation];
  for (int w = 0; w < kWorkers; ++w) {
    const Worker& other = worker(w);
    if (shard.member[w] == 0 || !synced(other) || other.incarnation != shard.member[w] || other.view != shard.view)
      continue;
    if (shard.acked[w] >= other.part[part].next) continue;
    State& state = add(Move::kAck, incarnation, part, w).state;
    Shard& after = state.shard[part][incarnation];
    after.acked[w] = other.part[part].next;
    tell(state, part, incarnation);
    if (!config_.forget) continue;
    int stable = kSteps;
    for (int member = 0; member < kWorkers; ++member) {
      if (after.member[member] == 0) continue;
      if (!on(Rule::kAckAll) && up(worker(member)) && !synced(worker(member))) continue;
      stable = std::min<int>(stable, after.acked[member]);
    }
    if (config_.store_alone && on(Rule::kStoreKeeps)) stable = std::min(stable, saved_on_log(part, shard));
    const int forgotten = (1 << stable) - 1;
    after.kept &= ~forgotten;
    for (int member = 0; member < kWorkers; ++member) {
      Worker& reader = state.worker[member];
      if (synced(reader) && reader.view == shard.view && shard.member[member] == reader.incarnation)
        reader.part[part].kept &= ~forgotten;
    }
  }
}

// Updates forgotten everywhere, because memory ends.
void Moves::forget_by_bound(int part, int incarnation) {
  const Shard& shard = now().shard[part][incarnation];
  if (now().spent.forgotten >= at_most().forgotten) return;
  for (int step = 0; step < shard.decided; ++step) {
    if (!(shard.kept >> step & 1)) continue;
    bool one_has_it = false;
    for (int w = 0; w < kWorkers; ++w) one_has_it = one_has_it || (shard.member[w] != 0 && shard.acked[w] > step);
    if (on(Rule::kMemoryBound) && !one_has_it) continue;
    State& state = add(Move::kForget, incarnation, part, step, 0, Kind::kFault).state;
    state.shard[part][incarnation].kept &= ~(1 << step);
    for (auto& epoch : state.updates) epoch[part][step] = {};
    for (Worker& other : state.worker) other.part[part].kept &= ~(1 << step);
    ++state.spent.forgotten;
  }
}

}  // namespace millrace::model
