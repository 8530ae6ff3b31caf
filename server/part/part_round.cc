#include "server/part/part_round.h"

#include <algorithm>
#include <functional>

#include "kernels/base/check.h"
#include "protocol/base/limits.h"
#include "protocol/messages/log_digest.h"

namespace millrace::server {
namespace {

bool is_member(std::span<const protocol::Member> members, uint32_t worker, uint64_t incarnation) {
  const auto at = std::ranges::lower_bound(members, worker, {}, &protocol::Member::worker);
  return at != members.end() && at->worker == worker && at->incarnation == incarnation;
}

}  // namespace

PartRound::Timing PartRound::timing() const {
  const auto step = open_.find(decided_);
  return step == open_.end() ? Timing{} : step->second.timing;
}

TimeNs PartRound::collecting_since() const { return std::max(timing().first, last_decided_at_); }

uint32_t PartRound::here() const {
  const auto step = open_.find(decided_);
  return step == open_.end() ? 0 : static_cast<uint32_t>(step->second.by_worker.size());
}

bool PartRound::is_here(uint32_t worker) const {
  const auto step = open_.find(decided_);
  return step != open_.end() && step->second.by_worker.contains(worker);
}

PartRound::Verdict PartRound::judge(uint32_t worker, uint64_t incarnation, uint64_t step, uint64_t hash) const {
  if (asynchronous()) return arrivals_.judge(worker, incarnation, step, hash, counted_of(worker));
  if (step < decided_) return Verdict::kDecided;
  if (step - decided_ > uint64_t{spec_->staleness} + 1) return Verdict::kAhead;
  const auto open = open_.find(step);
  if (open == open_.end()) return Verdict::kAdmit;
  const auto slot = open->second.by_worker.find(worker);
  if (slot == open->second.by_worker.end()) return Verdict::kAdmit;
  return slot->second.hash == hash ? Verdict::kDuplicate : Verdict::kConflict;
}

bool PartRound::is_ahead(uint32_t worker, uint64_t incarnation, uint64_t step) const {
  if (!asynchronous()) return step > decided_;
  return has_any_open() || step != next_of(worker, incarnation);
}

void PartRound::admit(uint32_t worker, uint64_t step, Open open, TimeNs now) {
  if (asynchronous()) {
    open.sequence = step;
    return arrivals_.admit(worker, std::move(open), now, counted_of(worker));
  }
  OpenStep& at = open_[step];
  if (at.by_worker.empty()) at.timing.first = now;
  at.timing.last = now;
  const bool empty = at.by_worker.emplace(worker, std::move(open)).second;
  MILLRACE_CHECK(empty && step >= decided_, worker, step, decided_);
}

void PartRound::open_next_arrival() {
  if (!asynchronous() || !open_.empty()) return;
  std::optional<Arrivals::Arrival> arrival = arrivals_.take();
  if (!arrival) return;
  OpenStep& at = open_[decided_];
  at.timing = {arrival->at, arrival->at};
  at.decoded = 1;
  at.by_worker.emplace(arrival->worker, std::move(arrival->open));
}

bool PartRound::decoded(const DecodeTask::Input& input, SharedStream stream, MemoryCharge charge) {
  if (asynchronous()) {
    return arrivals_.decoded(input.worker, input.incarnation, input.key.step, input.hash, std::move(stream),
                             std::move(charge));
  }
  const auto open = open_.find(input.key.step);
  if (open == open_.end()) return false;
  const auto slot = open->second.by_worker.find(input.worker);
  if (slot == open->second.by_worker.end()) return false;
  Open& at = slot->second;
  if (at.incarnation != input.incarnation || at.hash != input.hash || at.is_decoded()) return false;
  at.stream = std::move(stream);
  at.charge = std::move(charge);
  ++open->second.decoded;
  return true;
}

bool PartRound::reject(const DecodeTask::Input& input) {
  if (asynchronous()) return arrivals_.reject(input.worker, input.incarnation, input.key.step, input.hash);
  const auto open = open_.find(input.key.step);
  if (open == open_.end()) return false;
  const auto slot = open->second.by_worker.find(input.worker);
  if (slot == open->second.by_worker.end()) return false;
  const Open& at = slot->second;
  if (at.incarnation != input.incarnation || at.hash != input.hash || at.is_decoded()) return false;
  open->second.by_worker.erase(slot);
  if (open->second.by_worker.empty()) open_.erase(open);
  return true;
}

std::vector<SharedStream> PartRound::begin(uint64_t token, TimeNs now) {
  attempt_ = Attempt{};
  attempt_.token = token;
  attempt_.begun = now;
  stage_ = Stage::kReducing;
  for (const auto& [worker, open] : open_.at(decided_).by_worker)
    attempt_.contributors.push_back({worker, open.incarnation, open.sequence});
  return inputs();
}

std::vector<SharedStream> PartRound::inputs() const {
  const OpenStep& step = open_.at(decided_);
  std::vector<SharedStream> streams;
  for (const protocol::ContributorId& who : attempt_.contributors) {
    const Open& open = step.by_worker.at(who.worker);
    MILLRACE_CHECK(open.is_decoded() && open.incarnation == who.incarnation, who.worker, decided_);
    streams.push_back(open.stream);
  }
  return streams;
}

std::vector<std::pair<uint32_t, double>> PartRound::reported_imbalances() const {
  const OpenStep& step = open_.at(decided_);
  std::vector<std::pair<uint32_t, double>> said;
  for (const protocol::ContributorId& who : attempt_.contributors) {
    said.emplace_back(who.worker, step.by_worker.at(who.worker).imbalance);
  }
  return said;
}

void PartRound::summed(SharedStream sum, SharedHistogram histogram, MemoryCharge charge) {
  attempt_.sum = std::move(sum);
  attempt_.histogram = std::move(histogram);
  attempt_.charge = std::move(charge);
  stage_ = Stage::kSummed;
}

/// Mode asynchronous: counts the next contribution of that incarnation, in order.
void PartRound::count_next(protocol::SummaryEntry& at, const protocol::ContributorId& who) const {
  if (at.incarnation != who.incarnation) {
    if (at.sequence != 0) at.earlier_incarnations.emplace_back(at.incarnation, at.sequence);
    if (at.earlier_incarnations.size() > protocol::kEarlierIncarnationsMax)
      at.earlier_incarnations.erase(at.earlier_incarnations.begin());
    at.sequence = 0;
  }
  MILLRACE_CHECK(who.sequence == at.sequence, who.worker, who.incarnation, who.sequence, at.sequence);
  ++at.sequence;
  at.counted_mask = 1;
}

/// Records a worker's contribution to the decided step; the mask has the steps of the last staleness + 1 that have one.
void PartRound::count_step(protocol::SummaryEntry& at, const protocol::ContributorId& who) const {
  if (at.counted_mask != 0 && at.incarnation != who.incarnation)
    at.earlier_incarnations.emplace_back(at.incarnation, at.last_step);
  std::erase_if(at.earlier_incarnations,
                [&](const auto& earlier) { return decided_ - earlier.second > spec_->staleness; });
  const uint64_t shift = decided_ - at.last_step;
  at.counted_mask = shift >= 64 ? 0 : at.counted_mask << shift;
  at.counted_mask |= 1;
  if (spec_->staleness < 63) at.counted_mask &= (uint64_t{2} << spec_->staleness) - 1;
}

void PartRound::count_in(const protocol::ContributorId& who, const Open& contribution, double carried) {
  auto at = std::ranges::lower_bound(summary_.workers, who.worker, {}, &protocol::SummaryEntry::worker);
  if (at == summary_.workers.end() || at->worker != who.worker) {
    at = summary_.workers.insert(at, protocol::SummaryEntry{.worker = who.worker});
  }
  if (asynchronous()) {
    count_next(*at, who);
  } else {
    count_step(*at, who);
  }
  at->incarnation = who.incarnation;
  at->last_step = decided_;
  at->entered = contribution.entered;
  at->lost = contribution.lost;
  at->carried += carried;
}

uint64_t PartRound::RetainedUpdate::bytes_beside_payload() const {
  const protocol::Summary& summary = body.summary;
  uint64_t bytes = sizeof(*this) + body.contributors.size() * sizeof(protocol::ContributorId) +
                   summary.workers.size() * sizeof(protocol::SummaryEntry) +
                   summary.epochs.size() * sizeof(summary.epochs[0]);
  for (const auto& worker : summary.workers)
    bytes += worker.earlier_incarnations.size() * sizeof(worker.earlier_incarnations[0]);
  return bytes;
}

const PartRound::RetainedUpdate& PartRound::keep(Decision decision, MemoryAccount& retained_account) {
  const auto open = open_.find(decided_);
  MILLRACE_CHECK(open != open_.end() && !attempt_.contributors.empty(), decided_);
  RetainedUpdate update;
  update.body.part = layout_.part;
  update.body.step = decided_;
  update.body.decided_in = decision.epoch;
  update.body.whole_sum = decision.whole_sum;
  for (size_t at = 0; at < attempt_.contributors.size(); ++at) {
    const protocol::ContributorId& who = attempt_.contributors[at];
    const Open& contribution = open->second.by_worker.at(who.worker);
    MILLRACE_CHECK(contribution.incarnation == who.incarnation, who.worker, who.incarnation, contribution.incarnation);
    update.body.weight_sum += contribution.weight;
    count_in(who, contribution, at < decision.carried.size() ? decision.carried[at] : 0);
  }
  update.body.contributors = std::move(attempt_.contributors);
  if (summary_.epochs.empty() || summary_.epochs.back().first != decision.epoch) {
    // A state from before the oldest remaining epoch cannot be shown to be on the log. The worker drops it and lists
    // the loss (R9a).
    if (summary_.epochs.size() == protocol::kSummaryEpochsMax) summary_.epochs.erase(summary_.epochs.begin());
    summary_.epochs.emplace_back(decision.epoch, decided_);
  }
  summary_.threshold = decision.threshold;
  summary_.log_digest = protocol::extend_log_digest(summary_.log_digest, update.body, decision.payload.bytes);
  digests_.record(decided_ + 1, summary_.log_digest);
  history_.advance(decision.changed);
  update.body.summary = summary_;
  update.body.stable = stable_;
  update.payload = std::move(decision.payload);
  update.charge = MemoryCharge(retained_account, update.bytes());
  retained_.push_back(std::move(update));
  open_.erase(open);
  attempt_ = Attempt{};
  stage_ = Stage::kCollecting;
  ++decided_;
  last_decided_at_ = decision.at;
  return retained_.back();
}

const PartRound::RetainedUpdate* PartRound::retained(uint64_t step) const {
  if (step < stable_ || step >= decided_) return nullptr;
  return &retained_[static_cast<size_t>(step - stable_)];
}

std::optional<uint64_t> PartRound::digest_after(uint64_t n) const {
  if (n == decided_) return summary_.log_digest;
  return digests_.last() == decided_ ? digests_.after(n) : std::nullopt;
}

const protocol::SummaryEntry* PartRound::counted_of(uint32_t worker) const {
  const auto at = std::ranges::lower_bound(summary_.workers, worker, {}, &protocol::SummaryEntry::worker);
  return at != summary_.workers.end() && at->worker == worker ? &*at : nullptr;
}

std::optional<bool> PartRound::counted(uint32_t worker, uint64_t incarnation, uint64_t step) const {
  const protocol::SummaryEntry* at = counted_of(worker);
  if (!at || step > at->last_step || incarnation > at->incarnation) return false;
  const uint64_t back = at->last_step - step;
  if (back > spec_->staleness || back >= 64) return std::nullopt;
  if (((at->counted_mask >> back) & 1) == 0) return false;
  const auto under =
      std::ranges::find_if(at->earlier_incarnations, [step](const auto& one) { return one.second >= step; });
  return (under == at->earlier_incarnations.end() ? at->incarnation : under->first) == incarnation;
}

bool PartRound::is_in_log(uint64_t n, uint64_t decided_in) const {
  if (n > decided_) return false;
  if (n == 0) return true;
  const auto after = std::ranges::upper_bound(summary_.epochs, n - 1, {}, &std::pair<uint64_t, uint64_t>::second);
  return after != summary_.epochs.begin() && std::prev(after)->first == decided_in;
}

bool PartRound::acknowledge(uint32_t worker, uint64_t n, std::span<const protocol::Member> members) {
  if (n > decided_) return false;
  if (n == 0) return true;  // a heartbeat before the first step: no record for each part
  uint64_t& known = acknowledged_[worker];
  if (n <= known) return true;
  const bool was_last = known <= stable_;  // below it: one that joined when the steps before were forgotten
  known = n;
  if (was_last) forget_stable(members);
  return true;
}

uint64_t PartRound::acknowledged(uint32_t worker) const {
  const auto at = acknowledged_.find(worker);
  return at == acknowledged_.end() ? 0 : at->second;
}

uint64_t PartRound::acknowledged_by_all(std::span<const protocol::Member> members) const {
  uint64_t least = members.empty() ? 0 : UINT64_MAX;
  for (const protocol::Member& member : members) least = std::min(least, acknowledged(member.worker));
  return least;
}

void PartRound::forget_stable(std::span<const protocol::Member> members) {
  if (members.empty()) return;
  const uint64_t least = std::min({decided_, retained_from_, acknowledged_by_all(members)});
  for (; stable_ < least; ++stable_) retained_.pop_front();
}

PartRound::Adopted PartRound::adopt(std::span<const protocol::Member> before, const Members& view) {
  const std::span<const protocol::Member> members = view.all();
  settled_.clear();
  replicated_ = 0;
  Adopted result;
  for (auto step = open_.begin(); step != open_.end();) {
    for (auto slot = step->second.by_worker.begin(); slot != step->second.by_worker.end();) {
      if (is_member(members, slot->first, slot->second.incarnation)) {
        ++slot;
        continue;
      }
      if (slot->second.is_decoded()) --step->second.decoded;
      slot = step->second.by_worker.erase(slot);
      ++result.dropped;
    }
    step = step->second.by_worker.empty() ? open_.erase(step) : std::next(step);
  }
  result.dropped += arrivals_.keep(members);
  for (const protocol::Member& old : before) {
    if (!is_member(members, old.worker, old.incarnation)) acknowledged_.erase(old.worker);
  }
  const bool lost = std::ranges::any_of(attempt_.contributors, [&](const protocol::ContributorId& who) {
    return !is_member(members, who.worker, who.incarnation);
  });
  // Where all members are counted, a new member must be as well: an attempt that began without it is given up.
  const bool incomplete =
      spec_->mode == protocol::Mode::kSynchronous && attempt_.contributors.size() != view.synced().size();
  if (stage_ != Stage::kCollecting && (lost || incomplete)) {
    attempt_ = Attempt{};
    stage_ = Stage::kCollecting;
    result.restarted = true;
  }
  forget_stable(members);
  return result;
}

void PartRound::restore(Restored restored, TimeNs now) {
  MILLRACE_CHECK(decided_ == 0 && open_.empty() && restored.retained.size() <= restored.decided, layout_.part,
                 decided_);
  decided_ = restored.decided;
  last_decided_at_ = now;
  stable_ = decided_ - restored.retained.size();
  for (RetainedUpdate& kept : restored.retained) retained_.push_back(std::move(kept));
  summary_ = std::move(restored.summary);
  if (decided_ != 0) digests_.record(decided_, summary_.log_digest);
  history_.restart(decided_);
}

bool PartRound::advance_replicated(const Members& members) {
  const size_t wanted = spec_->apply_after_acks;
  const size_t needed = members.membership().left == 0 ? wanted : std::min(wanted, members.all().size());
  if (needed == 0 || members.synced().size() < needed) return false;
  std::vector<uint64_t> acks;
  for (const protocol::Member& member : members.synced()) acks.push_back(acknowledged(member.worker));
  const auto least = acks.begin() + static_cast<std::ptrdiff_t>(needed - 1);
  std::ranges::nth_element(acks, least, std::greater<>());
  if (*least <= replicated_) return false;
  replicated_ = *least;
  return true;
}

}  // namespace millrace::server
