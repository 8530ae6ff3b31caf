#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "protocol/container/container.h"
#include "worker/core/session_core_impl.h"

/// Pushes and steps: the step of a push where it is not the push's number, and their new numbers after a rejoin (R1a,
/// R9e).
namespace millrace::worker {
namespace {

/// The weight of an empty contribution in a weighted mean: it must be positive, and this one changes no sum of others.
constexpr double kLeastWeight = 0x1p-126;

bool holds(const PartRun& part, uint64_t step) {
  return std::ranges::find(part.outstanding, step, &Outstanding::step) != part.outstanding.end();
}

/// REQUIRES: some tensors of the bucket are pushed for its next push, and others are not.
std::string unpushed_neighbour(const protocol::JobSpec& spec, const protocol::BucketLayout& bucket,
                               std::span<const TensorRun> tensors) {
  const auto is_pushed = [&](const protocol::BucketMember& member) { return tensors[member.tensor].committed; };
  const auto pushed = std::ranges::find_if(bucket.members, is_pushed);
  const auto missing = std::ranges::find_if_not(bucket.members, is_pushed);
  MILLRACE_CHECK(pushed != bucket.members.end() && missing != bucket.members.end(), bucket.members.size());
  return "tensor '" + spec.tensors[pushed->tensor].name + "' travels with '" + spec.tensors[missing->tensor].name +
         "' (fuse_below), which has not been pushed for step " + std::to_string(tensors[missing->tensor].pushed);
}

}  // namespace

// A push is sent when every tensor of its bucket has been pushed. Jobs that clip, or that use path switch, send it when
// every tensor has been pushed. So all their tensors must be pushed equally often.
std::string SessionCore::Impl::push_waits_for() const {
  for (const BucketRun& run : buckets) {
    // The update of an earlier push may be missing for another reason.
    if (run.committed_slots == 0 || answers_handed(run) < run.pushed) continue;
    return unpushed_neighbour(config.spec, layout.buckets[static_cast<size_t>(&run - buckets.data())], tensors);
  }
  if (!clip.on() && !by_switch()) return {};
  const uint64_t most = std::ranges::max(tensors, {}, &TensorRun::pushed).pushed;
  const auto behind = std::ranges::find_if(tensors, [&](const TensorRun& run) { return run.pushed < most; });
  if (behind == tensors.end()) return {};
  return "tensor '" + config.spec.tensors[static_cast<size_t>(behind - tensors.begin())].name +
         "' has not been pushed for step " + std::to_string(most - 1) +
         (clip.on() ? ": gradients are clipped by the norm over all tensors"
                    : ": on path switch a step has all tensors");
}

void SessionCore::Impl::number(uint64_t push, uint64_t step, TimeNs now, Actions& actions) {
  if (push == first_numbered + numbered.size()) {
    const auto left = std::ranges::count_if(buckets, [&](const BucketRun& run) { return number_of(run) <= push; });
    numbered.push_back({step, static_cast<size_t>(left)});
    next_step = step + 1;
    for (BucketRun& run : buckets) {
      // The bucket had selected that push before this worker rejoined, and has nothing more for its new step.
      if (run.pushed == 0 || number_of(run) <= push) continue;
      send_empty_contributions(run, step + 1);
      send_unsent(run, now, actions);
    }
  }
  --numbered[push - first_numbered].buckets_left;
  while (!numbered.empty() && numbered.front().buckets_left == 0) {
    numbered.pop_front();
    ++first_numbered;
  }
}

bool SessionCore::Impl::restart_numbers(TimeNs now, Actions& actions) {
  if (asynchronous()) {
    restart_sequences(actions);
    return true;
  }
  numbered.clear();
  next_step = 0;
  for (const PartRun& part : parts) {
    if (!part.outstanding.empty()) next_step = std::max(next_step, part.outstanding.back().step + 1);
  }
  uint64_t first = UINT64_MAX;
  uint64_t least = UINT64_MAX;
  uint64_t most = 0;
  for (const BucketRun& run : buckets) {
    if (run.pushed == 0) continue;
    first = std::min(first, number_of(run));
    least = std::min(least, run.pushed + run.number_offset);
    most = std::max(most, run.pushed + run.number_offset);
  }
  first_numbered = first == UINT64_MAX ? 0 : first;
  if (first != UINT64_MAX && most - least > uint64_t{config.spec.staleness} + 1) {
    end_session(
        {ErrorCode::kUnsupported, "this worker's tensors were not pushed equally often (" + std::to_string(least) +
                                      " to " + std::to_string(most) + " times): so it cannot rejoin"},
        now, actions);
    return false;
  }
  for (BucketRun& run : buckets) {
    if (run.pushed == 0) run.number_offset = first_numbered;
    recall_pushes(run);
  }
  for (PartRun& part : parts) answer_returned(part, actions);
  for (BucketRun& run : buckets) {
    answer_pushes(run);
    if (run.pushed > 0) send_empty_contributions(run, next_step);
  }
  return true;
}

// Of a push that no part waits for any more the step means nothing: it is answered right after the push before it.
void SessionCore::Impl::recall_pushes(BucketRun& run) {
  run.returned_to = run.selected;
  uint64_t before = 0;
  for (uint64_t& step : run.steps) {
    bool held = false;
    for (uint32_t part = run.first_part; part < run.first_part + run.part_count; ++part)
      held = held || holds(parts[part], step);
    if (!held) step = before;
    before = step;
  }
}

void SessionCore::Impl::answer_returned(PartRun& part, Actions& actions) {
  const BucketRun& run = buckets[part.layout.bucket];
  while (part.answers < run.returned_to) {
    const uint64_t push = std::max(part.answers, run.answered);
    if (push >= run.returned_to) return;
    const uint64_t step = run.steps[push - run.answered];
    if (holds(part, step)) return;  // its update will answer
    answer_without_update(part, push, step, actions);
  }
}

void SessionCore::Impl::answer_without_update(PartRun& part, uint64_t push, uint64_t step, Actions& actions) {
  DeliveredUpdate answered;
  answered.bucket = part.layout.bucket;
  answered.part = part.layout.part;
  answered.step = answered.first_step = step;
  answered.push = push;
  answered.begin = part.layout.begin;
  answered.sum = SharedStream::from(Stream::empty(part.dimension()));
  answered.delivered_before = true;
  part.answers = push + 1;
  hand_over(part, std::move(answered), 0, actions);
}

void SessionCore::Impl::answer_pushes(BucketRun& run) {
  const auto is_answered = [&] {
    if (run.answered >= run.returned_to && !asynchronous()) return run.steps.front() < run.steps_applied;
    const auto first = parts.begin() + run.first_part;
    return std::all_of(first, first + run.part_count, [&](const PartRun& part) { return part.answers > run.answered; });
  };
  for (; !run.steps.empty() && is_answered(); ++changes) {
    run.steps.pop_front();
    ++run.answered;
  }
}

void SessionCore::Impl::send_empty_contributions(BucketRun& run, uint64_t below) {
  for (uint32_t number = run.first_part; number < run.first_part + run.part_count; ++number) {
    PartRun& part = parts[number];
    for (uint64_t step = part.n; step < below; ++step) {
      const auto at = std::ranges::lower_bound(part.outstanding, step, {}, &Outstanding::step);
      if (at != part.outstanding.end() && at->step == step) continue;
      Outstanding out;
      out.step = step;
      out.incarnation = incarnation;
      out.sent = SharedStream::from(Stream::empty(part.dimension()));
      make_empty(part, out);
      part.outstanding.insert(at, std::move(out));
    }
  }
}

// A push may be for a step that its bucket has not reached. The steps before it get no contribution of this worker, and
// members that need one there would wait forever.
void SessionCore::Impl::fill_numbered_gaps(TimeNs now, Actions& actions) {
  for (const auto& [priority, bucket] : ready) {
    BucketRun& run = buckets[bucket];
    const uint64_t push = number_of(run);
    const bool is_numbered = push >= first_numbered && push < first_numbered + numbered.size();
    if (!must_fill_gaps(run) || !is_numbered || run.selected != run.coded) continue;
    send_empty_contributions(run, numbered[push - first_numbered].step);
    send_unsent(run, now, actions);
  }
}

void SessionCore::Impl::send_unsent(BucketRun& run, TimeNs now, Actions& actions) {
  for (uint32_t number = run.first_part; number < run.first_part + run.part_count; ++number) {
    PartRun& part = parts[number];
    if (links[part.layout.shard].state != LinkState::kWelcomed) continue;  // its Welcome sends everything
    send_unsent(part, now, actions);
  }
}

void SessionCore::Impl::send_unsent(PartRun& part, TimeNs now, Actions& actions) {
  if (by_switch()) return;  // the step's begin sends it
  for (Outstanding& out : part.outstanding) {
    if (!out.on_wire && may_be_taken(part, out)) send_contribution(part, out, now, actions);
  }
}

void SessionCore::Impl::make_empty(const PartRun& part, Outstanding& out) const {
  const Stream nothing = Stream::empty(part.dimension());
  auto container = encode_container(nothing.view(), StreamView{}, EncodeOptions{});
  MILLRACE_CHECK(container.has_value(), part.layout.part);
  out.payload = SharedBytes::from(std::move(container->bytes));
  out.hash = container_identity(out.payload.bytes).value();
  out.weight = config.spec.combine == protocol::Combine::kWeightedMean ? kLeastWeight : 1;
  out.known = false;
  out.refusals = 0;
  out.resend_interval = 0;
}

}  // namespace millrace::worker
