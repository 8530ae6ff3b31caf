#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "kernels/base/clock.h"
#include "protocol/address/endpoint_text.h"
#include "protocol/address/host_port.h"
#include "protocol/messages/frame.h"
#include "protocol/transport/connection_pair.h"
#include "worker/session/message_spans.h"
#include "worker/session/session_shell.h"

/// The session thread: drives the core, owns the connections, delivers updates.
namespace millrace::worker {

using monitoring::SpanName;
using monitoring::SpanUnit;

namespace {

constexpr int kMessagesPerPass = 256;  ///< of one connection, before the others are looked at
constexpr int kBurstsPerPass = 16;     ///< of datagrams
constexpr int kWaitMaxMs = 1'000;
/// A time without messages after which the moment is quiet: nothing is in flight, or other workers are not done with
/// it.
constexpr int kQuietMs = 2;
constexpr int kQuietInFlightMs = 20;
/// A full queue is tried again after this time.
constexpr int kBacklogWaitMs = 2;
/// Weights for a joining worker are sent behind at most this. So a contribution waits for no more of them.
constexpr uint64_t kWeightsQueueBytes = 1 << 20;
constexpr TimeNs kTextEvery = 100 * kNsPerMs;
/// Interval between lookups of the name of a switch or rack that does not answer.
constexpr TimeNs kLookUpEvery = 5 * kNsPerS;
/// While datagrams arrive continuously, the thread reads the shards' messages at this interval only. Those are then
/// about memberships and leases.
constexpr TimeNs kShardsEvery = 2 * kNsPerMs;
/// Looks at the connections' bytes: often enough for the least time that a connection may be silent.
constexpr TimeNs kProgressEvery = 250 * kNsPerMs;

/// Returns the number of workers that left a running job without finishing.
uint32_t missing_of(const protocol::Membership& membership, uint32_t workers) {
  const uint64_t accounted_for = membership.members.size() + membership.left;
  return membership.started && accounted_for < workers ? static_cast<uint32_t>(workers - accounted_for) : 0;
}

/// Returns the error of an exception of the session's thread. The caller's callbacks may throw a JobError: its code
/// stays.
Error error_of(const std::exception& problem) {
  const auto* job_error = dynamic_cast<const JobError*>(&problem);
  return {job_error != nullptr ? static_cast<ErrorCode>(job_error->code()) : ErrorCode::kInternal,
          std::string("the session's thread failed: ") + problem.what()};
}

}  // namespace

void SessionShell::run() {
  try {
    core_.start(monotonic_now_ns(), actions_);
    execute_actions();
    serve();
  } catch (const std::exception& problem) {
    actions_.clear();
    fail_by_own(error_of(problem));
    say_goodbye_after_failure();
    stop_polling();  // messages are not read any more
    publish();
    // Callers may still ask for statistics: commands are served until the end.
    while (!stop_) {
      poller_.wait(kWaitMaxMs);
      take_commands();
    }
    drop_connections();
    return;
  }
  stop_polling();
  drop_connections();
}

void SessionShell::drop_connections() {
  for (ShardConnection& wire : wires_) {
    wire.connection.reset();
    wire.other.reset();
  }
}

/// The other workers must not wait for dead_after, nor the user for a saved state that is not written.
void SessionShell::say_goodbye_after_failure() {
  try {
    execute_actions();
    if (options_.save_path.empty() || std::exchange(saved_at_end_, true)) return;
    say(Severity::kError, "the state was not saved: the session's thread failed in the middle of its work");
  } catch (const std::exception&) {
    actions_.clear();  // there is no memory for it either
  }
}

void SessionShell::stop_polling() {
  if (peer_lookup_) poller_.remove_descriptor(peer_lookup_->lookup->descriptor());
  if (datagrams_) poller_.remove_descriptor(datagrams_->descriptor());
  for (ShardConnection& wire : wires_) {
    if (wire.connection) poller_.remove(*wire.connection);
  }
}

void SessionShell::fail_by_own(Error why) {
  if (!core_.error()) end_origin_ = JobErrorOrigin::kWorker;
  core_.fail_session(std::move(why), monotonic_now_ns(), actions_);
}

Status SessionShell::fail_by_devices() {
  for (size_t tensor = 0; tensor < gates_.size(); ++tensor) {
    const Status status = gates_[tensor].slot->device_status();
    if (status) continue;
    Error why = of_tensor(tensor, status.error());
    fail_by_own(why);
    return std::unexpected(std::move(why));
  }
  return {};
}

CallError SessionShell::answer_of(Error answer) const {
  return {std::move(answer), core_.error() ? end_origin_ : JobErrorOrigin::kWorker};
}

Error SessionShell::of_tensor(size_t tensor, const Error& why) const {
  return {why.code, "tensor '" + core_.spec().tensors[tensor].name + "': " + why.message};
}

void SessionShell::serve() {
  for (;;) {
    take_commands();
    if (stop_) break;
    const bool more = work();
    execute_actions();
    if (!std::exchange(waited_for_datagrams_, false)) {
      for (uint32_t shard = 0; shard < wires_.size(); ++shard) receive(shard);
      shards_looked_at_ = monotonic_now_ns();
    }
    receive_datagrams();
    const TimeNs now = monotonic_now_ns();
    look_up_peers(now);
    look_at_progress(now);
    if (now >= core_.next_deadline()) core_.on_tick(now, actions_);
    core_.end_pass(now, actions_);
    ask_stores(now);
    execute_actions();
    const bool gave = give_weights();
    if (core_.error() && !saved_at_end_) save_at_end();
    if (core_.phase() == Phase::kFinished && !audited_at_end_) audit_at_end();
    publish();
    if (!more && !gave && !core_.has_work(monotonic_now_ns())) wait();
  }
  core_.leave(protocol::Goodbye::Reason::kShutdown, "the session was closed", monotonic_now_ns(), actions_);
  execute_actions();
}

bool SessionShell::work() {
  monitoring::SpanTimer timer(record_.spans);
  const TimeNs begin = monotonic_now_ns();
  const bool more = core_.work(begin, actions_);
  if (const std::optional<WorkDone> done = std::exchange(actions_.work_done, std::nullopt)) {
    const bool selected = done->kind == WorkDone::Kind::kSelected;
    record_.phases.add(selected ? StepPhase::kSelect : StepPhase::kEncode, monotonic_now_ns() - begin);
    timer.end({.step = done->step,
               .unit = done->unit,
               .name = selected ? SpanName::kSelect : SpanName::kEncode,
               .unit_kind = selected ? SpanUnit::kBucket : SpanUnit::kPart});
  }
  return more;
}

void SessionShell::take_commands() {
  std::unique_lock lock(mutex_);
  // One at a time: an exception of one must not discard the others, which callers wait for.
  while (!commands_.empty()) {
    Commands next;
    next.splice(next.end(), commands_, commands_.begin());
    lock.unlock();
    next.front()();
    next.clear();
    lock.lock();
  }
}

void SessionShell::wait() {
  if (datagrams_follow()) {
    constexpr int kNextMs = 1;
    waited_for_datagrams_ = poller_.wait_for_descriptors(std::min(wait_ms(), kNextMs));
    return;
  }
  if (core_.all_resolved()) {
    poller_.wait(wait_ms());
    return;
  }
  // Settling is for quiet moments: a step that is under way here or in a process beside this one has the cores first.
  bool heard = poller_.wait(std::min(wait_ms(), core_.in_flight() ? kQuietInFlightMs : kQuietMs));
  while (!heard && core_.resolve_one_deferred()) heard = poller_.wait(0);
}

/// A step is under way, and its datagrams came just now; no shard has been left unheard for long, or has its queue
/// full.
bool SessionShell::datagrams_follow() const {
  if (!datagrams_ || !core_.in_flight()) return false;
  const TimeNs now = monotonic_now_ns();
  return now - datagrams_came_at_ < kShardsEvery && now - shards_looked_at_ < kShardsEvery && !has_backlog();
}

bool SessionShell::has_backlog() const {
  return std::ranges::any_of(wires_, [](const ShardConnection& wire) { return !wire.backlog.empty(); });
}

int SessionShell::wait_ms() const {
  const bool gives = std::ranges::any_of(wires_, [](const ShardConnection& wire) { return !wire.weights.empty(); });
  if (has_backlog() || gives || (!store_.idle() && has_long_queue())) return kBacklogWaitMs;
  TimeNs next = std::min(core_.next_deadline(), store_.next_deadline());
  if (text_is_old_) next = std::min(next, next_text_);
  const TimeNs left = next - monotonic_now_ns();
  return static_cast<int>(std::clamp<TimeNs>(left / kNsPerMs + 1, 0, kWaitMaxMs));
}

void SessionShell::receive(uint32_t shard) {
  ShardConnection& wire = wires_[shard];
  if (!wire.connection) return;
  flush_backlog(shard);
  for (int count = 0; count < kMessagesPerPass; ++count) {
    auto received = wire.connection->receive();
    if (!received) break;
    bytes_down_ += received->bytes;
    const TimeNs now = monotonic_now_ns();
    if (received->message && std::holds_alternative<protocol::Pulled>(received->message->body)) {
      store_.on_pulled(*received->message, now, pulled_);
      take_pulled();
    } else if (received->message) {
      if (std::holds_alternative<protocol::Welcome>(received->message->body)) wire.other.reset();
      const UpdateSpan span(record_.spans, *received->message);
      core_.on_message(shard, std::move(*received->message), now, actions_);
    } else {
      core_.on_bad_message(shard, received->message.error(), now, actions_);
    }
    execute_actions();
    if (!wire.connection) return;  // the shard is elsewhere, and cannot be connected to now
  }
  // After the messages: a shard's last words come before the end of its connection.
  watch(shard);
}

void SessionShell::look_at_progress(TimeNs now) {
  if (now - progress_looked_at_ < kProgressEvery) return;
  progress_looked_at_ = now;
  for (uint32_t shard = 0; shard < wires_.size(); ++shard) {
    if (!wires_[shard].connection) continue;
    const auto [received, sent] = wires_[shard].connection->progress();
    if (received > 0) core_.on_sign(shard, ConnectionSign::kReceived, now, received);
    store_.on_received(shard, received, now);
    if (sent) core_.on_sign(shard, ConnectionSign::kSent, now);
  }
}

void SessionShell::receive_datagrams() {
  if (!datagrams_) return;
  for (int burst = 0; burst < kBurstsPerPass; ++burst) {
    const auto packets = datagrams_->receive();
    const TimeNs now = monotonic_now_ns();
    for (const protocol::ReceivedPacket& packet : packets) core_.on_packet(peers_->received(packet), now, actions_);
    execute_actions();
    if (packets.empty()) return;
    datagrams_came_at_ = now;
  }
}

void SessionShell::look_up_peers(TimeNs now) {
  if (!peers_) return;
  if (peer_lookup_) {
    const auto found = peer_lookup_->lookup->take();
    if (!found) return;
    const auto endpoints =
        *found ? protocol::endpoints_of(**found, peer_lookup_->at.port) : std::vector<protocol::Endpoint>();
    if (!endpoints.empty()) peers_->set(peer_lookup_->name, endpoints);
    poller_.remove_descriptor(peer_lookup_->lookup->descriptor());
    peer_lookup_.reset();
    return;
  }
  if (now < next_peer_lookup_) return;
  std::string name = peers_->take_silent();
  const Result<protocol::HostPort> at = protocol::parse_host_port(name);
  if (!at || protocol::is_numeric_host(at->host)) return;
  next_peer_lookup_ = now + kLookUpEvery;
  auto lookup = protocol::HostLookup::start(context_.options().resolver, at->host);
  if (!lookup) return;
  poller_.add_descriptor((*lookup)->descriptor());
  peer_lookup_ = PeerLookup{*at, std::move(name), std::move(*lookup)};
}

void SessionShell::watch(uint32_t shard) {
  ShardConnection& wire = wires_[shard];
  const protocol::ConnectionState state = wire.connection->state();
  if (wire.connection->accepted()) core_.on_sign(shard, ConnectionSign::kAccepted, monotonic_now_ns());
  if (state == wire.seen) return;
  const bool was_connected = std::exchange(wire.seen, state) == protocol::ConnectionState::kConnected;
  const TimeNs now = monotonic_now_ns();
  if (state == protocol::ConnectionState::kConnected) {
    core_.on_connected(shard, now, actions_);
  } else if (state == protocol::ConnectionState::kDisconnected) {
    wire.backlog.clear();
    wire.weights.drop_runs();
    const std::string& key_trouble = wire.connection->key_trouble();
    const std::string& trouble = wire.connection->trouble();
    const std::string reason = was_connected     ? "the connection was closed"
                               : trouble.empty() ? "no process accepts connections there"
                                                 : trouble;
    core_.on_disconnected(
        shard,
        key_trouble.empty() ? Error{ErrorCode::kUnavailable, reason} : Error{ErrorCode::kUnauthenticated, key_trouble},
        now, actions_);
  }
  execute_actions();
}

void SessionShell::connect_now(uint32_t shard) {
  ShardConnection& wire = wires_[shard];
  wire.backlog.clear();
  wire.weights.drop_runs();
  wire.seen = protocol::ConnectionState::kConnecting;
  const Status connected =
      protocol::connect_one_of_two(context_, poller_, core_.shard_address(shard), wire.connection, wire.other);
  if (connected) return;
  const ErrorCode code = connected.error().code;
  if (code != ErrorCode::kIo && code != ErrorCode::kInvalidArgument) return fail_by_own(connected.error());
  // No descriptor, perhaps for a moment; or a wrong address of the membership, as those of the options are checked
  // before. It is tried again as a shard that does not answer.
  wire.seen = protocol::ConnectionState::kDisconnected;
  core_.on_disconnected(shard, {ErrorCode::kUnavailable, connected.error().message}, monotonic_now_ns(), actions_);
}

void SessionShell::send_now(SendAction&& send) {
  ShardConnection& wire = wires_[send.shard];
  if (!wire.connection) return;
  if (!wire.backlog.empty()) {
    wire.backlog.push_back(std::move(send.message));
    return;
  }
  const ContributionSpan span(record_.spans, send.message);
  const SharedBytes envelope = SharedBytes::from(protocol::encode_envelope(send.message));
  switch (wire.connection->send_frames(envelope, send.message.payload)) {
    case protocol::SendResult::kSent: bytes_up_ += envelope.bytes.size() + send.message.payload.bytes.size(); return;
    case protocol::SendResult::kWouldBlock: wire.backlog.push_back(std::move(send.message)); return;
    case protocol::SendResult::kUnknownPeer:
    case protocol::SendResult::kFailed:
      core_.on_disconnected(send.shard, {ErrorCode::kUnavailable, "the socket takes no more"}, monotonic_now_ns(),
                            actions_);
      return;
  }
}

void SessionShell::flush_backlog(uint32_t shard) {
  ShardConnection& wire = wires_[shard];
  std::deque<protocol::Message> waiting = std::exchange(wire.backlog, {});
  for (protocol::Message& message : waiting) send_now({shard, std::move(message)});
}

void SessionShell::execute_actions() {
  while (!actions_.sends.empty() || !actions_.connects.empty() || !actions_.delivered.empty() ||
         !actions_.give_weights.empty() || !actions_.log.empty() || !actions_.steps_done.empty()) {
    Actions now = std::exchange(actions_, {});
    for (const LogLine& line : now.log) say(line.severity, line.text);
    for (const TimeNs took : now.steps_done) {
      if (watch_step_) watch_step_(static_cast<double>(took) / static_cast<double>(kNsPerS));
    }
    for (const uint32_t shard : now.connects) connect_now(shard);
    for (SendAction& send : now.sends) send_now(std::move(send));
    for (DeliveredUpdate& delivered : now.delivered) deliver(std::move(delivered));
    for (const GiveWeights& asked : now.give_weights) wires_[asked.shard].weights.ask(asked);
  }
  if (datagrams_) datagrams_->flush();
}

void SessionShell::deliver(DeliveredUpdate&& delivered) {
  const bool complete = delivered.step_complete;
  monitoring::SpanTimer timer(record_.spans);
  const TimeNs begin = monotonic_now_ns();
  const monitoring::Span applied{.step = delivered.step, .unit = delivered.part, .name = SpanName::kApply};
  for (UpdateShelf::Portion& portion : shelf_.portions(std::move(delivered))) {
    uint64_t pushes_made = 0;
    {
      const std::lock_guard lock(mutex_);
      pushes_made = gates_[portion.tensor].steps_pushed;
    }
    // Before the shelf reports the step as complete: a caller that awaits it finds it in the weights.
    if (portion.arrives) {
      const auto taken = weights_[portion.tensor].arrive(Arrival(portion.arrival), pushes_made);
      if (!taken) return fail_by_own(of_tensor(portion.tensor, taken.error()));
    }
    if (portion.arrival.replaces) continue;
    const std::lock_guard lock(mutex_);
    shelf_.put(std::move(portion));
  }
  if (complete) updates_complete_ = true;
  record_.phases.add(StepPhase::kApply, monotonic_now_ns() - begin);
  timer.end(applied);
}

bool SessionShell::give_weights() {
  bool gave = false;
  for (uint32_t shard = 0; shard < wires_.size(); ++shard) gave |= give_run(shard);
  return gave;
}

bool SessionShell::give_run(uint32_t shard) {
  WeightRuns& waiting = wires_[shard].weights;
  waiting.keep_epoch(core_.membership().epoch);
  if (waiting.empty() || queued_bytes(shard) > kWeightsQueueBytes) return false;
  if (std::optional<SendAction> run = waiting.take_run()) {
    send_now(std::move(*run));
    return true;
  }
  const std::optional<GiveWeights> asked = waiting.take_request();
  if (!asked) return false;
  const auto weights = weights_of(asked->part);
  if (weights) {
    Actions given;
    core_.give_weights(*asked, *weights, monotonic_now_ns(), given);
    waiting.give(std::move(given.sends));
  } else {
    fail_by_own(weights.error());
  }
  execute_actions();
  return true;
}

Result<Buffer<float>> SessionShell::weights_of(uint32_t part) {
  const protocol::PartLayout& layout = core_.layout().parts[part];
  Buffer<float> weights(layout.end - layout.begin);
  for (const protocol::BucketMember& member : core_.layout().buckets[layout.bucket].members) {
    const auto& runs = shelf_.runs(member.tensor);
    const auto run = std::ranges::find(runs, part, &UpdateShelf::Run::part);
    if (run == runs.end()) continue;
    const uint64_t at = member.offset + run->begin - layout.begin;
    if (auto copied = copy_weights(member.tensor, *run, std::span(weights).subspan(at, run->dimension)); !copied)
      return std::unexpected(copied.error());
  }
  return weights;
}

// Adds the updates that the core holds back: weights that others take over, or that are saved, belong to the core's log
// position.
Status SessionShell::copy_weights(size_t tensor, const UpdateShelf::Run& run, std::span<float> out) {
  std::vector<Arrival> held;
  for (DeliveredUpdate& update : core_.awaiting_acks(run.part)) {
    for (UpdateShelf::Portion& portion : shelf_.portions(std::move(update))) {
      if (portion.tensor == tensor && portion.arrives) held.push_back(std::move(portion.arrival));
    }
  }
  const auto copied = weights_[tensor].copy_run(run.begin, out, held);
  if (!copied) return std::unexpected(of_tensor(tensor, copied.error()));
  return {};
}

void SessionShell::publish() {
  const TimeNs now = monotonic_now_ns();
  const bool steps_changed = std::exchange(published_changes_, core_.changes()) != core_.changes();
  const bool text_due = now >= next_text_;
  text_is_old_ = !text_due && !steps_changed;
  if (!steps_changed && !text_due && !updates_complete_) return;
  updates_complete_ = false;
  const std::lock_guard lock(mutex_);
  if (steps_changed) {
    for (uint32_t tensor = 0; tensor < gates_.size(); ++tensor)
      gates_[tensor].steps_allowed = core_.steps_allowed(tensor);
    phase_ = core_.phase();
    is_waited_for_ = core_.is_waited_for();
    returns_ = core_.counters().returns;
    audit_imbalance_ = core_.audit_sums().imbalance;
    workers_missing_ = missing_of(core_.membership(), core_.spec().workers);
    if (core_.error()) error_ = answer_of(*core_.error());
  }
  if (!text_is_old_) {
    next_text_ = now + kTextEvery;
    waiting_for_ = core_.waiting_for();
  }
  changed_.notify_all();
}

}  // namespace millrace::worker
