#include "worker/session/session_shell.h"

#include <sys/random.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/allocator.h"
#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/version.h"
#include "protocol/address/endpoint_text.h"
#include "protocol/container/codec_speeds.h"
#include "protocol/files/atomic_file.h"

/// Construction of a session, and its occasional queries: statistics, saved state.
namespace millrace::worker {
namespace {

uint64_t draw_nonce() {
  uint64_t nonce = 0;
  const ssize_t got = ::getrandom(&nonce, sizeof(nonce), 0);
  MILLRACE_CHECK(got == static_cast<ssize_t>(sizeof(nonce)), got);
  return nonce;
}

std::unique_ptr<NamedPeers> peers_of(const protocol::JobSpec& spec, const InitialState& initial_state,
                                     protocol::PacketSink* datagrams) {
  if (datagrams == nullptr) return nullptr;
  auto peers = std::make_unique<NamedPeers>(*datagrams);
  peers->set(spec.switch_path.address, initial_state.switch_at);
  if (!initial_state.rack_name.empty()) peers->set(initial_state.rack_name, initial_state.rack_at);
  return peers;
}

/// Where an epoch's decider is: the switch by its name, or shard 0 by a number. The session's thread waits for no
/// lookup.
Result<protocol::Endpoint> find_decider(const NamedPeers& peers, std::string_view text) {
  if (const auto known = peers.endpoint_of(text)) return *known;
  return protocol::parse_endpoint(text, protocol::PortZero::kRefused);
}

CoreConfig core_config_of(const WorkerConfig& options, protocol::JobSpec&& spec, InitialState& initial_state,
                          NamedPeers* peers) {
  CoreConfig config;
  config.worker = options.worker;
  config.nonce = draw_nonce();
  config.spec = std::move(spec);
  config.shard_addresses = options.shards;
  config.random_seed = config.nonce;
  config.software = software_name();
  config.resend_after = TimeNs{options.resend_after.count()} * kNsPerMs;
  config.reconnect_after_max = TimeNs{options.reconnect_after_max.count()} * kNsPerMs;
  config.connect_timeout = TimeNs{options.connect_timeout.count()} * kNsPerMs;
  config.shard_silence = TimeNs{options.shard_silence.count()} * kNsPerMs;
  config.codec_speeds = speeds_so_far;  // join() has them measured
  config.link_bits_per_s = options.link_rate;
  config.has_weights = initial_state.has_weights;
  config.takes_merged = std::ranges::none_of(
      initial_state.targets, [](const AttachedWeights::Target& target) { return static_cast<bool>(target.schedule); });
  config.returns = options.returns;
  config.saved = std::move(initial_state.saved);
  config.switch_access.key = initial_state.switch_key;
  config.switch_access.sink = peers;
  config.switch_access.resolve = [peers](std::string_view text) { return find_decider(*peers, text); };
  if (!initial_state.rack_name.empty()) config.switch_access.rack = peers->endpoint_of(initial_state.rack_name);
  return config;
}

protocol::TransportOptions transport_options(const InitialState& initial_state) {
  protocol::TransportOptions transport;
  transport.keys = initial_state.keys;
  return transport;
}

SwitchStats switch_stats(const SessionCore& core, const SwitchUdpPort* port) {
  const auto path = core.switch_status();
  if (!path) return {};
  SwitchStats stats{.used = true,
                    .at_switch = path->at_switch,
                    .turns = path->client.results,
                    .resends = path->client.resends,
                    .timeouts = path->client.timeouts,
                    .fallbacks = path->fallbacks,
                    .came_back = path->came_back,
                    .congestion_marks = path->client.congestion_marks};
  for (const NamedSwitchCount& one : named_counts(path->client)) stats.events[std::string(one.name)] = one.count;
  for (const char* own_field : {"results", "resends", "timeouts", "congestion_marks"}) stats.events.erase(own_field);
  if (port == nullptr) return stats;
  const protocol::UdpBursts::Counters counters = port->counters();
  stats.packets_lost = counters.send_full + counters.send_refused + counters.too_long;
  return stats;
}

void put_counters(const CoreCounters& counters, Stats& stats) {
  stats.payload_bytes_up = counters.payload_bytes_up;
  stats.payload_bytes_down = counters.payload_bytes_down;
  stats.raw_bytes_up = counters.raw_bytes_up;
  stats.raw_bytes_down = counters.raw_bytes_down;
  stats.dense_bytes = counters.dense_bytes;
  stats.rounds = counters.rounds;
  stats.resends = counters.resends;
  stats.reconnects = counters.reconnects;
  stats.duplicates = counters.duplicates;
  stats.updates_dropped_stale = counters.dropped_stale + counters.dropped_early;
  stats.updates_dropped_malformed = counters.dropped_malformed;
  stats.messages_dropped_unexpected = counters.dropped_unexpected;
  stats.not_counted = counters.not_counted;
  stats.returns = counters.returns;
  stats.returns_asked_for = counters.resyncs;
  stats.lost_save_too_old = counters.lost_save_too_old;
  stats.lost_off_log = counters.lost_off_log;
  stats.lost_cut = counters.lost_cut;
  stats.entries_void = counters.entries_void;
  stats.history_bytes_saved = counters.history_bytes_saved;
  stats.history_shortened = counters.history_shortened;
  stats.history_refused = counters.history_refused;
  stats.unreturnable = counters.unreturnable;
  stats.time_in_communication_s = static_cast<double>(counters.time_in_communication) * 1e-9;
}

}  // namespace

SessionShell::SessionShell(const WorkerConfig& options, protocol::JobSpec spec, InitialState initial_state)
    : options_(options),
      datagrams_(std::move(initial_state.datagrams)),
      peers_(peers_of(spec, initial_state, datagrams_.get())),
      core_(core_config_of(options, std::move(spec), initial_state, peers_.get())),
      context_(transport_options(initial_state)),
      store_({.resend_after = TimeNs{options.resend_after.count()} * kNsPerMs}),
      weights_(core_.spec().tensors.size()),
      shelf_(core_.spec(), core_.layout()) {
  if (options_.keep_freed_memory && !keep_freed_memory())
    say(Severity::kWarning, "keep_freed_memory: this process's allocator does not take the advice");
  wires_.resize(options_.shards.size());
  gates_.resize(core_.spec().tensors.size());
  for (const protocol::BucketLayout& bucket : core_.layout().buckets) {
    for (const protocol::BucketMember& member : bucket.members) {
      gates_[member.tensor].bucket = bucket.bucket;
      gates_[member.tensor].slot = &core_.slot(member.tensor);
    }
  }
  say_positions();
  for (size_t tensor = 0; tensor < weights_.size(); ++tensor) {
    AttachedWeights::Target& given = initial_state.targets[tensor];
    if (given.weights.empty()) continue;
    gates_[tensor].weights_given = true;
    shelf_.attach(tensor, given.when);
    weights_[tensor].attach(std::move(given), 0);
  }
  farewell_.emplace_back([this] { stop_ = true; });
  poller_.add(waker_);
  if (datagrams_) poller_.add_descriptor(datagrams_->descriptor());
}

void SessionShell::say_positions() {
  for (size_t tensor = 0; tensor < weights_.size(); ++tensor) {
    std::vector<AttachedWeights::Run> runs;
    for (const UpdateShelf::Run& run : shelf_.runs(tensor))
      runs.push_back({run.begin, core_.part_steps_handed(run.part)});
    weights_[tensor].set_positions(std::move(runs));
  }
}

SessionShell::~SessionShell() {
  post(std::move(farewell_));
  if (thread_.joinable()) thread_.join();
}

void SessionShell::say(Severity severity, const std::string& text) {
  if (!options_.log) return;
  try {
    options_.log(static_cast<LogLevel>(severity), text);
  } catch (...) {  // NOLINT(bugprone-empty-catch): the contract forbids it; nothing may leave this thread
  }
}

SessionShell::PushBarrier::PushBarrier(SessionShell& shell) : shell_(shell) {
  std::unique_lock lock(shell_.mutex_);
  shell_.fills_blocked_ = true;
  shell_.changed_.wait(lock, [this] { return shell_.fills_ == 0; });
}

SessionShell::PushBarrier::~PushBarrier() {
  const std::lock_guard lock(shell_.mutex_);
  shell_.fills_blocked_ = false;
  shell_.changed_.notify_all();
}

Result<ByteBuffer> SessionShell::state_bytes() {
  SavedState state;
  {
    const PushBarrier still(*this);
    state = core_.saved_state();
    for (const Gate& gate : gates_) {
      if (auto whole = gate.slot->device_status(); !whole) return std::unexpected(whole.error());
    }
    const std::lock_guard lock(mutex_);
    // The residual includes slots that were filled and not handed over yet: their step counts as pushed.
    for (size_t tensor = 0; tensor < gates_.size(); ++tensor)
      state.tensors[tensor].steps_pushed = gates_[tensor].steps_pushed;
  }
  for (uint32_t tensor = 0; tensor < gates_.size(); ++tensor) {
    // Not by the shelf: between its part of attach_weights() and that of the weights there is no array.
    if (!weights_[tensor].attached()) continue;
    Buffer<float>& weights = state.tensors[tensor].weights;
    weights.resize(core_.spec().tensors[tensor].dimension);
    for (const UpdateShelf::Run& run : shelf_.runs(tensor)) {
      if (auto copied = copy_weights(tensor, run, std::span(weights).subspan(run.begin, run.dimension)); !copied)
        return std::unexpected(copied.error());
    }
  }
  return encode_saved_state(state);
}

void SessionShell::audit_at_end() {
  audited_at_end_ = true;
  const PushBarrier still(*this);
  core_.audit(actions_);
}

void SessionShell::save_at_end() {
  saved_at_end_ = true;
  if (options_.save_path.empty()) return;
  Status written;
  // No caller waits for its work with weights on a card here. A session that has ended sends no heartbeats.
  for (size_t tensor = 0; tensor < weights_.size() && written; ++tensor) {
    if (const auto there = weights_[tensor].on_device()) written = there->await_callers_work();
  }
  if (written) {
    const auto bytes = state_bytes();
    written = bytes ? files::write_file_atomically(options_.save_path, *bytes, files::kOwnerOnly)
                    : std::unexpected(bytes.error());
  }
  if (written) {
    say(Severity::kInfo, "state saved to '" + options_.save_path + "'");
  } else {
    say(Severity::kError, "the state could not be saved: " + written.error().message);
  }
}

Stats SessionShell::collect_stats() {
  Stats stats;
  while (core_.resolve_one_deferred()) {
  }
  stats.bytes_up = bytes_up_;
  stats.bytes_down = bytes_down_;
  if (datagrams_) {
    stats.bytes_up += datagrams_->counters().bytes_out;
    stats.bytes_down += datagrams_->counters().bytes_in;
  }
  // Before the residuals' norms, which read values of devices.
  const DeviceUse devices = devices_.use();
  stats.bytes_to_devices = devices.bytes_up;
  stats.bytes_from_devices = devices.bytes_down;
  stats.device_memory_bytes = devices.memory_bytes;
  stats.by_switch = switch_stats(core_, datagrams_.get());
  put_counters(core_.counters(), stats);
  const PushBarrier still(*this);
  const AuditSums audit = core_.audit(actions_);
  stats.audit = {audit.audits, audit.entered,     audit.in_residual, audit.in_flight, audit.carried,
                 audit.lost,   audit.rounded_off, audit.imbalance,   audit.checks};
  {
    const std::lock_guard lock(mutex_);
    stats.time_blocked_s = blocked_s_;
  }
  stats.tensors.resize(gates_.size());
  for (uint32_t tensor = 0; tensor < gates_.size(); ++tensor) {
    TensorStats& own = stats.tensors[tensor];
    own.name = core_.spec().tensors[tensor].name;
    own.steps_pushed = core_.steps_pushed(tensor);
    own.steps_applied = core_.steps_applied(gates_[tensor].bucket);
    own.non_finite_dropped = gates_[tensor].slot->non_finite_dropped();
  }
  for (const protocol::BucketLayout& bucket : core_.layout().buckets) {
    TensorStats& first = stats.tensors[bucket.members.front().tensor];
    const BucketCounters counted = core_.bucket_counters(bucket.bucket);
    first.codec_choice = counted.codec_choice;
    first.entries_sent = counted.entries_sent;
    first.entries_sent_last = counted.entries_sent_last;
    first.entries_received = counted.entries_received;
    first.entries_returned = counted.entries_returned;
    first.false_positives = counted.false_positives;
    first.dropped_error = counted.dropped_error;
    first.dropped_magnitude = counted.dropped_magnitude;
    first.entries_discarded = counted.entries_discarded;
    first.discarded = counted.discarded;
    first.residual_norm = core_.residual_norm(bucket.bucket);
  }
  (void)fail_by_devices();  // the next call has the error
  return stats;
}

}  // namespace millrace::worker
