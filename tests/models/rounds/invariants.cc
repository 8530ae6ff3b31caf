#include "tests/models/rounds/invariants.h"

#include <fmt/format.h>

namespace millrace::model {

namespace {

/// The checks of one part. Each returns a sentence, or nothing.
class PartCheck {
 public:
  PartCheck(const State& state, const Config& config, int part) : state_(state), config_(config), part_(part) {
    for (int w = 0; w < kWorkers; ++w)
      if (in_good_standing(state, w) && (furthest_ < 0 || of(w).next > of(furthest_).next)) furthest_ = w;
  }

  std::string run() const {
    if (furthest_ < 0) return {};
    for (int w = 0; w < kWorkers; ++w) {
      if (!in_good_standing(state_, w)) continue;
      for (auto check :
           {&PartCheck::agreement, &PartCheck::counted_once, &PartCheck::outstanding, &PartCheck::nothing_lost}) {
        std::string found = (this->*check)(w);
        if (!found.empty()) return found;
      }
    }
    return shard_agrees();
  }

  /// Returns the violation of durability; empty: none. An update that an application has rests on k members: if it is
  /// void now, that number of incarnations has died.
  std::string durable() const {
    const Shard& shard = state_.current(part_);
    if (!applies_after_acks(config_) || !shard.up || !shard.active) return {};
    for (int step = 0; step < kSteps; ++step) {
      const Reliance& one = state_.relied[part_][step];
      if (!one.update.decided || (step < shard.decided && shard.log[step] == one.update)) continue;
      if (gone(one.by) < config_.acks)
        return fmt::format("DURABLE: an application had step {}, which is void, and only {} of {} that had it {} gone",
                           step, gone(one.by), config_.acks, gone(one.by) == 1 ? "is" : "are");
    }
    return {};
  }

 private:
  /// Of these incarnations: dead, or removed.
  int gone(uint64_t incarnations) const {
    Update named;
    named.incarnations = incarnations;
    int count = 0;
    for (int w = 0; w < kWorkers; ++w) {
      const int incarnation = named.life_of(w);
      const Worker& worker = state_.worker[w];
      count += incarnation != 0 &&
               !(up(worker) && worker.incarnation == incarnation && state_.table.member[w] == incarnation);
    }
    return count;
  }

  const WorkerPart& of(int w) const { return state_.worker[w].part[part_]; }
  /// The longest log of a member.
  const Log& log() const { return of(furthest_).weights; }
  int length() const { return of(furthest_).next; }

  std::string agreement(int w) const {
    for (int step = 0; step < of(w).next; ++step)
      if (of(w).weights[step] != log()[step])
        return fmt::format("AGREEMENT: {} and {} applied different updates of step {}", name_of(w), name_of(furthest_),
                           step);
    return {};
  }

  std::string counted_once(int w) const {
    Mass seen = 0;
    for (int step = 0; step < of(w).next; ++step) {
      const Mass here = of(w).weights[step].applied();
      if (seen & here) return fmt::format("DOUBLE: {} is twice in the weights of {}", text_of(seen & here), name_of(w));
      seen |= here;
    }
    const Mass both = of(w).residual & applied(log(), length());
    if (both) return fmt::format("DOUBLE: {} is in the residual of {}, and applied", text_of(both), name_of(w));
    return {};
  }

  /// Whether the update at `index` is one that will settle what w sent from `slot`.
  bool will_settle(int w, int slot, int index) const {
    if (log()[index].life_of(w) != of(w).sent_life[slot]) return false;
    if (!config_.asynchronous) return slot == index;
    return static_cast<int>(log()[index].counter) == slot && index >= of(w).next;
  }

  std::string outstanding(int w) const {
    Mass held = 0;
    for (int slot = 0; slot < kSteps; ++slot) {
      const Mass sent = of(w).outstanding[slot];
      if (sent == 0) continue;
      if (sent & (held | of(w).residual)) return fmt::format("DOUBLE: {} holds {} twice", name_of(w), text_of(sent));
      held |= sent;
      if (!config_.asynchronous && slot < of(w).next)
        return fmt::format("UNSETTLED: {} has step {} and keeps its contribution to it", name_of(w), slot);
      for (int index = 0; index < length(); ++index)
        if ((sent & log()[index].applied()) && !will_settle(w, slot, index))
          return fmt::format("DOUBLE: {} is outstanding at {}, and applied in step {}", text_of(sent), name_of(w),
                             index);
    }
    return {};
  }

  std::string nothing_lost(int w) const {
    Mass kept = of(w).residual | applied(of(w).weights, of(w).next);
    for (const Mass sent : of(w).outstanding) kept |= sent;
    const Mass lost = of(w).entered & ~(kept | of(w).ledger);
    if (lost) return fmt::format("SILENT LOSS: {} of {} is nowhere", text_of(lost), name_of(w));
    const Mass twice = of(w).ledger & (kept | applied(log(), length()));
    if (twice) return fmt::format("LEDGER: {} of {} is in the ledger, and held or applied", text_of(twice), name_of(w));
    return {};
  }

  std::string shard_agrees() const {
    const Shard& shard = state_.current(part_);
    if (!shard.up || !shard.active || shard.view != state_.table.epoch) return {};
    for (int w = 0; w < kWorkers; ++w) {
      if (!in_good_standing(state_, w)) continue;
      if (of(w).next > shard.decided)
        return fmt::format("AGREEMENT: {} applied step {}, which is open at the shard", name_of(w), shard.decided);
      for (int step = 0; step < of(w).next; ++step)
        if (shard.log[step] != of(w).weights[step])
          return fmt::format("AGREEMENT: the shard and {} differ on step {}", name_of(w), step);
    }
    if (shard.has_weights)
      for (int step = 0; step < shard.decided; ++step)
        if (shard.weights[step] != shard.log[step]) return fmt::format("STORE: its weights have another step {}", step);
    return {};
  }

  const State& state_;
  const Config& config_;
  const int part_;
  int furthest_ = -1;
};

/// After a cut every part of a member's weights is from after it.
std::string mixed(const State& state) {
  if (kParts < 2 || state.table.cut == 0) return {};
  for (int w = 0; w < kWorkers; ++w) {
    const Worker& worker = state.worker[w];
    if (!in_good_standing(state, w) || worker.view < state.table.cut) continue;
    for (int part = 0; part < kParts; ++part)
      if (worker.part[part].branch < state.table.cut_lineage)
        return fmt::format("MIXED: {} continues with weights of part {} from before the cut", name_of(w), part);
  }
  return {};
}

}  // namespace

std::string violation_of(const State& state, const Config& config) {
  for (int part = 0; part < kParts; ++part) {
    const PartCheck check(state, config, part);
    std::string found = check.run();
    if (found.empty()) found = check.durable();
    if (!found.empty()) return kParts > 1 ? fmt::format("part {}: {}", part, found) : found;
  }
  return mixed(state);
}

bool is_complete(const State& state, const Config& config) {
  for (int part = 0; part < kParts; ++part) {
    const Shard& shard = state.current(part);
    if (!shard.up || !shard.active || shard.decided < kSteps) return false;
  }
  bool any = false;
  for (int w = 0; w < kWorkers; ++w) {
    const Worker& worker = state.worker[w];
    if (!up(worker)) continue;
    any = true;
    if (!in_good_standing(state, w)) return false;
    for (const WorkerPart& mine : worker.part)
      if (mine.next < kSteps || (applies_after_acks(config) && mine.applied < kSteps)) return false;
  }
  return any;
}

std::string text_of(Mass mass) {
  std::string text;
  for (int w = 0; w < kWorkers; ++w)
    for (int incarnation = 1; incarnation <= kLives; ++incarnation)
      for (int step = 0; step < kSteps; ++step)
        if (mass & gradient(w, incarnation, step))
          text += fmt::format("{}g{}{}.{}", text.empty() ? "" : " ", name_of(w), incarnation, step);
  return "{" + text + "}";
}

}  // namespace millrace::model
