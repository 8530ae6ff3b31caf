#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/hash.h"
#include "kernels/reduce/reduce.h"
#include "protocol/container/container.h"
#include "protocol/container/history_payload.h"
#include "protocol/messages/participants.h"
#include "worker/core/session_core_impl.h"

/// Contributions and updates: R1 (push), R4 (deliver), R5 (acknowledge), and retransmission.
namespace millrace::worker {
namespace {

constexpr uint32_t kMalformedMax = 3;      ///< updates of one step that do not decode, before the session gives up
constexpr size_t kAckEntriesMax = 32'768;  ///< in one message
constexpr uint64_t kEarlyStepsMax = 64;    ///< how far ahead of its turn an update is held where none was contributed
constexpr int kDrawHeartbeats = 3;         ///< without progress, after which one contributes without being drawn
constexpr size_t kDeferredMessagesMax = 65'536;  ///< updates of an epoch that is not known yet, a shard

uint64_t steps_applied_by_all(const std::vector<BucketRun>& buckets, uint64_t push) {
  uint64_t least = UINT64_MAX;
  for (const BucketRun& run : buckets) {
    // A bucket that is never pushed delays no other.
    if (run.pushed > 0 || push == 0) least = std::min(least, run.steps_applied);
  }
  return least;
}

}  // namespace

bool SessionCore::Impl::work(TimeNs now, Actions& actions) {
  if (!sends_now()) return false;
  const std::optional<uint32_t> bucket = next_ready(now);
  if (!bucket) return false;
  resolve_switch_step();
  BucketRun& run = buckets[*bucket];
  if (run.selected == run.coded) {
    const uint64_t step = step_for_push(run, now).value();
    if (auto selected = run.bucket->select(step, clip.factor(run.selected), draws_of_worker()); !selected) {
      end_session(selected.error(), now, actions);
      return false;
    }
    actions.work_done = WorkDone{WorkDone::Kind::kSelected, *bucket, step};
    clip.taken(run.selected, buckets.size());
    unresolved.erase(*bucket);  // select() has done the postponed work
    select_for(run, step, now, actions);
    run.next_in_order = 0;
    if (!by_switch()) choose_codecs(*bucket, actions);
    audit_some(run, actions);
    counters.dense_bytes += run.bucket->dimension() * sizeof(float);
    if (by_switch()) offer(*bucket, step, now, actions);
    return !over();
  }
  code_next(*bucket, now, actions);
  return !over();
}

std::optional<uint32_t> SessionCore::Impl::next_ready(TimeNs now) const {
  for (const auto& [priority, bucket] : ready) {
    const BucketRun& run = buckets[bucket];
    if (run.selected > run.coded || step_for_push(run, now)) return bucket;
  }
  return std::nullopt;
}

// Passes over a step only if all parts of all buckets have decided it. So a step that some part still needs has this
// worker's contribution, or gets it with a later push. Workers cannot block each other in a cycle. Where the other
// workers have decided the step already, the entries selected for it return to the residual.
std::optional<uint64_t> SessionCore::Impl::step_for_push(const BucketRun& run, TimeNs now) const {
  if (!clip.complete(run.selected)) return std::nullopt;
  if (asynchronous()) return run.selected;
  const uint64_t end = run.steps_applied + config.spec.staleness + 1;
  if (is_in_every_step()) return run.selected < end ? std::optional(run.selected) : std::nullopt;
  const uint64_t push = number_of(run);
  if (push < first_numbered + numbered.size()) {
    const uint64_t step = numbered[push - first_numbered].step;
    return step < end ? std::optional(step) : std::nullopt;
  }
  // After a rejoin a bucket may be one push ahead: another bucket has yet to select for an earlier number.
  if (push > first_numbered + numbered.size()) return std::nullopt;
  const uint64_t by_all = steps_applied_by_all(buckets, push);
  const uint64_t step = std::max(next_step, by_all);
  if (step >= end) return std::nullopt;
  if (config.spec.participants == 0 || protocol::takes_part(config.spec, membership.members, step, config.worker))
    return step;
  // Not drawn: it waits for the decision, but not if nothing moves: the drawn workers may have nothing to contribute.
  const TimeNs timeout = kDrawHeartbeats * TimeNs{config.spec.heartbeat.count()} * kNsPerMs;
  return now < run.moved_at + timeout ? std::nullopt : std::optional(step);
}

void SessionCore::Impl::select_for(BucketRun& run, uint64_t step, TimeNs now, Actions& actions) {
  if (!is_in_every_step() && !asynchronous()) number(number_of(run), step, now, actions);
  if (must_fill_gaps(run)) {
    send_empty_contributions(run, step);
    send_unsent(run, now, actions);
  }
  // Parts that have decided the step before it was chosen have nothing more to answer.
  for (uint32_t part = run.first_part; part < run.first_part + run.part_count; ++part) {
    if (is_decided(parts[part], step)) answer_without_update(parts[part], run.selected, step, actions);
  }
  ++run.selected;
  run.steps.push_back(step);
  run.coding = step;
  answer_pushes(run);
}

void SessionCore::Impl::part_is_coded(uint32_t bucket) {
  BucketRun& run = buckets[bucket];
  if (++run.next_in_order < run.order.size()) return;
  ++run.coded;
  ++changes;
  if (run.coded == run.pushed) ready.erase({-static_cast<int64_t>(run.priority), bucket});
}

void SessionCore::Impl::choose_codecs(uint32_t bucket, Actions& actions) {
  const protocol::BucketLayout& planned = layout.buckets[bucket];
  if (!planned.codec_up.automatic) return;
  ChoiceInput input;
  input.speeds = &config.codec_speeds();
  input.link_bits_per_s = link_rate.bits_per_s();
  const CodecChoice* const changed = buckets[bucket].bucket->choose_codecs(input);
  if (changed == nullptr) return;
  log(actions, Severity::kInfo, protocol::bucket_text(config.spec, planned) + " goes up as " + changed->text());
}

void SessionCore::Impl::code_next(uint32_t bucket, TimeNs now, Actions& actions) {
  BucketRun& run = buckets[bucket];
  const uint64_t step = run.coding;
  PartRun& part = parts[run.order[run.next_in_order]];
  if (is_decided(part, step)) {  // meanwhile, without this worker
    run.bucket->skip_part(part.at);
    return part_is_coded(bucket);
  }
  const protocol::BucketLayout& planned = layout.buckets[bucket];
  EncodeOptions options;
  options.spec = planned.codec_up;
  options.random = random_key(config.spec.seed, part.layout.part, step, draws_of_worker());
  options.index_base = part.layout.begin;
  auto coded = run.bucket->code(part.at, options);
  if (!coded) return end_session(coded.error(), now, actions);
  actions.work_done = WorkDone{WorkDone::Kind::kCoded, part.layout.part, step};
  note_unresolved(bucket);
  const Link& link = links[part.layout.shard];
  Outstanding out;
  out.step = step;
  out.incarnation = incarnation;
  if (asynchronous()) out.sequence = take_sequence(part);
  out.sent = std::move(coded->sent);
  out.payload = std::move(coded->container);
  out.hash = container_identity(out.payload.bytes).value();
  out.weight = static_cast<double>(run.bucket->slot(0).weight());
  counters.raw_bytes_up += out.sent.view.count() * (sizeof(uint32_t) + sizeof(float));
  const uint64_t bytes = out.payload.bytes.size();
  if (run.next_in_order == 0) run.sent.push_back({step, now});
  if (!run.sent.empty()) run.sent.back().bytes_up += bytes;
  part.outstanding.push_back(std::move(out));
  part_is_coded(bucket);
  if (link.message_bytes_max != 0 && bytes > link.message_bytes_max) {
    return end_session(
        {ErrorCode::kLimitExceeded, "a contribution of " + std::to_string(bytes) + " bytes is over the limit of " +
                                        shard_text(part.layout.shard) + ", " + std::to_string(link.message_bytes_max) +
                                        " bytes a message: raise the server's --message-bytes-max, or parts_per_shard"},
        now, actions);
  }
  if (link.state == LinkState::kWelcomed) send_contribution(part, part.outstanding.back(), now, actions);
}

void SessionCore::Impl::send_contribution(PartRun& part, Outstanding& out, TimeNs now, Actions& actions) {
  if (!out.on_wire) {
    out.entered = part.account.entered;
    out.lost = part.account.lost;
    out.imbalance = part.account.imbalance;
  }
  protocol::Contribution contribution;
  contribution.part = part.layout.part;
  contribution.step = wire_number(out);
  contribution.payload_hash = out.hash;
  contribution.weight = out.weight;
  contribution.entered = out.entered;
  contribution.lost = out.lost;
  contribution.imbalance = out.imbalance;
  contribution.again = out.on_wire;
  SharedBytes payload = payload_on_wire(part, out);
  if (std::exchange(out.on_wire, true)) ++counters.resends;
  out.asked_for = false;
  out.sent_heartbeat = links[part.layout.shard].heartbeats;
  out.delayed_until = kNever;
  out.resend_interval =
      out.resend_interval == 0 ? config.resend_after : std::min(out.resend_interval * 2, config.resend_after_max);
  // A contribution that the shard has reported needs no haste: its answer can only have been lost with the connection.
  out.resend_at = now + jittered(out.known ? config.resend_after_max : out.resend_interval);
  resend_check_at = std::min(resend_check_at, out.resend_at);
  counters.payload_bytes_up += payload.bytes.size();
  send(part.layout.shard, contribution, std::move(payload), actions);
}

// The plain container is retained, hashed and sent again: the shard can read it, with any history.
SharedBytes SessionCore::Impl::payload_on_wire(const PartRun& part, Outstanding& out) {
  out.shortened = false;
  if (!part.history || out.on_wire || out.sent.view.dense) return out.payload;
  if (part.history->position() != out.step || !part.history->complete() || out.step < part.plain_until)
    return out.payload;
  Result<ByteBuffer> shortened = shorten_by_history(out.payload.bytes, out.sent.view.indices, *part.history);
  if (!shortened) return out.payload;
  const auto saved = static_cast<int64_t>(out.payload.bytes.size()) - static_cast<int64_t>(shortened->size());
  if (saved < config.history_saves_min) return out.payload;
  out.shortened = true;
  ++counters.history_shortened;
  counters.history_bytes_saved += saved;
  return SharedBytes::from(std::move(*shortened));
}

// After a new activation of the shard, and after skipped steps, all histories restart there, as the shard's does.
void SessionCore::Impl::remember_update(PartRun& part, const protocol::Update& update, const StreamView& sum) const {
  if (!part.history) return;
  if (part.history->position() != update.step || part.branch != update.branch) part.history->restart(update.step);
  IndexBuffer storage;
  part.history->advance(changed_indices(sum, storage));
}

void SessionCore::Impl::resend_outstanding(uint32_t shard, TimeNs now, Actions& actions) {
  if (!synced() || by_switch()) return;
  for (PartRun& part : parts) {
    if (shard != kAllShards && part.layout.shard != shard) continue;
    if (links[part.layout.shard].state != LinkState::kWelcomed) continue;
    for (Outstanding& out : part.outstanding) {
      if (is_of_earlier_incarnation(out) || !may_be_taken(part, out)) continue;
      out.resend_interval = 0;  // losses over an earlier connection do not count
      send_contribution(part, out, now, actions);
    }
  }
}

void SessionCore::Impl::resend_due(TimeNs now, Actions& actions) {
  resend_check_at = kNever;
  if (!synced() || by_switch()) return;
  for (PartRun& part : parts) {
    if (links[part.layout.shard].state != LinkState::kWelcomed) continue;  // its Welcome sends everything
    for (Outstanding& out : part.outstanding) {
      if (!out.on_wire || is_of_earlier_incarnation(out)) continue;
      if (out.resend_interval != 0 && !out.asked_for)  // after a Refuse the interval is 0
        out.resend_at = std::max(
            out.resend_at, std::min(out.delayed_until, links[part.layout.shard].moved_at() + config.resend_after));
      if (now >= out.resend_at) send_contribution(part, out, now, actions);
      resend_check_at = std::min(resend_check_at, out.resend_at);
    }
  }
}

void SessionCore::Impl::ask_again(PartRun& part, TimeNs now) {
  if (asynchronous() || part.outstanding.empty() || part.outstanding.front().step != part.n) {
    if (is_in_every_step() || now < part.ask_at) return;
    part.ask_at = now + jittered(config.resend_after);
    links[part.layout.shard].acks.push_back({part.layout.part, part.n, true});
    return;
  }
  Outstanding& out = part.outstanding.front();
  const TimeNs soon = now + jittered(config.reconnect_after);
  if (!out.on_wire || out.resend_at <= soon) return;
  out.resend_at = soon;
  out.asked_for = true;
  resend_check_at = std::min(resend_check_at, soon);
}

void SessionCore::Impl::defer_early(PartRun& part, uint64_t step, protocol::Message&& message, TimeNs now) {
  if (step < part.n) {  // of merged steps the first ones are here already: the others are asked for by themselves
    ++counters.dropped_stale;
    return ask_again(part, now);
  }
  const bool own =
      !asynchronous() && std::ranges::find(part.outstanding, step, &Outstanding::step) != part.outstanding.end();
  const bool near = !is_in_every_step() && step - part.n <= kEarlyStepsMax;
  if (!own && !near) {
    ++counters.dropped_early;
    return;
  }
  part.early.insert_or_assign(step, std::move(message));
  ask_again(part, now);
}

Outstanding* SessionCore::Impl::find_outstanding(uint32_t shard, uint32_t part, uint64_t step) {
  if (part >= parts.size() || parts[part].layout.shard != shard) return nullptr;
  const auto is_it = [&](const auto& out) { return wire_number(out) == step && !is_of_earlier_incarnation(out); };
  const auto found = std::ranges::find_if(parts[part].outstanding, is_it);
  return found == parts[part].outstanding.end() ? nullptr : &*found;
}

void SessionCore::Impl::on_update(uint32_t shard, protocol::Message&& message, TimeNs now, Actions& actions) {
  if (by_switch()) {
    ++counters.dropped_unexpected;
    return;
  }
  const uint32_t part = std::get<protocol::Update>(message.body).part;
  for (bool applied = take_update(shard, std::move(message), now, actions); applied;) {
    // Judged again like any other: its epoch may be an older one by now.
    auto next = parts[part].early.extract(parts[part].n);
    applied = !next.empty() && take_update(shard, std::move(next.mapped()), now, actions);
  }
}

bool SessionCore::Impl::take_update(uint32_t shard, protocol::Message&& message, TimeNs now, Actions& actions) {
  const protocol::Update& update = std::get<protocol::Update>(message.body);
  if (update.part >= parts.size() || parts[update.part].layout.shard != shard) {
    ++counters.dropped_unexpected;
    return false;
  }
  PartRun& part = parts[update.part];
  if (update.step < part.n) {
    // Served again because our ack is on its way or lost: say it again.
    ++counters.dropped_stale;
    if (synced()) links[shard].acks.push_back({update.part, part.n});
    return false;
  }
  if (message.header.epoch < membership.epoch) {
    // R4a: decided, but sent before the change of members that we know of. The shard serves it again in its new epoch.
    ++counters.dropped_stale;
    return false;
  }
  if (message.header.epoch > membership.epoch) {
    std::vector<protocol::Message>& held = links[shard].deferred_messages;
    if (held.size() < kDeferredMessagesMax) {
      held.push_back(std::move(message));
    } else {
      ++counters.dropped_early;
    }
    return false;
  }
  if (!synced()) {
    keep_for_settling(part, std::move(message));
    return false;
  }
  if (update.first_step() != part.n) {
    defer_early(part, update.first_step(), std::move(message), now);
    return false;
  }
  // Where every step needs every worker, no step can be decided without this worker's contribution.
  if (is_in_every_step() && (part.outstanding.empty() || part.outstanding.front().step != part.n)) {
    ++counters.dropped_early;
    return false;
  }
  ContainerLimits limits;
  limits.dimension = part.layout.end - part.layout.begin;
  auto decoded = read_shared_container(message.payload, limits);
  if (!decoded) {
    malformed_update(shard, part, decoded.error().message, now, actions);
    return false;
  }
  const double denominator = denominator_of(update);
  if (decoded->view.count() > 0 && !(denominator > 0)) {
    malformed_update(shard, part, "it has values and no contributors", now, actions);
    return false;
  }
  if (!update.merged.empty() && !may_be_merged(update)) {
    malformed_update(shard, part, "it has several steps that cannot be summed", now, actions);
    return false;
  }
  counters.payload_bytes_down += message.payload.bytes.size();
  for (BucketRun::Sent& sent : buckets[part.layout.bucket].sent) {
    if (sent.step == update.step) sent.bytes_down += message.payload.bytes.size();
  }
  part.log_digest = protocol::extend_log_digest(part.log_digest, update, message.payload.bytes);
  std::optional<protocol::SummaryEntry> before;
  if (const auto* own = config.spec.audit ? counted_in(part) : nullptr) before = *own;
  apply_update(part, update, std::move(*decoded), now, actions);
  account_update(part, retain_update(part, std::get<protocol::Update>(message.body), std::move(message.payload)),
                 before);
  answer_returned(part, actions);
  if (BucketRun& run = buckets[part.layout.bucket]; run.answered < run.returned_to) answer_pushes(run);
  return true;
}

const protocol::Update& SessionCore::Impl::retain_update(PartRun& part, protocol::Update& update,
                                                         SharedBytes&& payload) {
  // A member in the middle of the merged steps cannot use their sum.
  if (!update.merged.empty()) {
    part.retained.clear();
    part.summary = update.summary;
    return update;
  }
  const uint64_t stable = update.stable;
  part.retained.push_back({std::move(update), std::move(payload)});
  // The last one stays: it has the summary.
  while (part.retained.size() > 1 && part.retained.front().body.step < stable) part.retained.pop_front();
  return part.retained.back().body;
}

void SessionCore::Impl::malformed_update(uint32_t shard, PartRun& part, const std::string& why, TimeNs now,
                                         Actions& actions) {
  ++counters.dropped_malformed;
  const std::string text = shard_text(shard) + " sent an update of part " + std::to_string(part.layout.part) +
                           ", step " + std::to_string(part.n) + " that cannot be used: " + why;
  if (++part.malformed >= kMalformedMax) return end_session({ErrorCode::kMalformed, text}, now, actions);
  log(actions, Severity::kWarning, text);
}

bool SessionCore::Impl::resolve(PartRun& part, const protocol::Update& update, const SharedStream& carried) {
  if (part.outstanding.empty() || part.outstanding.front().step != part.n) return false;  // without this worker
  Outstanding& out = part.outstanding.front();
  const protocol::ContributorId own{config.worker, out.incarnation};
  const bool counted = std::ranges::find(update.contributors, own) != update.contributors.end();
  if (counted) {
    resolve_counted(part, update.step, out, update, carried);
  } else {
    give_back(part, out);
  }
  part.outstanding.pop_front();
  return counted;
}

/// Moves the sent stream out of `out`.
void SessionCore::Impl::resolve_counted(PartRun& part, uint64_t step, Outstanding& out, const protocol::Update& update,
                                        const SharedStream& carried) {
  // Values that arrive as they entered are less in all than what entered: audit_part() has that.
  if (config.spec.audit && !sends_what_entered(part)) {
    part.account.doubt += kMassError * mass_of(out.sent.view.values).magnitude;
  }
  const bool in_part = !update.whole_sum && !carried.view.dense;
  was_applied(part, step, out, in_part ? &carried : nullptr);
  Bucket& bucket = *buckets[part.layout.bucket].bucket;
  if (bucket.on_grid()) return bucket.resolve_on_grid(part.at, in_part ? &carried.view : nullptr);
  if (!in_part) return;
  buckets[part.layout.bucket].bucket->return_uncarried(part.at, std::move(out.sent), carried);
  note_unresolved(part.layout.bucket);
}

void SessionCore::Impl::note_unresolved(uint32_t bucket) {
  if (buckets[bucket].bucket->unresolved()) unresolved.insert(bucket);
}

/// step: the log's; in mode asynchronous it differs from the step of the push.
void SessionCore::Impl::was_applied(PartRun& part, uint64_t step, const Outstanding& out, const SharedStream* carried) {
  part.counted.add(step, out.sent.view.count());
  Bucket& bucket = *buckets[part.layout.bucket].bucket;
  bucket.mask_applied(part.at, out.step, out.sent, carried);
  note_unresolved(part.layout.bucket);
}

void SessionCore::Impl::give_back(PartRun& part, const Outstanding& out) {
  ++counters.not_counted;
  buckets[part.layout.bucket].bucket->give_back(part.at, out.sent.copy());
}

void SessionCore::Impl::answer_by(PartRun& part, const protocol::Update& update, DeliveredUpdate& delivered,
                                  Actions& actions) {
  const BucketRun& run = buckets[part.layout.bucket];
  uint64_t push = part.answers;
  if (asynchronous()) {
    const std::optional<uint64_t> own = resolve_listed(part, update, delivered.sum, actions);
    delivered.counted = own.has_value();
    delivered.answers_push = own && *own >= part.answers;
    push = own.value_or(0);
  } else {
    delivered.counted = resolve(part, update, delivered.sum);
    const auto answers = std::ranges::lower_bound(run.steps, part.n);
    push = run.answered + static_cast<uint64_t>(answers - run.steps.begin());
    delivered.answers_push = answers != run.steps.end() && *answers == part.n && push >= part.answers;
  }
  delivered.push = std::max(push, part.answers);
  if (delivered.answers_push) part.answers = push + 1;
}

void SessionCore::Impl::apply_update(PartRun& part, const protocol::Update& update, SharedStream&& held, TimeNs now,
                                     Actions& actions) {
  BucketRun& run = buckets[part.layout.bucket];
  DeliveredUpdate delivered;
  delivered.sum = std::move(held);
  const StreamView& sum = delivered.sum.view;
  answer_by(part, update, delivered, actions);
  remember_update(part, update, sum);
  delivered.bucket = part.layout.bucket;
  delivered.part = part.layout.part;
  delivered.step = update.step;
  delivered.first_step = part.n;
  delivered.decided_in = update.decided_in;
  delivered.begin = part.layout.begin;
  delivered.contributors = static_cast<uint32_t>(std::max(update.contributors.size(), update.merged.size()));
  delivered.weight_sum = update.weight_sum;
  delivered.denominator = sum.count() > 0 ? denominator_of(update) : 1;
  run.bucket->count_received(sum.count());
  run.bucket->observe_update(part.at, sum);
  counters.raw_bytes_down += sum.count() * (sizeof(uint32_t) + sizeof(float));
  if (config.observer != nullptr) config.observer->applied(part.layout.bucket, part.layout.begin, sum);
  const bool was_behind = part.n == run.steps_applied;
  const bool was_waited_for = part.n < part.decided_without;
  part.n = update.step + 1;
  if (has_rejoined && !asynchronous() && links[part.layout.shard].state == LinkState::kWelcomed)
    send_unsent(part, now, actions);
  changes += was_waited_for && part.n >= part.decided_without ? 1 : 0;  // is_waited_for()
  if (!asynchronous() && !part.outstanding.empty() && part.outstanding.front().refusals > 0) {
    // Refused for want of room as a step ahead; now it is the one that the others wait for.
    part.outstanding.front().refusals = 0;
    ask_again(part, now);
  }
  part.decided_in = update.decided_in;
  part.branch = update.branch;
  part.malformed = 0;
  links[part.layout.shard].acks.push_back({part.layout.part, part.n});
  // The last of the parts at the bucket's step completes the step, and the merged steps after it.
  delivered.step_complete = was_behind && --run.parts_behind == 0;
  while (run.parts_behind == 0) step_applied(run, now);
  if (asynchronous()) answer_pushes(run);
  count_communication(run, now, actions);
  hand_over(part, std::move(delivered), part.n, actions);
}

void SessionCore::Impl::step_applied(BucketRun& run, TimeNs now) {
  ++run.steps_applied;
  run.moved_at = now;
  ++changes;
  ++counters.rounds;
  count_parts_behind(run);
  answer_pushes(run);
}

void SessionCore::Impl::count_communication(BucketRun& run, TimeNs now, Actions& actions) {
  const uint64_t done = asynchronous() ? run.answered : run.steps_applied;
  for (; !run.sent.empty() && run.sent.front().step < done; run.sent.pop_front()) {
    const BucketRun::Sent& sent = run.sent.front();
    counters.time_in_communication += now - sent.since;
    actions.steps_done.push_back(now - sent.since);
    // Bytes received may have crossed bytes sent.
    link_rate.moved(std::max(sent.bytes_up, sent.bytes_down), now - sent.since);
  }
}

void SessionCore::Impl::count_parts_behind(BucketRun& run) {
  run.parts_behind = 0;
  for (uint32_t part = run.first_part; part < run.first_part + run.part_count; ++part) {
    run.parts_behind += parts[part].n == run.steps_applied ? 1 : 0;
  }
}

void SessionCore::Impl::replay_deferred(TimeNs now, Actions& actions) {
  for (uint32_t shard = 0; shard < links.size() && !over(); ++shard) {
    std::vector<protocol::Message> held = std::exchange(links[shard].deferred_messages, {});
    for (protocol::Message& message : held) on_update(shard, std::move(message), now, actions);
  }
}

void SessionCore::Impl::end_pass(TimeNs now, Actions& actions) {
  if (over()) return;
  if (has_rejoined && sends_now()) fill_numbered_gaps(now, actions);
  for (uint32_t shard = 0; shard < links.size(); ++shard) {
    Link& link = links[shard];
    if (link.state != LinkState::kWelcomed) continue;
    const std::vector<protocol::Ack::Entry> acks = std::exchange(link.acks, {});
    for (size_t at = 0; at < acks.size(); at += kAckEntriesMax) {
      const size_t end = std::min(acks.size(), at + kAckEntriesMax);
      send(shard,
           protocol::Ack{
               {acks.begin() + static_cast<std::ptrdiff_t>(at), acks.begin() + static_cast<std::ptrdiff_t>(end)}},
           {}, actions);
    }
  }
  leave_when_done(now, actions);
}

void SessionCore::Impl::leave_when_done(TimeNs now, Actions& actions) {
  // After a rejoin, contributions of an earlier incarnation may also be open, whose pushes have been answered.
  const bool all_answered =
      ready.empty() && std::ranges::all_of(buckets, [](const BucketRun& run) { return run.answered == run.pushed; }) &&
      std::ranges::all_of(parts,
                          [](const auto& part) { return part.outstanding.empty() && part.awaiting_acks.empty(); });
  // During a rejoin: a worker whose pushes are all answered has nothing left to do.
  const bool needs_no_place = phase == Phase::kRejoining && finish_asked;
  if (needs_no_place && all_answered) {
    say_goodbye(protocol::Goodbye::Reason::kFinished, "", actions);
    return set_phase(Phase::kFinished);
  }
  if (phase != Phase::kFinishing || !all_answered) return;
  if (by_switch() && !may_leave_switch(now, actions)) return;
  // Also blocked on an ack that waits for a connection.
  if (!std::ranges::all_of(links, [](const Link& link) { return link.acks.empty(); })) return;
  if (!std::ranges::all_of(links, [](const Link& link) { return link.state == LinkState::kWelcomed; })) return;
  // R10f: That shard may lack steps that this worker alone has.
  if (waits_for_all() && std::ranges::any_of(links, &Link::recovers)) return;
  // A joiner may need this worker's weights: the last member with them leaves after it is synced or evicted.
  const auto joins = [](const protocol::Member& member) { return member.state == protocol::MemberState::kJoining; };
  const bool somebody_joins = std::ranges::any_of(membership.members, joins);
  if (config.has_weights && somebody_joins) return;
  say_goodbye(protocol::Goodbye::Reason::kFinished, "", actions);
  set_phase(Phase::kFinished);
}

}  // namespace millrace::worker
