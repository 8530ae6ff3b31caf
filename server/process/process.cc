#include "server/process/process.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/version.h"
#include "monitoring/metrics.h"
#include "monitoring/status/status_json.h"
#include "monitoring/trace/trace_answer.h"
#include "protocol/container/codec_speeds.h"
#include "protocol/messages/frame.h"
#include "protocol/table/open_table.h"
#include "protocol/transport/key_gate.h"
#include "protocol/transport/transport.h"
#include "server/access/access.h"
#include "server/connections/connection_watch.h"
#include "server/page/shard_page.h"
#include "server/process/aggregator_thread.h"
#include "server/process/keys_status.h"
#include "server/process/metrics_export.h"
#include "server/process/port_guard.h"
#include "server/process/process_log.h"
#include "server/process/shard_links.h"
#include "server/process/status_board.h"
#include "server/process/store_thread.h"
#include "server/process/task_pool.h"
#include "server/shard/shard_core.h"
#include "server/spans/round_spans.h"
#include "server/spare/spare_wait.h"
#include "server/supervision/supervision.h"

namespace millrace::server {
namespace {

/// Messages received before the loop carries out their actions; bounds how long a flood can delay decisions.
constexpr int kMessagesPerPass = 128;
/// Sends that may wait for the end of a turn. One Goodbye in a job of many workers causes a long membership for each.
/// The Goodbyes of one turn would need more memory than the job's rounds.
constexpr size_t kQueuedSendsMax = 256;
/// Time of a pass for receiving, which refused Hellos can fill, and the same for computing.
constexpr TimeNs kTimePerPass = 500 * kNsPerUs;
/// Time that the loop waits for another process's lock on an SQLite table. After three failures it does not wait for
/// ten times as long. A process that stopped during a write costs 60 ms, and then at most a tenth of the time.
constexpr uint32_t kTableWaitMs = 20;
constexpr TimeNs kGaugesEvery = kNsPerS;
constexpr int kStarvedMs = 10;  ///< between two tries to begin tasks for which there was no memory.
/// Time without a turn of the loop after which /healthz reports the shard as unhealthy.
constexpr TimeNs kStallLimit = 5 * kNsPerS;

}  // namespace

class ShardProcess::Loop {
 public:
  Loop(const Options& options, std::unique_ptr<Access> access, monitoring::ServiceNotifier manager)
      : options_(options),
        supervision_(std::move(manager), kServerProgram),
        access_(std::move(access)),
        context_(transport_options(options, access_->transport_keys())),
        pool_(
            options.threads != 0 ? options.threads : std::max(1u, std::thread::hardware_concurrency()),
            [this] { waker_.wake(); }, &spans_),
        export_(metrics_),
        board_([this] { waker_.wake(); }) {}

  /// Returns false: it is a spare that was asked to end before it had a number.
  Result<bool> open(const SpareWait& wait);
  Status open_http();
  Status run();
  void request_stop() noexcept {
    stop_.store(true);
    waker_.wake();
  }
  void request_save() noexcept {
    save_.store(true);
    waker_.wake();
  }
  void request_reload() noexcept {
    reload_.store(true);
    waker_.wake();
  }

  const std::string& address() const { return address_; }
  const std::string& http_address() const { return http_address_; }
  std::string datagrams_address() const { return datagrams_ ? datagrams_->address() : std::string(); }
  uint64_t incarnation() const { return incarnation_; }
  uint32_t shard() const { return options_.shard; }
  uint32_t shards() const { return options_.shards; }

 private:
  /// Runs `work`. No exception for lack of memory leaves the loop: work that breaks off is counted, and the next turn
  /// continues from there.
  template <typename Work>
  bool catch_out_of_memory(const Work& work) {
    try {
      work();
      return true;
    } catch (const std::bad_alloc&) {     // NOLINT(bugprone-empty-catch): below, when the memory is free again
    } catch (const std::length_error&) {  // NOLINT(bugprone-empty-catch)
    }
    ++broken_off_;
    return false;
  }
  Result<bool> take_over(const SpareWait& wait);
  void run_pass();
  void reload(TimeNs now);
  void end_revoked(TimeNs now);
  bool has_session(const protocol::PeerId& peer) const { return core_ && core_->has_session(peer); }
  void look_as_spare(TimeNs now);
  int wait_ms(TimeNs now) const;
  Status listen();
  ConnectionWatch::Inbox receive();
  void receive_links();
  void compute();
  void watch_links(TimeNs now);
  void execute_actions();
  void carry_out_many();
  void send_to_peer(const SendToPeer& send);
  void watch(TimeNs now);
  void take_from_disk();
  void change_datagrams(const DatagramChange& change, TimeNs now);
  StatusReport status(TimeNs now) const;

  Options options_;
  Supervision supervision_;
  ProcessLog log_{options_.shard, options_.quiet ? Severity::kWarning : Severity::kInfo};
  std::unique_ptr<protocol::MembershipTable> table_;
  std::unique_ptr<Access> access_;
  protocol::TransportContext context_;
  std::unique_ptr<protocol::KeyGate> gate_;  ///< with keys
  std::unique_ptr<protocol::Listener> listener_;
  protocol::Waker waker_;
  protocol::Poller poller_;
  std::unique_ptr<ShardLinks> links_;
  monitoring::SpanRecorder spans_;     ///< before the pool that records into it
  TaskPool pool_;                      ///< after the waker that it wakes
  std::unique_ptr<StoreThread> disk_;  ///< where there is a place for saves
  std::vector<StoreThread::Answer> from_disk_;
  std::unique_ptr<DatagramThread> datagrams_;  ///< where this shard replaces switches
  SpeedMeasurer speed_measurer_;    ///< for jobs with codec auto: the loop runs their tasks, and has no second to spare
  std::optional<PortGuard> guard_;  ///< of the listener
  std::unique_ptr<ShardCore> core_;
  monitoring::Metrics metrics_;
  MetricsExport export_;
  StatusBoard board_;
  std::atomic<TimeNs> last_pass_ = 0;
  bool draining_ = false;
  TimeNs next_gauges_ = 0;
  uint64_t broken_off_ = 0;  ///< for want of memory, not counted in the metrics yet
  uint64_t bytes_in_ = 0;
  uint64_t bytes_out_ = 0;
  Actions actions_;
  std::vector<std::shared_ptr<Task>> done_;
  std::atomic<bool> stop_ = false;
  std::atomic<bool> save_ = false;
  std::atomic<bool> reload_ = false;
  std::string address_;
  std::string http_address_;
  uint64_t incarnation_ = 0;
  ShardPage page_{metrics_, options_.table, options_.http_security, options_.page_workers};
  std::unique_ptr<monitoring::HttpPort> http_;  ///< last: its threads ask the others
};

Result<bool> ShardProcess::Loop::open(const SpareWait& wait) {
  access_->set_log(
      [this](Severity severity, const std::string& text) { log_.write(severity, text, monotonic_now_ns()); });
  const Result<JobStore::Saves> saves = saves_of(options_);
  if (!saves) return std::unexpected(saves.error());
  auto table = protocol::open_table(options_.table, kTableWaitMs);
  if (!table) return std::unexpected(table.error());
  table_ = std::move(*table);
  if (const Status listens = listen(); !listens) return std::unexpected(listens.error());
  // Before the table records this process: a start that fails must not end the one that has the number.
  if (const Status opened = options_.http.empty() ? Status{} : open_http(); !opened)
    return std::unexpected(opened.error());
  table_->introduce({address_, http_address_, software_name()});
  if (!options_.datagrams.empty()) {
    auto datagrams = DatagramThread::start(
        {options_.datagrams, options_.job_keys, options_.limits.job_memory_bytes_max}, random_incarnation_seed());
    if (!datagrams) return std::unexpected(datagrams.error());
    datagrams_ = std::move(*datagrams);
  }
  // A spare: for one shard. The number of shards is not known yet.
  if (const Status enough = guard_->share_descriptors(options_.shards); !enough) return std::unexpected(enough.error());
  if (options_.spare) {
    const Result<bool> taken = take_over(wait);
    if (!taken || !*taken) return taken;
  } else {
    const Result<uint64_t> incarnation =
        table_->start_shard(options_.shard, options_.shards, address_, datagrams_address());
    if (!incarnation) return std::unexpected(incarnation.error());
    incarnation_ = *incarnation;
  }
  // At once: without a lease a spare may take this number.
  if (const Status held = table_->hold_lease(options_.shard, incarnation_); !held) return std::unexpected(held.error());
  links_ = std::make_unique<ShardLinks>(options_.shards, context_, poller_, log_);
  if (saves->possible) disk_ = start_store_thread(options_, incarnation_, [this] { waker_.wake(); });
  ShardConfig config{options_.shard,
                     options_.shards,
                     incarnation_,
                     software_name(),
                     options_.limits,
                     *saves,
                     {speeds_so_far, options_.link_rate}};
  if (datagrams_) {
    config.datagrams.judge = [this](const protocol::JobSpec& spec, const protocol::SwitchLayout& layout) {
      return datagrams_->judge(spec, layout);
    };
  }
  config.room_for_worker = [this](TimeNs now) { return guard_->judge_worker(now); };
  config.is_closed = [this](const protocol::PeerId& peer) { return guard_->connections().is_closed(peer); };
  config.rights = access_->rights();
  config.queued_bytes = [this](const protocol::PeerId& peer) { return listener_->queued_bytes(peer); };
  core_ = std::make_unique<ShardCore>(std::move(config), *table_, monotonic_now_ns());
  poller_.add(*listener_);
  poller_.add(waker_);
  access_->begin(options_.shard, monotonic_now_ns());
  if (options_.spare) access_->record(take_over_event(address_, incarnation_), monotonic_now_ns());
  return true;
}

Status ShardProcess::Loop::listen() {
  if (context_.options().keys) {  // before the port is open: no key gets in without the gate
    auto gate = protocol::KeyGate::open(context_);
    if (!gate) return std::unexpected(gate.error());
    gate_ = std::move(*gate);
    poller_.add(*gate_);
  }
  auto listener = protocol::Listener::bind(context_, options_.listen);
  if (!listener) return std::unexpected(listener.error());
  listener_ = std::move(*listener);
  Result<std::string> address = advertised_address(options_, listener_->address());
  if (!address) return std::unexpected(address.error());
  address_ = std::move(*address);
  const Result<protocol::HostPort> at = protocol::parse_tcp_address(listener_->address());
  if (!at) return std::unexpected(at.error());
  guard_.emplace(options_, at->port, log_, export_, *access_);
  return {};
}

/// Waits until a shard is without a process, and takes its number. Returns false: the wait was ended.
Result<bool> ShardProcess::Loop::take_over(const SpareWait& wait) {
  SpareCallbacks callbacks;
  callbacks.on_waiting = [&] {
    supervision_.as_spare();
    wait.on_waiting();
  };
  callbacks.on_look = [this, &wait](TimeNs now) {
    supervision_.keep_alive(now);
    if (wait.takes_reload()) reload(now);
    catch_out_of_memory([&] { look_as_spare(now); });
  };
  callbacks.say = [this](Severity severity, const std::string& text) {
    log_.write(severity, text, monotonic_now_ns());
  };
  callbacks.is_over = wait.is_over;
  callbacks.may_take = [this](uint32_t shards) -> Result<bool> {
    options_.shards = shards;
    if (const Status enough = guard_->share_descriptors(options_.shards); !enough)
      return std::unexpected(enough.error());
    // The keys and rights of the moment: it may have waited for long. Without them it leaves the number to others.
    return access_->reload(monotonic_now_ns()).has_value() && !access_->allows_nobody();
  };
  const Result<std::optional<TakenNumber>> taken = wait_for_number(*table_, address_, datagrams_address(), callbacks);
  if (!taken) return std::unexpected(taken.error());
  if (!*taken) {
    supervision_.draining();
    return false;
  }
  incarnation_ = (*taken)->incarnation;
  options_.shard = (*taken)->shard;
  log_ = ProcessLog(options_.shard, options_.quiet ? Severity::kWarning : Severity::kInfo);
  log_.write(Severity::kWarning, fmt::format("this spare takes over shard {} of {}", options_.shard, options_.shards),
             monotonic_now_ns());
  return true;
}

/// Nothing may connect to a spare that waits: it has no number to serve.
void ShardProcess::Loop::look_as_spare(TimeNs now) {
  access_->record_waiting(now);
  if (gate_) gate_->answer([](const protocol::KeyGate::Caller&) { return false; });
  const auto none = [](const protocol::PeerId&) { return false; };
  for (int taken = 0; taken < kMessagesPerPass; ++taken) {
    std::optional<protocol::Received> received = listener_->receive();
    if (!received) return guard_->look(ConnectionWatch::Inbox::kDrained, none, now);
    guard_->on_message(*received, now);
    if (!received->message) continue;
    const protocol::Refuse refusal{.code = ErrorCode::kUnavailable,
                                   .sentence = "this process is a spare that waits for the number of a shard",
                                   .retry = true};
    received->message->header.shard_incarnation = 0;  // it is no shard's answer
    listener_->send(received->peer, {received->message->header, refusal, {}});
  }
  guard_->look(ConnectionWatch::Inbox::kNotDrained, none, now);
}

Status ShardProcess::Loop::open_http() {
  monitoring::HttpHandlers handlers;
  // A spare becomes a shard while its page is open.
  handlers.title = options_.spare ? std::string("Millrace server")
                                  : fmt::format("Millrace shard {} of {}", options_.shard, options_.shards);
  handlers.metrics_text = [this] { return metrics_.prometheus_text(); };
  handlers.unhealthy = [this]() -> std::optional<std::string> {
    const TimeNs turn = last_pass_.load();
    const TimeNs stood_ns = turn == 0 ? 0 : monotonic_now_ns() - turn;
    if (stood_ns > kStallLimit) return fmt::format("the loop has been stalled for {} ms", stood_ns / kNsPerMs);
    return std::nullopt;
  };
  handlers.unready = [this, unhealthy = handlers.unhealthy]() -> std::optional<std::string> {
    std::optional<std::string> reason = unhealthy();
    return reason ? reason : supervision_.unready();
  };
  handlers.status_json = [this]() -> std::string {
    constexpr std::chrono::milliseconds kAnswerTimeout(2'000);
    return board_.ask(kAnswerTimeout).value_or(R"({"error": "the shard's loop did not answer within 2000 ms"})");
  };
  handlers.trace_json = [this](std::string_view query) {
    return monitoring::answer_trace(spans_, query, {.kind = "shard", .address = address_});
  };
  auto http = page_.open(options_.http, address_, std::move(handlers), access_->reader_rights());
  if (!http) return std::unexpected(http.error());
  http_ = std::move(*http);
  http_address_ = http_->address();
  return {};
}

/// Answers requests for the status, and updates the gauges at intervals.
void ShardProcess::Loop::watch(TimeNs now) {
  last_pass_.store(now);
  export_.count_network(std::exchange(bytes_in_, 0), std::exchange(bytes_out_, 0));
  if (broken_off_ != 0) {
    export_.record({Metric::kDropped, {}, "out_of_memory", static_cast<double>(broken_off_)});
    broken_off_ = 0;
  }
  if (now >= next_gauges_) {
    next_gauges_ = now + kGaugesEvery;
    const StatusReport report = status(now);
    export_.update_gauges(report, now);
    supervision_.update(report);
    page_.add(report, now);
    guard_->report_surplus(now);
    access_->record_waiting(now);
    if (access_->end_keys(protocol::present_day(), now)) end_revoked(now);
  }
  supervision_.keep_alive(now);
  if (board_.wanted()) board_.publish(monitoring::status_json(status(now)));
}

StatusReport ShardProcess::Loop::status(TimeNs now) const {
  StatusReport status = core_->status(now);
  status.table = options_.table.location;
  if (const protocol::AllowedKeys* allowed = access_->allowed_keys()) status.keys = keys_status_of(*allowed);
  for (JobStatus& job : status.jobs) {
    if (job.switch_path && datagrams_) job.switch_path->aggregator = datagrams_->report(job.job);
  }
  if (datagrams_) status.datagrams_dropped = datagrams_->dropped();
  return status;
}

/// Begins or ends the aggregator of a job of path switch. Before the job began, the core asked whether it is possible.
void ShardProcess::Loop::change_datagrams(const DatagramChange& change, TimeNs now) {
  if (!datagrams_) return;
  if (!change.spec) return datagrams_->end(change.job);
  if (const Status begun = datagrams_->begin(change.job, *change.spec, change.layout); !begun) {
    log_.write(Severity::kError,
               fmt::format("job '{}': shard 0 cannot decide in place of its switch: {}", change.spec->name,
                           begun.error().message),
               now);
  }
}

int ShardProcess::Loop::wait_ms(TimeNs now) const {
  if (pool_.has_waiting() || !actions_.to_peers.empty()) return 0;
  if (!actions_.tasks.empty()) return kStarvedMs;
  TimeNs until = core_->next_deadline();
  if (const std::optional<TimeNs> at = links_->deadline()) until = std::min(until, *at);
  until = std::min(until, supervision_.next_keep_alive());
  if (until <= now) return 0;
  return static_cast<int>(std::min<TimeNs>((until - now + kNsPerMs - 1) / kNsPerMs, 1'000));
}

/// Other options are read once.
void ShardProcess::Loop::reload(TimeNs now) {
  supervision_.reloading(now);
  catch_out_of_memory([&] {
    (void)access_->reload(now);  // the log has the reason
    if (core_) end_revoked(now);
    if (datagrams_) {
      for (const LogLine& line : datagrams_->reload_keys()) log_.write(line.severity, line.text, now);
    }
    if (const auto said = page_.reload()) log_.write(said->severity, said->text, now);
  });
  supervision_.reloaded();  // in any case: a manager waits for it
}

/// Tells the connections whose key was taken away, and ends them later: else they would receive their jobs' updates.
void ShardProcess::Loop::end_revoked(TimeNs now) {
  const auto is_over = [this](const protocol::PeerId& peer) { return !access_->may_speak(peer); };
  core_->end_sessions(
      is_over,
      {ErrorCode::kUnauthenticated, "the key of this connection is not among this shard's allowed keys any more"}, now,
      actions_);
  guard_->connections().end_later(is_over, "key_revoked", now + Access::kEndsAfterReason);
}

Status ShardProcess::Loop::run() {
  supervision_.serving();
  while (!core_->stopped()) {
    catch_out_of_memory([this] { run_pass(); });
  }
  catch_out_of_memory([this] { execute_actions(); });
  http_.reset();  // an order that it takes gets its line in the audit log
  access_->end(monotonic_now_ns());
  if (core_->failure()) return std::unexpected(*core_->failure());
  return {};
}

void ShardProcess::Loop::run_pass() {
  poller_.wait(wait_ms(monotonic_now_ns()));
  if (stop_.load() && !std::exchange(draining_, true)) {
    core_->begin_shutdown(monotonic_now_ns(), actions_);
    supervision_.draining();
  }
  if (reload_.exchange(false)) reload(monotonic_now_ns());
  if (gate_) guard_->answer(*gate_);
  if (save_.exchange(false)) core_->save_stores(monotonic_now_ns(), actions_);
  const ConnectionWatch::Inbox inbox = receive();
  receive_links();
  if (disk_) take_from_disk();
  pool_.take_done(done_);
  for (const std::shared_ptr<Task>& task : done_) {
    core_->on_task_done(task, monotonic_now_ns(), actions_);
    carry_out_many();
  }
  done_.clear();
  const TimeNs now = monotonic_now_ns();
  guard_->report_arriving([&](const auto& peer, uint64_t bytes) { core_->on_arriving(peer, bytes, now); }, now);
  if (now >= core_->next_deadline()) core_->on_tick(now, actions_);
  catch_out_of_memory([&] { watch_links(now); });
  execute_actions();
  watch(now);
  guard_->look(inbox, [this](const protocol::PeerId& peer) { return has_session(peer); }, now);
  compute();
}

void ShardProcess::Loop::take_from_disk() {
  disk_->take_done(from_disk_);
  for (StoreThread::Answer& answer : from_disk_) {
    if (!answer.note.empty()) log_.write(Severity::kWarning, answer.note, monotonic_now_ns());
    if (auto* loaded = std::get_if<Result<StoreFile>>(&answer.result)) {
      core_->on_store_loaded(answer.job, std::move(*loaded), monotonic_now_ns(), actions_);
    } else {
      core_->on_store_written(answer.job, std::get<Status>(answer.result), monotonic_now_ns(), actions_);
    }
  }
  from_disk_.clear();
}

/// Takes messages of workers and shards.
ConnectionWatch::Inbox ShardProcess::Loop::receive() {
  const TimeNs until = monotonic_now_ns() + kTimePerPass;
  for (int taken = 0; taken < kMessagesPerPass && (taken == 0 || monotonic_now_ns() < until); ++taken) {
    std::optional<protocol::Received> received;
    if (!catch_out_of_memory([&] { received = listener_->receive(); })) continue;  // the message is lost
    if (!received) return ConnectionWatch::Inbox::kDrained;
    bytes_in_ += received->bytes;
    const TimeNs now = monotonic_now_ns();
    const bool is_hello = guard_->on_message(*received, now);
    const Access::Intake intake = access_->take(*received, now);
    const bool is_told = guard_->on_intake(received->peer, intake, now);
    if (intake.refusal) {
      actions_.metrics.push_back({Metric::kRefused, {}, intake.label, 1});
      if (is_told) listener_->send(received->peer, *intake.refusal);
      continue;
    }
    if (received->message) {
      const MessageSpan span(spans_, *received->message);
      core_->on_message(received->peer, std::move(*received->message), now, actions_);
      if (is_hello && has_session(received->peer)) guard_->connections().on_session(received->peer);
    } else {
      const Error& error = received->message.error();
      core_->on_malformed(error, now, actions_);
      // A Hello that asks for what only a later build knows: silence would leave its worker waiting for a Welcome.
      if (error.code == ErrorCode::kUnsupported) {
        const protocol::Refuse refusal{.code = error.code, .sentence = error.message};
        listener_->send(received->peer, {{}, refusal, {}});
      }
    }
    carry_out_many();
  }
  return ConnectionWatch::Inbox::kNotDrained;
}

void ShardProcess::Loop::receive_links() {
  for (uint32_t shard = 0; shard < links_->shard_count(); ++shard) {
    for (int taken = 0; taken < kMessagesPerPass; ++taken) {
      std::optional<protocol::Received> received;
      if (!catch_out_of_memory([&] { received = links_->receive(shard); })) continue;
      if (!received) break;
      const TimeNs now = monotonic_now_ns();
      if (received->message) {
        const MessageSpan span(spans_, *received->message);
        core_->on_shard_reply(shard, *received->message, now, actions_);
      } else {
        core_->on_malformed(received->message.error(), now, actions_);
      }
    }
  }
}

void ShardProcess::Loop::compute() {
  const TimeNs until = monotonic_now_ns() + kTimePerPass;
  while (const std::shared_ptr<Task> task = pool_.run_one()) {
    const TimeNs now = monotonic_now_ns();
    core_->on_task_done(task, now, actions_);
    execute_actions();
    if (now >= until) return;
  }
}

void ShardProcess::Loop::watch_links(TimeNs now) {
  while (const std::optional<uint32_t> shard = links_->watch(now)) core_->on_shard_reconnected(*shard, now, actions_);
}

void ShardProcess::Loop::execute_actions() {
  const TimeNs now = monotonic_now_ns();
  for (const LogLine& line : actions_.log) catch_out_of_memory([&] { log_.write(line.severity, line.text, now); });
  for (ConnectShard& one : actions_.connects) catch_out_of_memory([&] { links_->connect(std::move(one), now); });
  for (SendToPeer& one : actions_.to_peers) {
    const SendToPeer gone_when_sent = std::move(one);
    catch_out_of_memory([&] { send_to_peer(gone_when_sent); });
  }
  for (const SendToShard& one : actions_.to_shards) {
    catch_out_of_memory([&] {
      if (!links_->send(one)) actions_.metrics.push_back({Metric::kDropped, {}, "shard_unreachable", 1});
    });
  }
  for (const DatagramChange& change : actions_.datagrams) catch_out_of_memory([&] { change_datagrams(change, now); });
  for (const AuditEvent& event : actions_.audit) catch_out_of_memory([&] { access_->record(event, now); });
  for (const MetricEvent& event : actions_.metrics) catch_out_of_memory([&] { export_.record(event); });
  // A message that was not sent is requested again. A task that was not begun is not, so that it is kept.
  catch_out_of_memory([this] { pool_.submit(actions_.tasks); });
  if (disk_) catch_out_of_memory([this] { disk_->submit(actions_.store_requests); });
  std::vector<std::shared_ptr<Task>> tasks = std::move(actions_.tasks);
  std::vector<StoreRequest> requests = std::move(actions_.store_requests);
  actions_.clear();
  actions_.tasks = std::move(tasks);
  actions_.store_requests = std::move(requests);
}

void ShardProcess::Loop::carry_out_many() {
  if (actions_.to_peers.size() >= kQueuedSendsMax) execute_actions();
}

void ShardProcess::Loop::send_to_peer(const SendToPeer& send) {
  const MessageSpan span(spans_, send.message);
  const SharedBytes envelope = SharedBytes::from(protocol::encode_envelope(send.message));
  const protocol::SendResult result = listener_->send_frames(send.to, envelope, send.message.payload);
  if (result == protocol::SendResult::kSent) {
    bytes_out_ += envelope.bytes.size() + send.message.payload.bytes.size();
    return;
  }
  // A worker asks again for missing messages; a worker that reads nothing is found silent.
  actions_.metrics.push_back(
      {Metric::kDropped, {}, result == protocol::SendResult::kWouldBlock ? "send_queue_full" : "peer_gone", 1});
}

ShardProcess::ShardProcess(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
ShardProcess::~ShardProcess() = default;

Result<std::unique_ptr<ShardProcess>> ShardProcess::start(const Options& options, const SpareWait& wait,
                                                          monitoring::ServiceNotifier manager) {
  auto access = Access::open(options.access);
  if (!access) return std::unexpected(access.error());
  auto loop = std::make_unique<Loop>(options, std::move(*access), std::move(manager));
  const Result<bool> opened = loop->open(wait);
  if (!opened) return std::unexpected(opened.error());
  return *opened ? std::unique_ptr<ShardProcess>(new ShardProcess(std::move(loop))) : nullptr;
}

const std::string& ShardProcess::address() const { return loop_->address(); }
const std::string& ShardProcess::http_address() const { return loop_->http_address(); }
std::string ShardProcess::datagrams_address() const { return loop_->datagrams_address(); }
uint64_t ShardProcess::incarnation() const { return loop_->incarnation(); }
uint32_t ShardProcess::shard() const { return loop_->shard(); }
uint32_t ShardProcess::shards() const { return loop_->shards(); }
Status ShardProcess::run() { return loop_->run(); }
void ShardProcess::request_stop() noexcept { loop_->request_stop(); }
void ShardProcess::request_save() noexcept { loop_->request_save(); }
void ShardProcess::request_reload() noexcept { loop_->request_reload(); }

}  // namespace millrace::server
