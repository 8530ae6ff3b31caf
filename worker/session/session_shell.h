#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <expected>
#include <functional>
#include <limits>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "millrace/millrace.h"
#include "monitoring/trace/span_recorder.h"
#include "protocol/transport/transport.h"
#include "worker/core/session_core.h"
#include "worker/core/store_client.h"
#include "worker/session/attached_weights.h"
#include "worker/session/device_memory.h"
#include "worker/session/initial_state.h"
#include "worker/session/phase_times.h"
#include "worker/session/switch_socket.h"
#include "worker/session/update_assembler.h"
#include "worker/session/weight_runs.h"
#include "worker/switch/named_peers.h"

namespace millrace::worker {

/// Holds an error of a call, and the origin of its cause. A plain Error is this worker's own: the call's arguments, or
/// lack of memory.
struct CallError {
  // NOLINTNEXTLINE(google-explicit-constructor): what checks a call's arguments returns a plain Error
  CallError(Error own, JobErrorOrigin from = JobErrorOrigin::kWorker) : error(std::move(own)), origin(from) {}

  Error error;
  JobErrorOrigin origin;
};
template <typename T>
using CallResult = std::expected<T, CallError>;
using CallStatus = CallResult<void>;

/// Holds the state of a blocked pull() call; lives on the caller's stack.
struct PullCall {
  size_t left = 0;  ///< pieces; with the next two the session thread's, under the session's mutex
  PulledSteps steps;
  std::optional<Error> error;
};

/// Runs one SessionCore: owns its thread, sockets and clock. The public Session translates its results into exceptions.
///
/// Three kinds of state. The core and the connections belong to the session thread. The board (steps, phase, updates)
/// is shared under mutex_. A slot belongs to the caller that fills it. Callers never wait for the core: they read the
/// board, fill their slot and leave a command. While a thread holds mutex_, it computes nothing, takes no other lock
/// and calls no callback. Attached weights have locks of their own.
class SessionShell {
 public:
  SessionShell(const WorkerConfig& options, protocol::JobSpec spec, InitialState initial_state);
  ~SessionShell();

  /// Calls `watch` on the session thread with the seconds of every step of a bucket that completes. REQUIRES: before
  /// join().
  void watch_steps(std::function<void(double seconds)> watch) { watch_step_ = std::move(watch); }
  /// Holds the spans and the phases of the work of a session.
  struct WorkRecord {
    monitoring::SpanRecorder spans;
    PhaseTimes phases;
  };
  WorkRecord& work_record() { return record_; }
  /// Starts the thread and waits until the job runs, and this worker takes part in it.
  CallStatus join();

  // A call with a time limit returns empty or false when the limit passes; a limit of 0 or less does not wait. The
  // caller may repeat the call: it has taken nothing from the caller. A pull may have written part of `out`, and the
  // shards may have some of the weights of place_weights(). After finish() nothing can be pushed, also when its limit
  // passed.
  /// Fills the slot of the tensor's next step by `fill` and hands it over, once the step may be pushed.
  using Fill = std::function<Status(PushSlot&)>;
  CallResult<std::optional<uint64_t>> push(size_t tensor, double weight, std::chrono::milliseconds timeout,
                                           const Fill& fill);

  CallResult<bool> ready(size_t tensor, uint64_t step);
  CallResult<std::optional<TensorUpdate>> await(size_t tensor, uint64_t step, std::chrono::milliseconds timeout);
  CallStatus attach_weights(size_t tensor, std::span<float> weights, float scale, ApplyWhen when);
  using MakeDeviceWeights = std::function<Result<std::unique_ptr<DeviceWeights>>()>;
  CallStatus attach_device_weights(size_t tensor, size_t count, float scale, const MakeDeviceWeights& make);
  CallStatus set_scale(size_t tensor, float scale);
  CallResult<uint64_t> steps_applied(size_t tensor);
  SessionStatus status() const;
  /// Returns the error that the session has ended with.
  std::optional<Error> error() const;
  /// Calls `body` on the session's thread while no caller fills a slot of the tensor's bucket.
  ///
  /// Errors  invalid_argument: a push has not reached the core yet, or a step is in flight. Those of `body`.
  CallStatus while_idle(size_t tensor, const std::function<Status(const IdleTensor&)>& body);
  CallResult<Stream> take_residual(size_t tensor);
  CallStatus restore(size_t tensor, const SparseEntries& residual, const SparseEntries& velocity);
  Stats stats();
  CallStatus save(const std::string& path);
  CallResult<bool> finish(std::chrono::milliseconds timeout);

  // session_shell_store.cc: weights that the shards hold
  /// Reads the tensor's weights from `begin` on, as many as `out` has; or those of rows (kernels/stream/rows.h).
  CallResult<std::optional<PulledSteps>> pull(size_t tensor, uint64_t begin, std::span<float> out,
                                              const PullOptions& options);
  CallResult<std::optional<PulledSteps>> pull_rows(size_t tensor, uint32_t width, std::span<const uint32_t> rows,
                                                   std::span<float> out, const PullOptions& options);
  CallResult<bool> place_weights(std::span<const std::span<const float>> weights, std::chrono::milliseconds timeout);

  /// Errors  invalid_argument: no tensor has the name.
  CallResult<size_t> tensor(std::string_view name) const;
  DevicePools& devices() { return devices_; }
  /// Waits by `await` for the caller's work with an array of the tensor. It does so on the caller's thread: the
  /// session's thread must send heartbeats.
  ///
  /// Errors  those of `await`. internal: the device has failed, and the session ends.
  CallStatus await_callers_work(size_t tensor, const std::function<Status()>& await);
  size_t tensor_count() const { return gates_.size(); }
  const std::string& job_name() const { return core_.spec().name; }
  uint32_t worker() const { return options_.worker; }
  uint64_t dimension_of(size_t tensor) const { return core_.spec().tensors[tensor].dimension; }

 private:
  /// Holds the state that a caller needs to push a tensor.
  struct Gate {
    uint32_t bucket = 0;
    PushSlot* slot = nullptr;
    uint64_t steps_pushed = 0;   ///< by callers; the core's count follows
    uint64_t steps_allowed = 0;  ///< the core's, as last published
    bool filling = false;
    bool weights_given = false;  ///< to connect()
    float weight = 1;            ///< of the last step pushed or being filled
  };

  using Command = std::function<void()>;  ///< runs on the session thread, without the lock
  /// Holds commands in a list, so that splice() can hand over a prepared one without an allocation.
  using Commands = std::list<Command>;
  /// Runs a command on the session thread. The constructor takes all memory for it: run() allocates nothing.
  class Errand {
   public:
    Errand(SessionShell& shell, Command command);
    Errand(const Errand&) = delete;
    Errand& operator=(const Errand&) = delete;
    /// Blocks until the command has run, and throws the exception that it threw. REQUIRES: called at most once.
    void run();

   private:
    SessionShell& shell_;
    Commands prepared_;
    bool done_ = false;  ///< with the next one under mutex_
    std::exception_ptr thrown_;
  };

  // session_shell_callers.cc: any thread
  /// Ends the session, since the tensor's weights could not take an update, or its device failed. Returns the error
  /// that the session ended with: an earlier one, if there was one.
  std::unexpected<CallError> end_by_tensor(size_t tensor, const Error& why);
  /// Adds the answers of all pushes up to that one to the tensor's weights; without one, what else waits for a call.
  CallStatus bring_up(size_t tensor, std::optional<uint64_t> push);
  /// Waits for the caller's work with weights on devices, which save() copies.
  CallStatus await_work_with_weights();
  Status check_tensor(size_t tensor) const;
  Status check_weight(const Gate& gate, double weight) const;
  Status check_not_given(size_t tensor) const;
  CallStatus attach(size_t tensor, size_t count, AttachedWeights::Target&& target);
  using Moment = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::milliseconds kAskEvery{100};  ///< between two calls of give_up
  /// Returns when a wait of `timeout` that begins now ends; never, if the clock cannot represent that time.
  static Moment deadline_of(std::chrono::milliseconds timeout);
  /// Waits until the gate is open. REQUIRES: lock held. Returns false if the gate is still closed at the deadline.
  CallResult<bool> pass_gate(Gate& gate, Moment deadline, std::unique_lock<std::mutex>& lock);
  /// Hands a prepared command to the session thread, without an allocation.
  void post(Commands&& prepared);
  /// Runs `command` on the session thread and waits for it.
  void run_there(const Command& command) { Errand(*this, command).run(); }
  /// Waits until callers see the session's end. REQUIRES: fail_by_own() was called, and the lock is not held.
  void await_end();

  // session_shell_thread.cc: the session thread
  void run();
  /// Ends the session by an error whose cause is in this worker.
  void fail_by_own(Error why);
  void say_goodbye_after_failure();
  void stop_polling();
  void drop_connections();
  /// Does so where a device that has a tensor's residual has failed: the residual is lost. Returns that error.
  Status fail_by_devices();
  /// Returns a call's error from the core's answer: the session's end, or an error of the call itself.
  CallError answer_of(Error answer) const;
  Error of_tensor(size_t tensor, const Error& why) const;
  void serve();
  /// Lets the core do one piece of work.
  bool work();
  void take_commands();
  void receive(uint32_t shard);
  void watch(uint32_t shard);
  /// Tells the core and the pulls which connections carry bytes.
  void look_at_progress(TimeNs now);
  /// Receives the datagrams that are there (path switch).
  void receive_datagrams();
  /// Looks up the name of a silent peer again (path switch): it may have other addresses now.
  void look_up_peers(TimeNs now);
  void execute_actions();
  void deliver(DeliveredUpdate&& delivered);
  /// Passes the core's log positions to the weights: before the first arrival, and where it continues from a saved
  /// state.
  void say_positions();
  /// Sends each shard a run of the weights that it asked for, where its queue is short. Returns false if none was sent.
  bool give_weights();
  bool give_run(uint32_t shard);
  /// Returns the part's weights at the core's position.
  Result<Buffer<float>> weights_of(uint32_t part);
  Status copy_weights(size_t tensor, const UpdateShelf::Run& run, std::span<float> out);
  void connect_now(uint32_t shard);
  void send_now(SendAction&& send);
  void flush_backlog(uint32_t shard);
  void publish();
  void save_at_end();
  void audit_at_end();
  void wait();
  bool datagrams_follow() const;
  bool has_backlog() const;
  /// Returns the bytes that wait to be sent to the shard. UINT64_MAX: its socket takes no more.
  uint64_t queued_bytes(uint32_t shard) const;
  /// Says whether a queue is over the length up to which first weights are sent behind it.
  bool has_long_queue() const;
  int wait_ms() const;
  /// Prevents fills of every slot during its lifetime: the constructor waits for fills under way, and new fills wait
  /// for its end. REQUIRES: constructed without the lock.
  class PushBarrier {
   public:
    explicit PushBarrier(SessionShell& shell);
    ~PushBarrier();
    PushBarrier(const PushBarrier&) = delete;
    PushBarrier& operator=(const PushBarrier&) = delete;

   private:
    SessionShell& shell_;
  };
  Result<ByteBuffer> state_bytes();
  Stats collect_stats();
  void say(Severity severity, const std::string& text);

  // session_shell_store.cc
  class RecurringPull;
  Status check_store(size_t tensor) const;
  CallResult<std::optional<PulledSteps>> carry_out_pull(std::vector<StoreClient::Request>&& pieces,
                                                        const PullOptions& options);
  void ask_stores(TimeNs now);
  void take_pulled();
  StoreClient::Reach reach() const;

  struct ShardConnection {
    std::unique_ptr<protocol::Connection> connection;
    std::unique_ptr<protocol::Connection> other;  ///< to the shard's other address, until a Welcome
    protocol::ConnectionState seen = protocol::ConnectionState::kDisconnected;
    std::deque<protocol::Message> backlog;  ///< the socket's queue is full
    WeightRuns weights;
  };

  WorkerConfig options_;
  DevicePools devices_;
  std::function<void(double seconds)> watch_step_;
  WorkRecord record_;
  std::unique_ptr<SwitchUdpPort> datagrams_;  ///< path switch
  std::unique_ptr<NamedPeers> peers_;         ///< ... before the core, which sends by them
  SessionCore core_;
  protocol::TransportContext context_;  ///< before the connections: it outlives them
  std::vector<ShardConnection> wires_;
  protocol::Waker waker_;
  protocol::Poller poller_;
  Actions actions_;
  StoreClient store_;
  std::vector<StoreClient::Done> pulled_;
  uint64_t bytes_up_ = 0;
  uint64_t bytes_down_ = 0;
  uint64_t published_changes_ = ~uint64_t{0};
  TimeNs next_text_ = 0;
  bool text_is_old_ = false;  ///< the last pass wrote none: the thread wakes for it, since a push alone changes it
  /// Holds a lookup of a peer's name.
  struct PeerLookup {
    protocol::HostPort at;
    std::string name;
    std::unique_ptr<protocol::HostLookup> lookup;
  };
  std::optional<PeerLookup> peer_lookup_;
  TimeNs next_peer_lookup_ = 0;
  TimeNs shards_looked_at_ = 0;
  TimeNs progress_looked_at_ = 0;
  TimeNs datagrams_came_at_ = std::numeric_limits<TimeNs>::min() / 2;
  bool waited_for_datagrams_ = false;                 ///< and for nothing else: the shards need not be looked at
  bool updates_complete_ = false;                     ///< a caller may wait for them
  JobErrorOrigin end_origin_ = JobErrorOrigin::kJob;  ///< of core_.error()
  bool saved_at_end_ = false;
  bool stop_ = false;
  bool audited_at_end_ = false;

  std::vector<AttachedWeights> weights_;  ///< by tensor

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Gate> gates_;
  Commands commands_;
  UpdateShelf shelf_;
  Phase phase_ = Phase::kJoining;
  bool finish_asked_ = false;  ///< of the core, which may be returning: its phase does not say it
  bool is_waited_for_ = false;
  uint64_t returns_ = 0;
  double audit_imbalance_ = 0;
  uint32_t workers_missing_ = 0;
  std::optional<CallError> error_;
  std::string waiting_for_;
  uint32_t fills_ = 0;  ///< slots being filled now
  bool fills_blocked_ = false;
  double blocked_s_ = 0;

  Commands farewell_;   ///< ends the thread; prepared, since a destructor must not allocate
  std::thread thread_;  ///< last: it uses all of the above
};

}  // namespace millrace::worker
