#include <algorithm>

#include "kernels/base/check.h"
#include "server/rounds/job_rounds.h"

/// Continues rounds: from the members' retained updates (R8d), for joiners (R9), without members that hold them up
/// (R6a).
namespace millrace::server {
namespace {

/// Updates that are retained for the store may have this share of the rounds' memory: half of the share of all retained
/// updates.
constexpr uint64_t kStoredShare = 4;

}  // namespace

void JobRounds::drop() {
  goes_on_ = false;
  if (store_) store_->drop();
  for (PartRound& part : parts_) part = PartRound(part.layout(), setup_.spec);
  for (Delivery& delivery : deliveries_) delivery.clear();
  for (Bucket& bucket : buckets_) {
    bucket.decided = 0;
    make_threshold(bucket);
  }
  next_due_.reset();
  blocked_on_memory_ = false;
  blocked_since_.reset();
  starved_.reset();
}

void JobRounds::restore(std::vector<PartRound::Restored> parts, uint64_t branch, TimeNs now) {
  MILLRACE_CHECK(parts.size() == parts_.size(), parts.size(), parts_.size());
  for (size_t at = 0; at < parts.size(); ++at) parts_[at].restore(std::move(parts[at]), now);
  retain_for_store();
  for (Bucket& bucket : buckets_) {
    bucket.decided = parts_[bucket.first].decided();
    for (size_t at = bucket.first; at < bucket.first + bucket.count; ++at) {
      bucket.decided = std::min(bucket.decided, parts_[at].decided());
      if (bucket.threshold) bucket.threshold->begins_at(at - bucket.first, parts_[at].decided());
    }
    if (bucket.threshold) bucket.threshold->decided_below(bucket.decided);
    if (bucket.steps && bucket.decided > 0) {
      failure_ = Error{
          ErrorCode::kUnsupported,
          "a shard was restarted in a reproducible job that re-selects: it alone had the counts of its last step, "
          "which determine the threshold of the next one, so that all later steps would have other bits; start "
          "the job again, from the weights that its workers have, or with reselect none, where shards may be "
          "restarted"};
    }
  }
  branch_ = branch;
  goes_on_ = true;
}

void JobRounds::recover_store(Actions& actions) {
  if (!store_ || !store_->is_dropped() || !goes_on_ || failure_) return;
  store_->recover([this](uint32_t number) -> const PartRound& { return part(number); }, actions);
  if (store_->failure()) failure_ = store_->failure();
  forget_stored();
  if (!failure_ && !store_->is_dropped()) check_retained(actions);
}

void JobRounds::tell_store(Actions& actions) {
  if (!store_ || !store_->is_saving()) return;
  for (const PartRound& part : parts_) {
    store_->acknowledged(part.layout().part, part.acknowledged_by_all(setup_.members.all()), part.stable());
  }
  store_->end_acknowledged(actions);
}

void JobRounds::retain_for_store() {
  if (!store_) return;
  for (PartRound& part : parts_) part.retain_from(store_->needs_from(part.layout().part));
}

void JobRounds::forget_stored() {
  retain_for_store();
  for (PartRound& part : parts_) part.forget_stable(setup_.members.all());
}

void JobRounds::announce_retained(const PartRound& part, Actions& actions) {
  if (!store_) return;
  const uint64_t before = store_->needs_from(part.layout().part);
  store_->on_retained(retained_account_.used_bytes(), memory_for_rounds() / kStoredShare, actions);
  if (store_->needs_from(part.layout().part) != before) forget_stored();
}

void JobRounds::check_retained(Actions& actions) {
  const PartRound* longest = longest_retained();
  if (longest && !longest->all_retained().empty()) announce_retained(*longest, actions);
}

void JobRounds::restore_acknowledged(uint32_t worker, const protocol::State& state) {
  for (PartRound& part : parts_) part.restore_acknowledged(worker, state.parts.at(part.layout().part).n);
}

void JobRounds::settle(uint32_t number, uint32_t worker) {
  PartRound& part = parts_.at(local_at_.at(number));
  part.settle(worker);
  if (asynchronous()) delivery_of(part).restart(worker, part.decided());
}

bool JobRounds::is_settled(uint32_t worker) const {
  return std::ranges::all_of(parts_, [worker](const PartRound& part) { return part.is_settled(worker); });
}

void JobRounds::serve_between(const protocol::Member& to, const PartRound& part, uint64_t from, uint64_t below,
                              Actions& actions) const {
  for (uint64_t step = std::max(from, part.stable()); step < std::min(below, part.decided()); ++step) {
    serve(to, part, *part.retained(step), actions);
  }
}

const PartRound* JobRounds::longest_retained() const {
  const auto kept = [](const PartRound& part) { return part.all_retained().size(); };
  const auto longest = std::ranges::max_element(parts_, {}, kept);
  return longest == parts_.end() ? nullptr : &*longest;
}

void JobRounds::extend_deadlines(TimeNs paused) {
  if (blocked_since_) *blocked_since_ += paused;
  if (starved_) starved_->since += paused;
  for (Bucket& bucket : buckets_) {
    if (bucket.threshold) bucket.threshold->extend_deadlines(paused);
  }
}

std::vector<protocol::Member> JobRounds::behind(TimeNs now) {
  const TimeNs timeout = setup_.spec.dead_after.count() * kNsPerMs;
  if (failure_ || !blocked_since_ || now < *blocked_since_ + timeout) return {};
  blocked_since_ = now;
  const PartRound* longest = longest_retained();
  if (!longest || setup_.members.all().empty()) return {};
  const auto applied = [&](const protocol::Member& member) { return longest->acknowledged(member.worker); };
  const uint64_t least = applied(*std::ranges::min_element(setup_.members.all(), {}, applied));
  const auto is_further = [&](const protocol::Member& member) { return applied(member) > least; };
  if (std::ranges::none_of(setup_.members.synced(), is_further)) return {};
  std::vector<protocol::Member> members = setup_.members.all();
  std::erase_if(members, is_further);
  return members;
}

}  // namespace millrace::server
