#include "worker/core/session_core.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/reduce/reduce.h"
#include "protocol/container/history_payload.h"
#include "worker/core/session_core_impl.h"

namespace millrace::worker {
namespace {

/// The order in which a bucket's parts are coded: the shards take turns, so that all of them have work early.
std::vector<uint32_t> coding_order(const protocol::JobLayout& layout, const protocol::BucketLayout& bucket) {
  std::vector<std::pair<uint32_t, uint32_t>> turns;  // (how many of this shard's came before, part)
  std::vector<uint32_t> seen(layout.shard_count, 0);
  for (uint32_t part = bucket.first_part; part < bucket.first_part + bucket.part_count; ++part) {
    turns.emplace_back(seen[layout.parts[part].shard]++, part);
  }
  std::ranges::sort(turns);
  std::vector<uint32_t> order;
  for (const auto& [turn, part] : turns) order.push_back(part);
  return order;
}

/// Returns how far the worker's state goes in the parts of each shard. Zeros: the shard has no part.
std::vector<protocol::LogReach> reach_by_shard(const std::vector<PartRun>& parts, size_t shards) {
  std::vector<protocol::LogReach> reach(shards);
  std::vector<bool> seen(shards);
  for (const PartRun& part : parts) {
    protocol::LogReach& reached = reach.at(part.layout.shard);
    reached.steps = seen[part.layout.shard] ? std::min(reached.steps, part.n) : part.n;
    reached.decided_in = std::max(reached.decided_in, part.decided_in);
    seen[part.layout.shard] = true;
  }
  return reach;
}

}  // namespace

SessionCore::Impl::Impl(CoreConfig config_)
    : config(std::move(config_)),
      clip(config.spec),
      link_rate(config.link_bits_per_s),
      jitter(random_key(config.random_seed, config.worker, config.nonce)) {
  MILLRACE_CHECK(!config.shard_addresses.empty());
  MILLRACE_CHECK(config.worker < config.spec.workers, config.worker, config.spec.workers);
  spec_hash = protocol::job_spec_hash(config.spec);
  layout = protocol::plan_layout(config.spec, static_cast<uint32_t>(config.shard_addresses.size()));
  layout_hash = protocol::layout_hash(layout);
  tensors.resize(config.spec.tensors.size());
  for (const protocol::BucketLayout& planned : layout.buckets) {
    BucketRun run;
    const std::span<const protocol::PartLayout> own(layout.parts.data() + planned.first_part, planned.part_count);
    run.bucket = std::make_unique<Bucket>(config.spec, planned, own, config.observer);
    run.priority = planned.priority;
    run.first_part = planned.first_part;
    run.part_count = planned.part_count;
    run.parts_behind = planned.part_count;
    run.order = coding_order(layout, planned);
    for (size_t member = 0; member < planned.members.size(); ++member) {
      TensorRun& tensor = tensors[planned.members[member].tensor];
      tensor.bucket = static_cast<uint32_t>(buckets.size());
      tensor.member = static_cast<uint32_t>(member);
    }
    buckets.push_back(std::move(run));
  }
  for (const protocol::PartLayout& planned : layout.parts) {
    PartRun part;
    part.layout = planned;
    part.at = planned.part - layout.buckets[planned.bucket].first_part;
    if (keeps_history(config.spec, part.dimension())) {
      part.history = std::make_unique<IndexHistory>(part.dimension());
    }
    parts.push_back(std::move(part));
  }
  for (const std::string& address : config.shard_addresses) {
    Link link;
    link.address = link.configured = address;
    links.push_back(std::move(link));
  }
  if (config.spec.path == protocol::Path::kSwitch) {
    switch_path = std::make_unique<SwitchPath>(config.spec, layout, config.worker, config.switch_access, config.nonce);
  }
  if (config.saved) load(*config.saved);
}

void SessionCore::Impl::send(uint32_t shard, protocol::Body&& body, SharedBytes payload, Actions& actions) {
  protocol::Message message;
  message.header = {
      membership.job, membership.epoch, config.worker, incarnation, shard, links[shard].shard_incarnation};
  message.body = std::move(body);
  message.payload = std::move(payload);
  actions.sends.push_back({shard, std::move(message)});
}

TimeNs SessionCore::Impl::jittered(TimeNs interval) {
  // 0.75 .. 1.25: workers that lost the same shard do not all reconnect at one moment.
  return static_cast<TimeNs>(static_cast<double>(interval) * (0.75 + 0.5 * jitter.next_unit()));
}

void SessionCore::Impl::say_goodbye(protocol::Goodbye::Reason reason, const std::string& sentence, Actions& actions) {
  // R10f is a rule of mode synchronous, and of steps that shards decide. A worker that settles may hold void steps.
  const bool on_log = phase == Phase::kFinishing || all_settled();
  const bool binds = reason == protocol::Goodbye::Reason::kFinished && on_log && waits_for_all() && !by_switch();
  const auto reach = binds ? reach_by_shard(parts, links.size()) : std::vector<protocol::LogReach>();
  for (uint32_t shard = 0; shard < links.size(); ++shard) {
    const LinkState state = links[shard].state;
    if (state != LinkState::kWelcomed && state != LinkState::kGreeting) continue;
    protocol::Goodbye goodbye{reason, sentence};
    if (links[shard].version >= protocol::kGoodbyeReachSince) goodbye.reach = reach;
    send(shard, std::move(goodbye), {}, actions);
    // A Hello may let this worker in afterwards: the shard knows the sender by the connection.
    if (state == LinkState::kGreeting) actions.sends.back().message.header = {.worker = config.worker, .shard = shard};
  }
}

void SessionCore::Impl::end_session(Error why, TimeNs /*now*/, Actions& actions) {
  if (over()) return;
  log(actions, Severity::kError, why.message);
  say_goodbye(protocol::Goodbye::Reason::kFailed, why.message, actions);
  set_phase(Phase::kEnded);
  error = std::move(why);
}

SessionCore::SessionCore(CoreConfig config) : impl_(std::make_unique<Impl>(std::move(config))) {}
SessionCore::~SessionCore() = default;

void SessionCore::start(TimeNs now, Actions& actions) { impl_->start(now, actions); }
void SessionCore::on_sign(uint32_t shard, ConnectionSign sign, TimeNs now, uint64_t bytes) {
  Link& link = impl_->links[shard];
  if (sign == ConnectionSign::kAccepted) link.accepted = true;
  if (sign == ConnectionSign::kSent) link.sending_at = now;
  // Before the Welcome the bytes may be of another program.
  if (sign == ConnectionSign::kAccepted || link.state != LinkState::kWelcomed) return;
  link.last_heard = now;
  if (bytes < protocol::ArrivingBytes::kLeast) return;
  link.receiving_at = now;
  if (!link.arriving.delay(bytes, std::max(link.message_bytes_max, protocol::ArrivingBytes::kMost))) return;
  link.answering_at = now;
  if (impl_->phase == Phase::kRejoining) impl_->progress_at = now;
}
void SessionCore::on_connected(uint32_t shard, TimeNs now, Actions& actions) {
  impl_->resolve_switch_step();
  impl_->on_connected(shard, now, actions);
}
void SessionCore::on_disconnected(uint32_t shard, const Error& trouble, TimeNs now, Actions& actions) {
  impl_->resolve_switch_step();
  impl_->on_disconnected(shard, trouble, now, actions);
}
void SessionCore::on_message(uint32_t shard, protocol::Message&& message, TimeNs now, Actions& actions) {
  impl_->resolve_switch_step();
  impl_->on_message(shard, std::move(message), now, actions);
}
void SessionCore::on_packet(const protocol::ReceivedPacket& packet, TimeNs now, Actions& actions) {
  impl_->on_packet(packet, now, actions);
}
void SessionCore::on_tick(TimeNs now, Actions& actions) {
  impl_->resolve_switch_step();
  impl_->on_tick(now, actions);
}
void SessionCore::end_pass(TimeNs now, Actions& actions) { impl_->end_pass(now, actions); }
bool SessionCore::work(TimeNs now, Actions& actions) { return impl_->work(now, actions); }
bool SessionCore::has_work(TimeNs now) const { return impl_->has_work(now); }
TimeNs SessionCore::next_deadline() const { return impl_->next_deadline(); }

void SessionCore::on_bad_message(uint32_t shard, const Error& error, TimeNs now, Actions& actions) {
  ++impl_->counters.dropped_malformed;
  Impl::log(actions, Severity::kWarning,
            impl_->shard_text(shard) + " sent bytes that are no message: " + error.message);
  if (error.code != ErrorCode::kVersionMismatch) return;
  impl_->end_session({error.code, impl_->shard_text(shard) + ": " + error.message}, now, actions);
}

Status SessionCore::finish(TimeNs now, Actions& actions) {
  Impl& impl = *impl_;
  impl.resolve_switch_step();
  if (impl.error) return std::unexpected(*impl.error);
  if (impl.phase == Phase::kFinished) return {};
  for (const BucketRun& run : impl.buckets) {
    if (run.committed_slots == 0) continue;
    return fail(ErrorCode::kInvalidArgument, "some tensors of a fused bucket were pushed for step " +
                                                 std::to_string(run.pushed) + " and others were not");
  }
  if (impl.phase == Phase::kRejoining) {
    impl.finish_asked = true;
    impl.end_pass(now, actions);
    return {};
  }
  if (const std::string missing = impl.push_waits_for(); !missing.empty())
    return fail(ErrorCode::kInvalidArgument, missing);
  impl.set_phase(Phase::kFinishing);
  // Sent at once, so that no member waits for more of this worker, and with every heartbeat again.
  for (uint32_t shard = 0; shard < impl.links.size() && !impl.is_in_every_step(); ++shard) {
    if (impl.links[shard].state == LinkState::kWelcomed) impl.send_heartbeat(shard, now, actions);
  }
  impl.end_pass(now, actions);
  return {};
}

void SessionCore::leave(protocol::Goodbye::Reason reason, const std::string& sentence, TimeNs /*now*/,
                        Actions& actions) {
  impl_->resolve_switch_step();
  if (impl_->over()) return;
  impl_->say_goodbye(reason, sentence, actions);
  impl_->set_phase(Phase::kFinished);
}

void SessionCore::fail_session(Error error, TimeNs now, Actions& actions) {
  impl_->resolve_switch_step();
  impl_->end_session(std::move(error), now, actions);
}

Phase SessionCore::phase() const { return impl_->phase; }
uint64_t SessionCore::changes() const { return impl_->changes; }
const std::optional<Error>& SessionCore::error() const { return impl_->error; }
std::string SessionCore::waiting_for() const { return impl_->waiting_for(); }
const std::string& SessionCore::shard_address(uint32_t shard) const { return impl_->links[shard].address; }
void SessionCore::give_weights(const GiveWeights& asked, std::span<const float> weights, TimeNs /*now*/,
                               Actions& actions) {
  impl_->give_weights(asked, weights, actions);
}

uint64_t SessionCore::steps_allowed(uint32_t tensor) const {
  const BucketRun& run = impl_->buckets[impl_->tensors[tensor].bucket];
  return std::min(run.coded + 1, impl_->answers_handed(run) + impl_->config.spec.staleness + 1);
}

PushSlot& SessionCore::slot(uint32_t tensor) {
  const TensorRun& run = impl_->tensors[tensor];
  return impl_->buckets[run.bucket].bucket->slot(run.member);
}

Result<uint64_t> SessionCore::commit_push(uint32_t tensor, TimeNs now) {
  TensorRun& run = impl_->tensors[tensor];
  BucketRun& bucket = impl_->buckets[run.bucket];
  PushSlot& filled = bucket.bucket->slot(run.member);
  if (!filled.filled() || run.committed) {
    return fail(ErrorCode::kInvalidArgument, "tensor '" + impl_->config.spec.tensors[tensor].name +
                                                 "' has nothing new to send for step " + std::to_string(run.pushed));
  }
  run.committed = true;
  impl_->clip.pushed(run.pushed, tensor, filled.squared_norm());
  if (++bucket.committed_slots == bucket.bucket->slot_count()) {
    for (const protocol::BucketMember& member : impl_->layout.buckets[run.bucket].members) {
      impl_->tensors[member.tensor].committed = false;
    }
    bucket.committed_slots = 0;
    ++bucket.pushed;
    bucket.moved_at = now;
    impl_->ready.emplace(-static_cast<int64_t>(bucket.priority), run.bucket);
  }
  return run.pushed++;
}

Result<uint64_t> SessionCore::push_dense(uint32_t tensor, std::span<const float> gradient, float weight, TimeNs now) {
  if (impl_->error) return std::unexpected(*impl_->error);
  if (steps_pushed(tensor) >= steps_allowed(tensor)) {
    return fail(ErrorCode::kUnavailable, "step " + std::to_string(steps_pushed(tensor)) + " may not be pushed yet");
  }
  if (auto filled = slot(tensor).add_dense(gradient, weight); !filled) return std::unexpected(filled.error());
  return commit_push(tensor, now);
}

Result<uint64_t> SessionCore::push_sparse(uint32_t tensor, IndexSpan indices, std::span<const float> values,
                                          float weight, TimeNs now) {
  if (impl_->error) return std::unexpected(*impl_->error);
  if (steps_pushed(tensor) >= steps_allowed(tensor)) {
    return fail(ErrorCode::kUnavailable, "step " + std::to_string(steps_pushed(tensor)) + " may not be pushed yet");
  }
  if (auto filled = slot(tensor).add_sparse(indices, values, weight); !filled) return std::unexpected(filled.error());
  return commit_push(tensor, now);
}

const protocol::JobSpec& SessionCore::spec() const { return impl_->config.spec; }
const protocol::JobLayout& SessionCore::layout() const { return impl_->layout; }
const protocol::Membership& SessionCore::membership() const { return impl_->membership; }
uint64_t SessionCore::incarnation() const { return impl_->incarnation; }
std::optional<ShardLink> SessionCore::link_to(uint32_t shard) const {
  const Link& link = impl_->links[shard];
  if (link.state != LinkState::kWelcomed || impl_->over()) return std::nullopt;
  const protocol::Header header{
      impl_->membership.job, impl_->membership.epoch, impl_->config.worker, impl_->incarnation, shard,
      link.shard_incarnation};
  return ShardLink{header, link.version};
}
bool SessionCore::resolve_one_deferred() {
  if (impl_->resolve_switch_part()) return true;
  while (!impl_->unresolved.empty()) {
    const auto first = impl_->unresolved.begin();
    Bucket& bucket = *impl_->buckets[*first].bucket;
    const bool done = bucket.resolve_one_deferred();
    if (!bucket.unresolved()) impl_->unresolved.erase(first);
    if (done) return true;
  }
  return false;
}

bool SessionCore::all_resolved() const { return impl_->unresolved.empty() && !impl_->unresolved_step; }

bool SessionCore::in_flight() const {
  return std::ranges::any_of(impl_->buckets,
                             [this](const BucketRun& run) { return impl_->answers_handed(run) < run.pushed; });
}

Result<IdleTensor> SessionCore::idle_tensor(uint32_t tensor) {
  impl_->resolve_switch_step();
  if (impl_->error) return std::unexpected(*impl_->error);
  const TensorRun& run = impl_->tensors[tensor];
  BucketRun& bucket = impl_->buckets[run.bucket];
  if (bucket.bucket->is_quarantined() || bucket.committed_slots > 0 || impl_->answers_handed(bucket) < bucket.pushed) {
    return fail(ErrorCode::kInvalidArgument,
                "the residual of tensor '" + impl_->config.spec.tensors[tensor].name +
                    "' can be taken or restored only while no step of it is in flight and this worker does not rejoin");
  }
  // The shards may have decided the step without this worker while it codes its contribution.
  impl_->skip_uncoded(bucket);
  return IdleTensor{bucket.bucket.get(), &bucket.bucket->slot(run.member)};
}

uint64_t SessionCore::steps_pushed(uint32_t tensor) const { return impl_->tensors[tensor].pushed; }
uint64_t SessionCore::steps_applied(uint32_t bucket) const { return impl_->buckets[bucket].steps_applied; }
bool SessionCore::is_waited_for() const {
  const auto says_so = [this](const Link& link) { return link.last_reported_epoch >= impl_->synced_since; };
  const auto is_there = [this](const PartRun& part) { return impl_->has_begun(part); };
  return impl_->synced() && std::ranges::all_of(impl_->links, says_so) && std::ranges::all_of(impl_->parts, is_there);
}
uint64_t SessionCore::part_steps_applied(uint32_t part) const { return impl_->parts[part].n; }
uint64_t SessionCore::part_steps_handed(uint32_t part) const { return impl_->delivered_steps(impl_->parts[part]); }
uint64_t SessionCore::part_decided_in(uint32_t part) const { return impl_->parts[part].decided_in; }
std::vector<DeliveredUpdate> SessionCore::awaiting_acks(uint32_t part) const {
  std::vector<DeliveredUpdate> held;
  for (const AwaitingAcks& one : impl_->parts[part].awaiting_acks) held.push_back(one.update);
  return held;
}
const CoreCounters& SessionCore::counters() const { return impl_->counters; }
BucketCounters SessionCore::bucket_counters(uint32_t bucket) const {
  impl_->resolve_switch_step();
  return impl_->buckets[bucket].bucket->counters();
}

std::optional<SwitchPathStatus> SessionCore::switch_status() const {
  return impl_->by_switch() ? std::optional(impl_->switch_path->status()) : std::nullopt;
}

Stream SessionCore::residual(uint32_t bucket) const {
  impl_->resolve_switch_step();
  return impl_->buckets[bucket].bucket->residual();
}

double SessionCore::residual_norm(uint32_t bucket) const {
  impl_->resolve_switch_step();
  return impl_->buckets[bucket].bucket->residual_norm();
}

std::vector<OutstandingView> SessionCore::outstanding(uint32_t bucket) const {
  std::vector<OutstandingView> views;
  const BucketRun& run = impl_->buckets[bucket];
  for (uint32_t part = run.first_part; part < run.first_part + run.part_count; ++part) {
    const PartRun& own = impl_->parts[part];
    for (const Outstanding& out : own.outstanding) {
      views.push_back(
          {part, impl_->wire_number(out), out.incarnation, own.layout.begin, out.sent.view, out.payload.bytes});
    }
  }
  return views;
}

void SessionCore::report_postponed(uint32_t bucket, LedgerObserver& observer) const {
  impl_->resolve_switch_step();
  impl_->buckets[bucket].bucket->report_postponed(observer);
}

SavedState SessionCore::saved_state() const {
  impl_->resolve_switch_step();
  return impl_->saved_state();
}

}  // namespace millrace::worker
