#include <algorithm>

#include "kernels/base/check.h"
#include "protocol/base/limits.h"
#include "protocol/container/container.h"
#include "server/rounds/job_rounds.h"
#include "server/rounds/update_delivery.h"

/// Mode asynchronous: how decided steps get to the members.
namespace millrace::server {
namespace {

/// Limit on payloads that are summed into one: bounds the memory and the time of a merge.
constexpr uint64_t kMergedBytesMax = 32u << 20;

uint64_t decoded_bytes_of_step(const PartRound& part, uint64_t step) {
  return decoded_bytes_of(part.retained(step)->payload.bytes, part.dimension()).value_or(0);
}

}  // namespace

Delivery& JobRounds::delivery_of(const PartRound& part) {
  return deliveries_.at(static_cast<size_t>(&part - parts_.data()));
}

const Delivery& JobRounds::delivery_of(const PartRound& part) const {
  return deliveries_.at(static_cast<size_t>(&part - parts_.data()));
}

/// Returns how the member's updates may be sent: merged, or step by step.
///
/// Sums of values that were rounded for the wire do not fit its code, and weighted means have no sum. A store is
/// brought up to date from the updates that members retain, step by step. And no member can get the steps of a merged
/// update again. After its shard has died, a worker that lacks one of them leaves and rejoins with another worker's
/// weights (tests/models/rounds, --merged). So all must have weights, and the job must continue while one is left.
Delivery::Pace JobRounds::pace(const PartRound& part, const protocol::Member& to) const {
  const CodecSpec& codec = bucket_of(part).layout->codec_down;
  const bool exact = find_value_codec(codec.value)->lossless(codec);
  const bool may_leave = !store_ && setup_.spec.workers_min <= 1;
  const bool merges = exact && may_leave && setup_.spec.combine != protocol::Combine::kWeightedMean &&
                      setup_.members.all_take_merged() && to.state == protocol::MemberState::kSynced;
  return merges ? Delivery::Pace::kMerged : Delivery::Pace::kEach;
}

void JobRounds::deliver(const protocol::Member& to, PartRound& part, uint64_t& room, Actions& actions) {
  if (part.takes(to)) deliver_at(pace(part, to), to, part, room, actions);
}

void JobRounds::deliver_at(Delivery::Pace how, const protocol::Member& to, PartRound& part, uint64_t& room,
                           Actions& actions) {
  Delivery& delivery = delivery_of(part);
  while (room > 0) {
    std::optional<Delivery::Steps> steps = delivery.next(to.worker, part.decided(), how);
    if (!steps) return;
    steps->from = std::max(steps->from, part.stable());
    if (how == Delivery::Pace::kMerged) {
      const uint64_t decoded_bytes = limit_merged(part, *steps);
      if (steps->below - steps->from > 1) return begin_merge(to, part, *steps, decoded_bytes, actions);
    } else {
      steps->below = served_below(part, steps->from, steps->below, room);
    }
    serve_between(to, part, steps->from, steps->below, actions);
    delivery.sent(to.worker, steps->below, how);
  }
}

uint64_t JobRounds::limit_merged(const PartRound& part, Delivery::Steps& steps) {
  uint64_t bytes = 0;
  uint64_t below = steps.from;
  for (; below < steps.below && below - steps.from < protocol::kMergedStepsMax; ++below) {
    const uint64_t more = decoded_bytes_of_step(part, below);
    if (below != steps.from && bytes + more > kMergedBytesMax) break;
    bytes += more;
  }
  steps.below = below;
  return bytes;
}

void JobRounds::begin_merge(const protocol::Member& to, PartRound& part, Delivery::Steps steps, uint64_t decoded_bytes,
                            Actions& actions) {
  const uint64_t token = next_token_++;
  if (!delivery_of(part).wait_for_sum(to.worker, steps, token, MemoryCharge(account_, decoded_bytes))) return;
  MergeTask::Input input;
  input.key = {setup_.members.membership().job, part.layout().part, steps.from, token};
  input.index = chooser_of(part).resolved(setup_.layout.buckets[part.layout().bucket].codec_down).index;
  input.index_base = part.layout().begin;
  input.dimension = part.dimension();
  for (uint64_t step = steps.from; step < steps.below; ++step) {
    const PartRound::RetainedUpdate& kept = *part.retained(step);
    input.payloads.push_back(kept.payload);
    input.bytes_apart += kept.payload.bytes.size() + kept.bytes_beside_payload();
  }
  input.bytes_beside = part.retained(steps.below - 1)->bytes_beside_payload() +
                       (steps.below - steps.from) * sizeof(protocol::MergedStep);
  actions.tasks.push_back(std::make_shared<MergeTask>(std::move(input)));
}

void JobRounds::on_merged(const MergeTask& task, Actions& actions) {
  PartRound* part = local_part(task.input().key.part);
  MILLRACE_CHECK(part != nullptr, task.input().key.part);
  const Delivery::Steps steps{task.input().key.step, task.input().key.step + task.input().payloads.size()};
  const Delivery::Waiting waiting = delivery_of(*part).take_waiting(steps, task.input().key.token);
  for (const uint32_t worker : waiting.workers) {
    const protocol::Member* const to = find_member(setup_.members.membership(), worker);
    MILLRACE_CHECK(to != nullptr, worker);  // on_membership() clears
    if (steps.from < part->stable()) {
      // It asked for steps that it had acknowledged before. Meanwhile all other members have them, too: they are
      // forgotten.
      delivery_of(*part).restart(worker, part->stable());
      deliver(*to, *part, actions);
      continue;
    }
    if (task.result()) {
      serve_merged(*to, *part, steps, *task.result(), actions);
    } else {
      serve_between(*to, *part, steps.from, steps.below, actions);
    }
    delivery_of(*part).sent(worker, steps.below, Delivery::Pace::kMerged);
    deliver(*to, *part, actions);
  }
  if (!waiting.begun_by) return;
  if (const protocol::Member* const to = find_member(setup_.members.membership(), *waiting.begun_by))
    deliver(*to, *part, actions);
}

void JobRounds::serve_merged(const protocol::Member& to, const PartRound& part, Delivery::Steps steps,
                             const SharedBytes& payload, Actions& actions) const {
  const Members::Link* link = setup_.members.link(to.worker);
  if (!link || !link->peer) return;
  protocol::Update body = part.retained(steps.below - 1)->body;
  body.stable = part.stable();
  body.branch = branch_;
  body.contributors.clear();
  body.weight_sum = 0;
  for (uint64_t step = steps.from; step < steps.below; ++step) {
    const PartRound::RetainedUpdate& kept = *part.retained(step);
    body.weight_sum += kept.body.weight_sum;
    body.merged.push_back(
        {kept.body.contributors.front(), kept.body.weight_sum, container_identity(kept.payload.bytes).value_or(0)});
  }
  count(Metric::kMergedSteps, "", static_cast<double>(body.merged.size()), actions);
  count(Metric::kMergedUpdates, "", 1, actions);
  setup_.members.send(to, std::move(body), payload, actions);
}

void JobRounds::send_rest(Actions& actions) {
  if (failure_ || !asynchronous()) return;
  for (PartRound& part : parts_) {
    for (const protocol::Member& member : setup_.members.synced()) {
      uint64_t room = kServedBytesMax;
      deliver_at(Delivery::Pace::kEach, member, part, room, actions);
    }
  }
}

void JobRounds::acknowledged(const protocol::Member& from, PartRound& part, uint64_t n, Actions& actions) {
  if (!asynchronous()) return;
  delivery_of(part).acknowledged(from.worker, n);
  deliver(from, part, actions);
}

void JobRounds::deliver_anew(std::span<const protocol::Member> before, Actions& actions) {
  for (PartRound& part : parts_) {
    Delivery& delivery = delivery_of(part);
    delivery.clear();
    for (const protocol::Member& member : setup_.members.synced()) {
      // A worker that has just become synced asks for the updates that it lacks.
      const bool is_new = std::ranges::find(before, member) == before.end();
      const uint64_t n = part.acknowledged(member.worker);
      delivery.restart(member.worker, is_new || n < part.stable() ? part.decided() : n);
      deliver(member, part, actions);
    }
  }
}

}  // namespace millrace::server
