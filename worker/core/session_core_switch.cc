#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/grid/grid_kernels.h"
#include "kernels/grid/split_applied.h"
#include "worker/core/session_core_impl.h"
#include "worker/switch/applied_entries.h"

/// Jobs of path switch: selected entries go to the switch's client, its results become updates, and memberships are its
/// epochs. DESIGN.md, "Path switch".
namespace millrace::worker {
namespace {

struct PartRange {
  uint64_t begin = 0;  ///< of the switch's array
  uint64_t end = 0;
};

PartRange range_in(const protocol::SwitchLayout& layout, const protocol::PartLayout& part) {
  const uint64_t base = layout.bucket_begin[part.bucket];
  return {base + part.begin, base + part.end};
}

void resize(Stream& stream, size_t count) {
  stream.indices.resize(count);
  stream.values.resize(count);
}

/// Holds the outcome of a part's offered entries.
struct OfferResolved {
  Stream back;
  Stream masked;         ///< the applied values, where they are needed
  uint64_t applied = 0;  ///< number of entries of which some value was applied
  Mass carried;
  uint64_t whole = 0;  ///< number of entries of which no value was applied
  struct Lost {
    uint64_t index = 0;
    double amount = 0;
  };
  std::vector<Lost> lost;  ///< values that neither return nor were applied
};

/// Counts these entries as lost, since no worker knows their outcome.
void lose_all(const StreamView& offered, size_t first, size_t last, OfferResolved& to) {
  for (size_t at = first; at < last; ++at) {
    if (offered.values[at] != 0) to.lost.push_back({offered.indices[at], static_cast<double>(offered.values[at])});
  }
}

/// Resolves entries [first, last) by the value of each that was taken.
void resolve_run(const StreamView& offered, size_t first, size_t last, std::span<const int32_t> taken, double step,
                 OfferResolved& to, SplitCounts& counts) {
  const auto indices = offered.indices.subspan(first, last - first);
  const auto values = offered.values.subspan(first, last - first);
  const size_t masked = to.masked.indices.empty() ? 0 : counts.taken;
  const SplitCounts split =
      split_applied(indices, values, taken, step,
                    {std::span(to.masked.indices).subspan(masked), std::span(to.masked.values).subspan(masked),
                     std::span(to.back.indices).subspan(counts.back), std::span(to.back.values).subspan(counts.back)});
  counts.taken += split.taken;
  counts.back += split.back;
  to.whole += split.whole;
  to.carried += split.applied;
  if (split.adds_up) return;
  for (size_t at = 0; at < values.size(); ++at) {
    const double left = static_cast<double>(values[at]) - taken[at] * step;
    const double amount = left - static_cast<double>(static_cast<float>(left));
    if (amount != 0) to.lost.push_back({indices[at], amount});
  }
}

/// A part's entries of one step, among all that were offered in it.
struct OfferPlace {
  size_t first = 0;         ///< of the step's entries, in begin_step()'s order
  uint64_t part_begin = 0;  ///< of the array
};

/// Resolves the offered entries of a part, one by one.
///
/// with_masked the result lists the applied values entry by entry.
OfferResolved resolve_offered(const StreamView& offered, const SwitchStepDone& step, const OfferPlace& place,
                              bool with_masked) {
  OfferResolved to;
  to.back = to.masked = Stream::empty(offered.dimension);
  const size_t count = offered.count();
  const size_t first = place.first;
  const std::span<const int32_t> sent(step.offer->sent);
  MILLRACE_CHECK(first + count <= sent.size(), first, count, sent.size());
  if (with_masked) resize(to.masked, count + kSplitSlack);
  resize(to.back, count + kSplitSlack);
  SplitCounts counts;
  std::vector<int32_t> taken;
  size_t at = 0;
  auto run = std::ranges::upper_bound(step.offered, first, {}, &SwitchStepDone::Offered::last);
  for (; run != step.offered.end() && run->first < first + count; ++run) {
    const size_t begin = std::max(run->first, first) - first;
    const size_t end = std::min(run->last - first, count);
    lose_all(offered, at, begin, to);
    taken.resize(end - begin);
    // Of a window that began before the part that is below 0, modulo 2^32 as the differences are.
    const auto window_begin = static_cast<uint32_t>(run->begin - place.part_begin);
    take_applied(offered.indices.subspan(begin, end - begin), window_begin, sent.subspan(first + begin, end - begin),
                 step.applied(*run), taken);
    resolve_run(offered, begin, end, taken, run->step, to, counts);
    at = end;
  }
  lose_all(offered, at, count, to);
  if (with_masked) resize(to.masked, counts.taken);
  resize(to.back, counts.back);
  to.applied = counts.taken;
  return to;
}

/// The windows that have entries of the part, cut to those. Of many parts each looks at its own windows only.
std::vector<SwitchStepDone::Window> windows_in(const SwitchStepDone& step, const PartRange& range,
                                               uint64_t window_indices) {
  std::vector<SwitchStepDone::Window> found;
  const uint64_t first_number = range.begin / window_indices;
  auto next = std::ranges::lower_bound(step.windows, first_number, {}, &SwitchStepDone::Window::number);
  for (; next != step.windows.end() && next->number * window_indices < range.end; ++next) {
    SwitchStepDone::Window window = *next;
    const auto entries = std::span(step.indices).subspan(window.first, window.last - window.first);
    const uint64_t base = next->number * window_indices;
    const auto in_array = [base](uint16_t index) { return base + index; };
    const auto begin = std::ranges::lower_bound(entries, range.begin, {}, in_array);
    const auto end = std::ranges::lower_bound(entries, range.end, {}, in_array);
    window.last = window.first + static_cast<size_t>(end - entries.begin());
    window.first += static_cast<size_t>(begin - entries.begin());
    if (window.first < window.last) found.push_back(window);
  }
  return found;
}

/// Of these windows, indices from `begin` on.
Stream update_of(const SwitchStepDone& step, const std::vector<SwitchStepDone::Window>& windows,
                 uint64_t window_indices, uint64_t begin, uint64_t dimension) {
  Stream sum = Stream::empty(dimension);
  size_t count = 0;
  for (const SwitchStepDone::Window& window : windows) count += window.last - window.first;
  resize(sum, count);
  uint32_t* index = sum.indices.data();
  size_t at = 0;
  for (const SwitchStepDone::Window& window : windows) {
    const size_t entries = window.last - window.first;
    // Of a window that began before the part the base is below 0, modulo 2^32 as the sums are.
    const auto base = static_cast<uint32_t>(window.number * window_indices - begin);
    const uint16_t* const from = step.indices.data();
    index = std::transform(from + window.first, from + window.last, index,
                           [base](uint16_t of_window) { return base + of_window; });
    scale_integers(std::span(step.sums).subspan(window.first, entries), window.step,
                   std::span(sum.values).subspan(at, entries));
    at += entries;
  }
  return sum;
}

}  // namespace

void SessionCore::Impl::offer(uint32_t bucket, uint64_t step, TimeNs now, Actions& actions) {
  BucketRun& run = buckets[bucket];
  SharedStream all = SharedStream::from(run.bucket->offer());
  for (uint32_t number = run.first_part; number < run.first_part + run.part_count; ++number) {
    PartRun& part = parts[number];
    Outstanding out;
    out.step = step;
    out.incarnation = incarnation;
    out.sent = slice_of(all, part.layout.begin, part.layout.end);
    part.outstanding.push_back(std::move(out));
  }
  counters.raw_bytes_up += all.view.count() * (sizeof(uint32_t) + sizeof(float));
  run.offered = std::move(all);
  run.sent.push_back({.step = step, .since = now});
  run.next_in_order = run.order.size();
  ++run.coded;
  ++changes;
  if (run.coded == run.pushed) ready.erase({-static_cast<int64_t>(run.priority), bucket});
  const auto has_offer = [step](const PartRun& part) {
    return !part.outstanding.empty() && part.outstanding.back().step == step;
  };
  if (!std::ranges::all_of(parts, has_offer)) return;
  if (const Status begun = begin_switch_step(step, now); !begun) end_session(begun.error(), now, actions);
}

Status SessionCore::Impl::begin_switch_step(uint64_t step, TimeNs now) {
  size_t count = 0;
  for (PartRun& part : parts) {  // in the order of the array: by bucket, and by index within it
    part.first_offered = count;
    count += part.outstanding.back().sent.view.count();
  }
  const SharedStream offered = offered_in_array(count);
  MILLRACE_CHECK(offered.view.count() == count, offered.view.count(), count);
  return switch_path->begin_step(step, offered, now);
}

/// Returns all buckets' offered entries, `count` in total, with the indices of the switch's array.
SharedStream SessionCore::Impl::offered_in_array(size_t count) {
  const std::vector<uint64_t>& begins = switch_path->layout().bucket_begin;
  if (buckets.size() == 1 && begins[0] == 0) return std::exchange(buckets[0].offered, {});
  Stream all;
  all.indices.reserve(count);
  all.values.reserve(count);
  for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
    const SharedStream own = std::exchange(buckets[bucket].offered, {});
    const auto begin = static_cast<uint32_t>(begins[bucket]);
    std::ranges::transform(own.view.indices, std::back_inserter(all.indices),
                           [begin](uint32_t of_bucket) { return begin + of_bucket; });
    all.values.insert(all.values.end(), own.view.values.begin(), own.view.values.end());
  }
  return SharedStream::from(std::move(all));
}

void SessionCore::Impl::on_packet(const protocol::ReceivedPacket& packet, TimeNs now, Actions& actions) {
  if (!by_switch() || over()) return;
  switch_path->receive(packet, now);
  finish_switch_step(now, actions);
  give_at_rest(actions);
}

void SessionCore::Impl::follow_path(TimeNs now, Actions& actions) {
  if (!membership.started || !synced() || over()) return;
  const Result<std::string> told = switch_path->follow(membership, now);
  if (!told) return end_session(told.error(), now, actions);
  if (!told->empty()) log(actions, Severity::kWarning, *told);
  last_reported_switch = protocol::Heartbeat::Switch::kNoReport;
}

void SessionCore::Impl::tick_path(TimeNs now, Actions& actions) {
  if (over()) return;
  switch_path->tick(now);
  finish_switch_step(now, actions);
  give_at_rest(actions);
  tell_of_switch(now, actions);
}

void SessionCore::Impl::tell_of_switch(TimeNs now, Actions& actions) {
  if (const std::string news = switch_path->news(now); !news.empty()) log(actions, Severity::kWarning, news);
  const protocol::Heartbeat::Switch word = switch_path->report(now);
  if (std::exchange(last_reported_switch, word) == word || word == protocol::Heartbeat::Switch::kNoReport) return;
  log(actions, Severity::kWarning,
      word == protocol::Heartbeat::Switch::kSilent ? "the switch is silent, or refuses the job: shard 0 is notified"
                                                   : "the switch answers again: shard 0 is notified");
  if (links[0].state == LinkState::kWelcomed) send_heartbeat(0, now, actions);
}

void SessionCore::Impl::finish_switch_step(TimeNs now, Actions& actions) {
  if (!synced()) return;  // a rejoin settles the step in which it was evicted
  std::optional<SwitchStepDone> step = switch_path->take_done();
  if (!step) return;
  resolve_switch_step();
  UnresolvedStep unresolved_now;
  for (PartRun& part : parts) {
    MILLRACE_CHECK(part.outstanding.size() == 1 && part.outstanding.front().step == part.n, part.outstanding.size(),
                   part.n);
    unresolved_now.sent.push_back(std::move(part.outstanding.front()));
    part.outstanding.pop_front();
    deliver_by_switch(part, *step, now, actions);
  }
  unresolved_now.done = std::move(*step);
  unresolved_step = std::move(unresolved_now);
}

/// Resolves the offered entries one by one: applied, returned to the residual, or lost. Lost is the part of a remainder
/// that f32 cannot hold.
bool SessionCore::Impl::resolve_switch_part() {
  if (!unresolved_step) return false;
  UnresolvedStep& step = *unresolved_step;
  PartRun& part = parts[step.next_part];
  OfferOutcome outcome = outcome_by_switch(part, step.sent[step.next_part], step.done);
  buckets[part.layout.bucket].bucket->resolve_offer(part.at, std::move(outcome.back), outcome.whole);
  if (++step.next_part == parts.size()) {
    switch_path->recycle_buffers(std::move(step.done));
    unresolved_step.reset();
  }
  return true;
}

void SessionCore::Impl::resolve_switch_step() {
  while (resolve_switch_part()) {
  }
}

SessionCore::Impl::OfferOutcome SessionCore::Impl::outcome_by_switch(PartRun& part, const Outstanding& out,
                                                                     const SwitchStepDone& step) {
  Bucket& bucket = *buckets[part.layout.bucket].bucket;
  const bool masks = bucket.masks(out.step);
  const OfferPlace place{.first = part.first_offered, .part_begin = range_in(switch_path->layout(), part.layout).begin};
  OfferResolved settled = resolve_offered(out.sent.view, step, place, masks);
  for (const OfferResolved::Lost& lost : settled.lost) bucket.ledger().lose(part.at, lost.index, lost.amount);
  part.account.carried_by_switch.add(settled.carried);
  part.account.doubt += kMassError * settled.carried.magnitude;
  part.counted.add(out.step, settled.applied);
  if (masks) bucket.mask_applied(part.at, out.step, SharedStream::from(std::move(settled.masked)), nullptr);
  note_unresolved(part.layout.bucket);
  return {std::move(settled.back), settled.whole};
}

void SessionCore::Impl::deliver_by_switch(PartRun& part, const SwitchStepDone& step, TimeNs now, Actions& actions) {
  BucketRun& run = buckets[part.layout.bucket];
  const PartRange range = range_in(switch_path->layout(), part.layout);
  const uint64_t window_indices = switch_path->layout().window_indices;
  const std::vector<SwitchStepDone::Window> windows = windows_in(step, range, window_indices);
  Stream sum = update_of(step, windows, window_indices, range.begin, part.dimension());

  DeliveredUpdate delivered;
  delivered.bucket = part.layout.bucket;
  delivered.part = part.layout.part;
  delivered.step = delivered.first_step = part.n;
  // A later joiner numbers its pushes from 0 all the same. A bucket that was ahead offered nothing to the step.
  const auto answers = std::ranges::lower_bound(run.steps, part.n);
  const uint64_t push = run.answered + static_cast<uint64_t>(answers - run.steps.begin());
  delivered.answers_push = answers != run.steps.end() && *answers == part.n && push >= part.answers;
  delivered.push = std::max(push, part.answers);
  if (delivered.answers_push) part.answers = push + 1;
  delivered.begin = part.layout.begin;
  delivered.counted = true;
  for (const SwitchStepDone::Window& window : windows.empty() ? step.windows : windows) {
    delivered.contributors = std::max(delivered.contributors, window.contributors);
    delivered.counted = delivered.counted && window.counted;
    delivered.decided_in = std::max<uint64_t>(delivered.decided_in, window.decided_epoch);
  }
  delivered.weight_sum = delivered.contributors;
  if (!delivered.counted) ++counters.not_counted;
  if (config.observer != nullptr) config.observer->applied(part.layout.bucket, part.layout.begin, sum.view());
  if (sum.count() > 0)
    delivered.denominator = protocol::denominator_of(config.spec.combine, delivered.contributors, delivered.weight_sum);
  size_t at = 0;
  for (const SwitchStepDone::Window& window : windows) {
    const auto values = std::span(sum.values).subspan(at, window.last - window.first);
    at += values.size();
    if (config.spec.combine != protocol::Combine::kMean || window.contributors == delivered.contributors) continue;
    const double scale = static_cast<double>(delivered.contributors) / window.contributors;
    for (float& value : values) value = static_cast<float>(static_cast<double>(value) * scale);
  }
  run.bucket->count_received(sum.count());
  counters.raw_bytes_down += sum.count() * (sizeof(uint32_t) + sizeof(float));
  delivered.sum = SharedStream::from(std::move(sum));
  part.decided_in = delivered.decided_in;
  ++part.n;
  delivered.step_complete = --run.parts_behind == 0;
  while (run.parts_behind == 0) step_applied(run, now);
  count_communication(run, now, actions);
  hand_over(part, std::move(delivered), part.n, actions);
}

bool SessionCore::Impl::may_leave_switch(TimeNs now, Actions& actions) {
  const SwitchPath::Leave leave = switch_path->leave(config.shard_silence, now);
  if (leave == SwitchPath::Leave::kTimedOut) {
    log(actions, Severity::kWarning,
        "this worker leaves before the others have finished: nothing has moved for " +
            std::to_string(config.shard_silence / kNsPerS) + " s");
  }
  return leave != SwitchPath::Leave::kNotYet;
}

}  // namespace millrace::worker
