#include <algorithm>
#include <cmath>

#include "protocol/messages/log_branch.h"
#include "tests/sim/sim_shard.h"
#include "tests/sim/sim_worker.h"

namespace millrace::testing {
namespace {

void add_to_sim_worker_law(std::vector<double>& target, const StreamView& stream, uint64_t begin) {
  for (size_t i = 0; i < stream.values.size(); ++i)
    target[begin + (stream.dense ? i : stream.indices[i])] += static_cast<double>(stream.values[i]);
}

bool same_entries(const StreamView& a, const StreamView& b) {
  std::vector<double> left(a.dimension, 0.0);
  std::vector<double> right(a.dimension, 0.0);
  if (a.dimension != b.dimension) return false;
  add_to_sim_worker_law(left, a, 0);
  add_to_sim_worker_law(right, b, 0);
  return left == right;
}

}  // namespace

SimWorker::Counted SimWorker::counted_at(uint32_t part, LogPosition place) const {
  Counted counted;
  for (const uint64_t incarnation : lives_) {
    if (!world_.oracle.counted(part, place, worker_, incarnation)) continue;
    counted.any = true;
    for (const protocol::ContributorId& id : world_.oracle.find(part, place)->contributors) {
      if (id.worker != worker_ || id.incarnation != incarnation) continue;
      const Stream* sent = world_.oracle.contribution_of(part, place.n - 1, id);
      counted.with_entries = counted.with_entries || sent == nullptr || sent->count() > 0;
    }
  }
  return counted;
}

void SimWorker::check_applied(const std::string& where, const worker::DeliveredUpdate& update,
                              std::span<const LogPosition> places) {
  size_t contributors = 0;
  Counted counted;
  bool credited = false;
  for (const LogPosition& place : places) {
    const DecidedStep& decided = *world_.oracle.find(update.part, place);
    const double denominator = denominator_of(world_.scenario.spec, decided.contributors.size(), decided.weight_sum);
    // An update without entries divides nothing.
    if (update.sum.view.count() > 0 && update.denominator != denominator)
      world_.fault(where + ": denominator " + std::to_string(update.denominator) + " instead of " +
                   std::to_string(denominator));
    contributors += decided.contributors.size();
    const Counted here = counted_at(update.part, place);
    counted = {counted.any || here.any, counted.with_entries || here.with_entries};
    credited = credited || credited_at_.contains({update.part, place});
  }
  if (update.contributors != contributors) world_.fault(where + ": another number of contributors than the update's");
  // Weights that it returned to may lack updates that it had applied before: those were settled long ago.
  if (credited) return;
  // The contribution of an earlier incarnation was returned; the empty one in its place was counted.
  const bool in_its_place = counted.any && !update.counted && !counted.with_entries;
  if (update.counted != counted.any && !in_its_place) world_.fault(where + ": the worker is wrong about being counted");
}

void SimWorker::check_law() {
  if (!core_ || was_killed_ || left_the_run_) return;
  follow_unreturnable();
  for (uint32_t bucket = 0; bucket < entered_.size(); ++bucket) {
    check_bucket(bucket);
    check_losses(bucket);
  }
  for (uint32_t part = 0; part < at_.size(); ++part) check_opening(part);
  check_audit();
  const worker::Phase phase = core_->phase();
  const bool settled = phase == worker::Phase::kRunning || phase == worker::Phase::kFinishing;
  if (settled || !loaded_) check_saved_state();  // else the loaded values are in no account yet
}

void SimWorker::add_outstanding(uint32_t bucket, std::vector<double>& whole) {
  for (const auto& out : core_->outstanding(bucket)) {
    add_to_sim_worker_law(whole, out.sent, out.begin);
    const Stream* seen = world_.oracle.contribution(out.part, out.step, worker_, out.incarnation);
    if (seen != nullptr && !same_entries(out.sent, seen->view()))
      world_.fault(name() + " part " + std::to_string(out.part) + " step " + std::to_string(out.step) +
                   ": the sent entries are not those that the receiver decodes");
  }
}

/// Checks, per index: entered + initial residual = residual + in flight + carried + ledger.
bool SimWorker::accounts_agree(uint32_t bucket, std::string& why) {
  const std::vector<double>& entered = entered_[bucket];
  std::vector<double> held(entered.size(), 0.0);
  const Stream residual = core_->residual(bucket);
  add_to_sim_worker_law(held, residual.view(), 0);
  add_outstanding(bucket, held);
  const std::vector<double>& carried = credited_[bucket];
  const auto ledger = core_->ledger(bucket);
  const auto entered_core = core_->entered(bucket);
  const auto opening = core_->opening_residual(bucket);
  const double slack = world_.scenario.exact ? 0.0 : 1e-3;
  for (size_t i = 0; i < entered.size(); ++i) {
    const double accounted = held[i] + carried[i] + ledger[i];
    const double came = entered[i] + opening[i];
    const bool lawful = std::fabs(came - accounted) <= slack * (1 + std::fabs(came));
    if (lawful && entered_core[i] == entered[i]) continue;
    why = name() + " bucket " + std::to_string(bucket) + " index " + std::to_string(i) + ": entered " +
          std::to_string(entered[i]) + " (the core says " + std::to_string(entered_core[i]) + "), began with " +
          std::to_string(opening[i]) + ", accounted for " + std::to_string(accounted) + " = residual and in flight " +
          std::to_string(held[i]) + " + carried " + std::to_string(carried[i]) + " + ledger " +
          std::to_string(ledger[i]);
    return false;
  }
  return true;
}

/// Checks the core's own audit where the job asks for it: nothing is missing in any part, and the terms make up the
/// sum.
void SimWorker::check_audit() {
  worker::Actions actions;
  const worker::AuditSums sums = core_->audit(actions);
  if (sums.audits != world_.scenario.spec.audit)
    world_.fault(name() + " audits where it was not asked, or the other way");
  if (!sums.audits) return;
  if (sums.imbalance != 0) {
    std::string why = name() + " audit: imbalance " + std::to_string(sums.imbalance);
    for (const auto& line : actions.log) why += "; " + line.text;
    world_.fault(why);
  }
  const double accounted = sums.in_residual + sums.in_flight + sums.carried + sums.lost;
  const double slack = world_.scenario.exact ? 0.0 : 1e-6;
  if (std::fabs(sums.entered - accounted) > slack * (1 + std::fabs(sums.entered))) {
    world_.fault(name() + " audit: entered " + std::to_string(sums.entered) + " but the terms make up " +
                 std::to_string(accounted));
  }
}

void SimWorker::check_bucket(uint32_t bucket) {
  std::string why;
  if (!accounts_agree(bucket, why)) world_.fault(why);
}

/// Checks that the ledger has the unreturnable contributions and nothing else, where no rule loses more. Exempt are
/// jobs whose codecs drop errors, values off the grid, and parts that a verdict let lose values.
void SimWorker::check_losses(uint32_t bucket) {
  const protocol::JobSpec& spec = world_.scenario.spec;
  if (!world_.scenario.exact || spec.codec_error != protocol::CodecError::kRetain || spec.unbiased) return;
  const auto ledger = core_->ledger(bucket);
  std::vector<double> named(ledger.size(), 0.0);
  std::vector<bool> exempt = may_lose_;
  for (const UnreturnableContribution& one : core_->unreturnable()) {
    const protocol::PartLayout& range = world_.layout.parts[one.part];
    const Stream* sent = world_.oracle.contribution(one.part, one.step, worker_, one.incarnation);
    if (sent == nullptr) exempt[one.part] = true;  // it was never on the wire
    if (sent != nullptr && range.bucket == bucket) add_to_sim_worker_law(named, sent->view(), range.begin);
  }
  for (const protocol::PartLayout& range : world_.layout.parts) {
    if (range.bucket != bucket || exempt[range.part]) continue;
    for (uint64_t i = range.begin; i < range.end; ++i) {
      if (ledger[i] == named[i]) continue;
      return world_.fault(name() + " bucket " + std::to_string(bucket) + " index " + std::to_string(i) +
                          ": the ledger has " + std::to_string(ledger[i]) +
                          ", and unreturnable contributions make up " + std::to_string(named[i]));
    }
  }
}

/// Checks that an unreturnable contribution was counted, or is beyond the summary of the settlement (R9c). Only where
/// the oracle has seen the whole log.
void SimWorker::check_unreturnable(const UnreturnableContribution& one) {
  const bool restarted = std::ranges::any_of(world_.shards, [](const auto& shard) { return shard->incarnation() > 1; });
  const bool asynchronous = world_.scenario.spec.mode == protocol::Mode::kAsynchronous;
  if (restarted || asynchronous || world_.scenario.link.corruption > 0) return;
  if (!world_.oracle.left_out(one.part, one.step, worker_, one.incarnation)) return;
  // An empty contribution of this process may have been counted since, or one of another process with its number.
  if (summary_until_[one.part] > one.step + 1 + world_.scenario.spec.staleness) return;
  world_.fault(name() + " part " + std::to_string(one.part) + " step " + std::to_string(one.step) +
               ": the contribution is lost as unreturnable, and the step did not count it");
}

/// Where an update was skipped, its bytes may be gone: then all of the contribution is in the ledger, carried or not.
void SimWorker::follow_unreturnable() {
  const std::vector<UnreturnableContribution>& named = core_->unreturnable();
  for (; unreturnable_seen_ < named.size(); ++unreturnable_seen_) {
    const UnreturnableContribution& one = named[unreturnable_seen_];
    check_unreturnable(one);
    const auto skipped = std::ranges::find_if(skipped_, [&](const Skipped& other) {
      return other.part == one.part && other.at.n == one.step + 1 && other.incarnation == one.incarnation;
    });
    if (skipped == skipped_.end()) continue;  // nothing of it was carried
    const protocol::PartLayout& range = world_.layout.parts[one.part];
    std::vector<double> carried(range.end - range.begin, 0.0);
    world_.oracle.add_carried(one.part, skipped->at, worker_, one.incarnation, carried);
    for (size_t i = 0; i < carried.size(); ++i) credited_[range.bucket][range.begin + i] -= carried[i];
    skipped_.erase(skipped);
  }
}

/// Notes the shard's verdict on this worker's state. The kept state is checked when the log up to there is here.
void SimWorker::note_settle(const protocol::Settle& settle) {
  told_a_place_ =
      told_a_place_ || (!world_.scenario.has_weights && settle.weights == protocol::Settle::Weights::kSnapshot);
  if (settle.part >= at_.size() || settle.weights == protocol::Settle::Weights::kNone) return;
  summary_until_[settle.part] = world_.oracle.counted_until(settle.part, worker_);
  // R9a. Besides, a loaded residual that an earlier verdict accepted may be dropped by a later one (R9b).
  const bool has_pushed = std::ranges::max(pushed_) > 0;
  if (!settle.on_log || (loaded_ && verdicts_[settle.part] && !has_pushed)) may_lose_[settle.part] = true;
  if (!loaded_) return;
  const uint32_t shard = world_.layout.parts[settle.part].shard;
  const bool on_path = protocol::is_on_path(core_->membership(), shard, loaded_->state.parts[settle.part].branch);
  const uint64_t saved_n = loaded_->state.parts[settle.part].n;
  const bool counted = settle.counted && settle.counted->last_step >= saved_n;
  const bool usable = settle.on_log && !counted;
  std::optional<bool>& verdict = verdicts_[settle.part];
  was_usable_[settle.part] = was_usable_[settle.part] || (verdict && *verdict);
  was_unusable_[settle.part] = was_unusable_[settle.part] || (verdict && !*verdict);
  verdict = usable;
  opening_[settle.part] = Opening{settle.decided, settle.on_log, on_path, core_->membership().branches};
}

/// A saved residual counts exactly where the state is on the log and nothing of the worker was counted since it was
/// saved.
void SimWorker::check_opening(uint32_t part) {
  if (!opening_[part] || at_[part].n < opening_[part]->decided) return;
  const Opening judged = *opening_[part];
  const protocol::PartLayout& range = world_.layout.parts[part];
  const LogPosition saved_at = loaded_->at[part];
  if (!judged.on_log && at_[part] == saved_at) return;  // the state that replaces it has not come
  bool counted_since = false;
  for (const LogPosition& place : world_.oracle.path(part, saved_at.n, at_[part])) {
    for (const auto& id : world_.oracle.find(part, place)->contributors)
      counted_since = counted_since || (id.worker == worker_ && !lives_.contains(id.incarnation));
  }
  const bool on_log = judged.lineage_is_on_path && world_.oracle.is_on_path(part, saved_at, at_[part]);
  // It was the log for a time, regardless of later events.
  const bool was_cut_to = std::ranges::any_of(world_.oracle.views(), [&](const auto& entry) {
    const protocol::Membership& membership = entry.second;
    const auto own = std::ranges::find(membership.members, worker_, &protocol::Member::worker);
    return membership.cut == membership.epoch && membership.cut_worker == worker_ && own != membership.members.end() &&
           lives_.contains(own->incarnation);
  });
  const bool was_usable = was_usable_[part] || was_cut_to;
  const std::string where = name() + " part " + std::to_string(part);
  std::vector<double> saved(world_.layout.buckets[range.bucket].dimension, 0.0);
  for (const auto& member : world_.layout.buckets[range.bucket].members)
    add_to_sim_worker_law(saved, loaded_->state.tensors[member.tensor].residual.view(), member.offset);
  const auto opening = core_->opening_residual(range.bucket);
  bool all = true, none = true;
  for (uint64_t i = range.begin; i < range.end; ++i) {
    all = all && opening[i] == saved[i];
    none = none && opening[i] == 0;
  }
  opening_[part].reset();
  if (counted_since && !none && !was_usable)
    world_.fault(where + " began with a residual of which something was counted");
  if (!on_log && !none && !was_usable) world_.fault(where + " began with a residual of a state off the log");
  // A count at the time of the verdict may be void since a cut, or a shard's death; the residual is dropped all the
  // same.
  const bool cut_since = core_->membership().branches > judged.branches;
  if (on_log && !counted_since && !all && !was_unusable_[part] && !cut_since)
    world_.fault(where + " dropped a saved residual without need");
}

void SimWorker::check_saved_state() {
  const worker::SavedState state = core_->saved_state();
  if (state.tensors.size() != pushed_.size())
    return world_.fault(name() + ": the saved state has another number of tensors");
  const auto encoded = worker::encode_saved_state(state);
  const auto decoded = worker::decode_saved_state(encoded);
  if (!decoded) return world_.fault(name() + ": the saved state cannot be read: " + decoded.error().message);
  for (const auto& bucket : world_.layout.buckets) {
    std::vector<double> whole(bucket.dimension, 0.0);
    const Stream residual = core_->residual(bucket.bucket);
    add_to_sim_worker_law(whole, residual.view(), 0);
    add_outstanding(bucket.bucket, whole);
    std::vector<double> saved(bucket.dimension, 0.0);
    for (const auto& member : bucket.members) {
      const auto& tensor = decoded->tensors[member.tensor];
      add_to_sim_worker_law(saved, tensor.residual.view(), member.offset);
      const uint64_t before = loaded_ ? loaded_->state.tensors[member.tensor].steps_pushed : 0;
      if (tensor.steps_pushed != before + pushed_[member.tensor])
        return world_.fault(name() + ": the saved state has another number of steps pushed");
    }
    const double slack = world_.scenario.exact ? 0.0 : 1e-3;
    for (size_t i = 0; i < saved.size(); ++i) {
      if (std::fabs(saved[i] - whole[i]) <= slack * (1 + std::fabs(whole[i]))) continue;
      return world_.fault(name() + " bucket " + std::to_string(bucket.bucket) + " index " + std::to_string(i) +
                          ": saved " + std::to_string(saved[i]) + ", residual and everything in flight are " +
                          std::to_string(whole[i]));
    }
  }
}

void SimWorker::check_finished() {
  for (uint32_t part = 0; part < at_.size(); ++part) {
    // Every push went into a step of its own, except those that were returned whole while this worker was out for a
    // while.
    if (core_->counters().returns == 0 && at_[part].n < steps_)
      world_.fault(name() + " finished with part " + std::to_string(part) + " at step " + std::to_string(at_[part].n));
  }
  for (uint32_t bucket = 0; bucket < entered_.size(); ++bucket) {
    if (!core_->outstanding(bucket).empty()) world_.fault(name() + " finished with contributions in flight");
  }
}

}  // namespace millrace::testing
