#include "millrace/millrace.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/base/log_line.h"
#include "kernels/base/result.h"
#include "monitoring/http/secure/http_security.h"
#include "monitoring/trace/trace_answer.h"
#include "worker/config/job_config.h"
#include "worker/export/worker_port.h"
#include "worker/session/device_memory.h"
#include "worker/session/initial_state.h"
#include "worker/session/session_shell.h"

/// The public interface: Results become exceptions here, and nowhere else.
namespace millrace {
namespace {

using worker::CallError;
using worker::CallResult;
using worker::CallStatus;

[[noreturn]] void raise(const CallError& error) {
  throw JobError(static_cast<JobErrorCode>(error.error.code), error.error.message, error.origin);
}

void must(const CallStatus& status) {
  if (!status) raise(status.error());
}

template <typename T>
T take(CallResult<T>&& result) {
  if (!result) raise(result.error());
  return std::move(*result);
}

SparseEntries entries_of(const Stream& stream) {
  return {{stream.indices.begin(), stream.indices.end()}, {stream.values.begin(), stream.values.end()}};
}

template <auto kOurs, auto kWire>
constexpr bool same_number() {
  return static_cast<uint16_t>(kOurs) == static_cast<uint16_t>(kWire);
}
static_assert(same_number<JobErrorCode::kInvalidArgument, ErrorCode::kInvalidArgument>());
static_assert(same_number<JobErrorCode::kShardMapMismatch, ErrorCode::kShardMapMismatch>());
static_assert(same_number<JobErrorCode::kInternal, ErrorCode::kInternal>());
static_assert(same_number<LogLevel::kDebug, Severity::kDebug>() && same_number<LogLevel::kError, Severity::kError>());

}  // namespace

class Session::Impl : public worker::SessionShell {
 public:
  using SessionShell::SessionShell;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  /// Answers first: they ask the session's thread.
  ~Impl() {
    if (port_) port_->stop();
  }

  /// Answers /trace?query.
  Result<std::string> trace(std::string_view query) {
    if (query == "phases") return work_record().phases.json();
    return monitoring::answer_trace(work_record().spans, query,
                                    {.kind = "worker", .job = job_name(), .worker = worker()});
  }

  /// Serves WorkerConfig::http. REQUIRES: before join().
  Status open_port(const JobConfig& job, const WorkerConfig& me) {
    if (me.http.empty()) return {};
    worker::WorkerPort::Source source;
    source.stats = [this] { return stats(); };
    source.unhealthy = [this]() -> std::optional<std::string> {
      const auto ended = error();
      return ended ? std::optional(ended->message) : std::nullopt;
    };
    source.trace = [this](std::string_view query) { return trace(query); };
    auto protection = monitoring::open_http_protection(
        me.http, {.tls = me.http_tls, .token_file = me.http_token_file, .insecure = me.http_insecure},
        monitoring::HttpOptionNames::kFields);
    if (!protection) return std::unexpected(protection.error());
    auto port = worker::WorkerPort::start(me.http, "WorkerConfig::http", {job.name, me.worker, job.workers},
                                          std::move(source), std::move(*protection));
    if (!port) return std::unexpected(port.error());
    port_ = std::move(*port);
    watch_steps([at = port_](double seconds) { at->step_done(seconds); });  // the thread outlives ~Impl()
    return {};
  }

  uint16_t http_port() const { return port_ ? port_->port() : uint16_t{0}; }

 private:
  std::shared_ptr<worker::WorkerPort> port_;
};

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::~Session() = default;

std::unique_ptr<Session> Session::connect(const JobConfig& job, const WorkerConfig& me,
                                          const std::vector<TensorOptions>& tensors) {
  // Errors before a server is asked have their cause in this worker, as a plain Error says.
  const auto own = take<WorkerConfig>(worker::with_tcp_addresses(me));
  auto spec = take<protocol::JobSpec>(worker::job_spec_of(job, own, tensors));
  auto initial_state = take<worker::InitialState>(worker::load_initial_state(own, tensors, spec));
  auto impl = std::make_unique<Impl>(own, std::move(spec), std::move(initial_state));
  must(impl->open_port(job, own));
  must(impl->join());
  return std::unique_ptr<Session>(new Session(std::move(impl)));
}

void Session::check(const JobConfig& job, const WorkerConfig& me, const std::vector<TensorOptions>& tensors) {
  const auto own = take<WorkerConfig>(worker::with_tcp_addresses(me));
  const auto spec = take<protocol::JobSpec>(worker::job_spec_of(job, own, tensors));
  must(worker::check_weights(tensors, spec.mode));
}

namespace {

using std::chrono::milliseconds;
using worker::IdleTensor;
using worker::PushSlot;
using worker::SessionShell;

std::optional<uint64_t> push_dense(SessionShell& shell, size_t tensor, std::span<const float> gradient, double weight,
                                   milliseconds timeout) {
  return take(shell.push(tensor, weight, timeout,
                         [&](PushSlot& slot) { return slot.add_dense(gradient, static_cast<float>(weight)); }));
}

std::optional<uint64_t> push_entries(SessionShell& shell, size_t tensor, std::span<const uint32_t> indices,
                                     std::span<const float> values, double weight, milliseconds timeout) {
  return take(shell.push(tensor, weight, timeout,
                         [&](PushSlot& slot) { return slot.add_sparse(indices, values, static_cast<float>(weight)); }));
}

std::optional<uint64_t> push_on_device(SessionShell& shell, size_t tensor, const DeviceSpan& gradient, double weight,
                                       milliseconds timeout) {
  const auto device = worker::device_of_memory(gradient.pointer, gradient.device);
  // Before the slot is taken: in stats() and save() the session's thread waits for slots that are being filled.
  if (device) must(shell.await_callers_work(tensor, [&] { return worker::await_stream(*device, gradient.stream); }));
  return take(shell.push(tensor, weight, timeout, [&](PushSlot& slot) -> Status {
    if (auto possible = slot.takes_device(); !possible) return possible;
    if (!device) return std::unexpected(device.error());
    return slot.add_device({gradient.pointer, gradient.count, *device}, static_cast<float>(weight),
                           [&](const SelectionSpec& spec, uint64_t dimension) {
                             return shell.devices().make_residual(*device, spec, dimension);
                           });
  }));
}

std::optional<PulledSteps> pull_whole(SessionShell& shell, size_t tensor, std::span<float> out,
                                      const PullOptions& options) {
  if (tensor < shell.tensor_count() && out.size() != shell.dimension_of(tensor)) {
    raise(Error{ErrorCode::kInvalidArgument, std::to_string(out.size()) + " places for a tensor of dimension " +
                                                 std::to_string(shell.dimension_of(tensor))});
  }
  return take(shell.pull(tensor, 0, out, options));
}

/// Throws the timeout error of the calls without try_. what: the event that did not happen in time.
[[noreturn]] void raise_timeout(const SessionShell& shell, const std::string& what, milliseconds timeout) {
  // Without a limit a wait ends where it was given up.
  const std::string limit = timeout == milliseconds::max() ? "" : " within " + std::to_string(timeout.count()) + " ms";
  raise({{ErrorCode::kTimeout, what + limit + ": " + shell.status().waiting_for}, JobErrorOrigin::kJob});
}

template <typename T>
T in_time(std::optional<T>&& result, const SessionShell& shell, const std::string& what, milliseconds timeout) {
  if (!result) raise_timeout(shell, what, timeout);
  return std::move(*result);
}

constexpr const char* kNoPush = "the next step could not be pushed";
constexpr const char* kNoWeights = "the weights were not there";

}  // namespace

size_t Session::tensor(std::string_view name) const { return take(impl_->tensor(name)); }

uint64_t Session::push(size_t tensor, std::span<const float> gradient, double weight, milliseconds timeout) {
  return in_time(push_dense(*impl_, tensor, gradient, weight, timeout), *impl_, kNoPush, timeout);
}

uint64_t Session::push(size_t tensor, const DeviceSpan& gradient, double weight, milliseconds timeout) {
  return in_time(push_on_device(*impl_, tensor, gradient, weight, timeout), *impl_, kNoPush, timeout);
}

std::optional<uint64_t> Session::try_push(size_t tensor, const DeviceSpan& gradient, double weight,
                                          milliseconds timeout) {
  return push_on_device(*impl_, tensor, gradient, weight, timeout);
}

uint64_t Session::push_sparse(size_t tensor, std::span<const uint32_t> indices, std::span<const float> values,
                              double weight, milliseconds timeout) {
  return in_time(push_entries(*impl_, tensor, indices, values, weight, timeout), *impl_, kNoPush, timeout);
}

std::optional<uint64_t> Session::try_push(size_t tensor, std::span<const float> gradient, double weight,
                                          milliseconds timeout) {
  return push_dense(*impl_, tensor, gradient, weight, timeout);
}

std::optional<uint64_t> Session::try_push_sparse(size_t tensor, std::span<const uint32_t> indices,
                                                 std::span<const float> values, double weight, milliseconds timeout) {
  return push_entries(*impl_, tensor, indices, values, weight, timeout);
}

uint64_t Session::push_rows(size_t tensor, uint32_t width, std::span<const uint32_t> rows,
                            std::span<const float> values, double weight, milliseconds timeout) {
  return in_time(try_push_rows(tensor, width, rows, values, weight, timeout), *impl_, kNoPush, timeout);
}

std::optional<uint64_t> Session::try_push_rows(size_t tensor, uint32_t width, std::span<const uint32_t> rows,
                                               std::span<const float> values, double weight, milliseconds timeout) {
  return take(impl_->push(tensor, weight, timeout, [&](PushSlot& slot) {
    return slot.add_rows(width, rows, values, static_cast<float>(weight));
  }));
}

bool Session::ready(size_t tensor, uint64_t step) { return take(impl_->ready(tensor, step)); }

TensorUpdate Session::await(size_t tensor, uint64_t step, milliseconds timeout) {
  return in_time(try_await(tensor, step, timeout), *impl_, "no update of step " + std::to_string(step), timeout);
}

std::optional<TensorUpdate> Session::try_await(size_t tensor, uint64_t step, milliseconds timeout) {
  return take(impl_->await(tensor, step, timeout));
}

void Session::attach_weights(size_t tensor, std::span<float> weights, float scale, ApplyWhen when) {
  must(impl_->attach_weights(tensor, weights, scale, when));
}

void Session::attach_weights(size_t tensor, const DeviceArray& weights, float scale) {
  must(impl_->attach_device_weights(tensor, weights.count, scale,
                                    [&] { return impl_->devices().make_weights(weights); }));
}

void Session::set_scale(size_t tensor, float scale) { must(impl_->set_scale(tensor, scale)); }

uint64_t Session::steps_applied(size_t tensor) { return take(impl_->steps_applied(tensor)); }
SessionStatus Session::status() const { return impl_->status(); }

SparseEntries Session::take_residual(size_t tensor) { return entries_of(take(impl_->take_residual(tensor))); }
SparseEntries Session::take_velocity(size_t tensor) {
  Stream taken;
  must(impl_->while_idle(tensor, [&](const IdleTensor& idle) -> Status {
    taken = idle.take_velocity();
    return {};
  }));
  return entries_of(taken);
}
void Session::restore(size_t tensor, const SparseEntries& residual, const SparseEntries& velocity) {
  must(impl_->restore(tensor, residual, velocity));
}
std::vector<uint64_t> Session::retained(size_t tensor) {
  std::vector<uint64_t> numbers;
  must(impl_->while_idle(tensor, [&](const IdleTensor& idle) -> Status {
    numbers = idle.retained();
    return {};
  }));
  return numbers;
}
bool Session::restore_retained(size_t tensor, std::span<const uint64_t> numbers) {
  bool fits = false;
  must(impl_->while_idle(tensor, [&](const IdleTensor& idle) -> Status {
    const Result<bool> restored = idle.restore_retained(numbers);
    if (!restored) return std::unexpected(restored.error());
    fits = *restored;
    return {};
  }));
  return fits;
}

PulledSteps Session::pull(size_t tensor, std::span<float> out, const PullOptions& options) {
  return in_time(pull_whole(*impl_, tensor, out, options), *impl_, kNoWeights, options.timeout);
}

PulledSteps Session::pull_range(size_t tensor, uint64_t begin, std::span<float> out, const PullOptions& options) {
  return in_time(try_pull_range(tensor, begin, out, options), *impl_, kNoWeights, options.timeout);
}

PulledSteps Session::pull_indices(size_t tensor, std::span<const uint32_t> indices, std::span<float> out,
                                  const PullOptions& options) {
  return in_time(try_pull_indices(tensor, indices, out, options), *impl_, kNoWeights, options.timeout);
}

PulledSteps Session::pull_rows(size_t tensor, uint32_t width, std::span<const uint32_t> rows, std::span<float> out,
                               const PullOptions& options) {
  return in_time(try_pull_rows(tensor, width, rows, out, options), *impl_, kNoWeights, options.timeout);
}

std::optional<PulledSteps> Session::try_pull(size_t tensor, std::span<float> out, const PullOptions& options) {
  return pull_whole(*impl_, tensor, out, options);
}

std::optional<PulledSteps> Session::try_pull_range(size_t tensor, uint64_t begin, std::span<float> out,
                                                   const PullOptions& options) {
  return take(impl_->pull(tensor, begin, out, options));
}

std::optional<PulledSteps> Session::try_pull_indices(size_t tensor, std::span<const uint32_t> indices,
                                                     std::span<float> out, const PullOptions& options) {
  return take(impl_->pull_rows(tensor, 1, indices, out, options));
}

std::optional<PulledSteps> Session::try_pull_rows(size_t tensor, uint32_t width, std::span<const uint32_t> rows,
                                                  std::span<float> out, const PullOptions& options) {
  return take(impl_->pull_rows(tensor, width, rows, out, options));
}

void Session::place_weights(std::span<const std::span<const float>> weights, milliseconds timeout) {
  if (!try_place_weights(weights, timeout)) raise_timeout(*impl_, "the store has no first weights", timeout);
}

bool Session::try_place_weights(std::span<const std::span<const float>> weights, milliseconds timeout) {
  return take(impl_->place_weights(weights, timeout));
}

uint16_t Session::http_port() const { return impl_->http_port(); }

std::string Session::trace(std::string_view query) {
  Result<std::string> answer = impl_->trace(query);
  if (!answer) raise(answer.error());
  return std::move(*answer);
}

Stats Session::stats() { return impl_->stats(); }
void Session::save(const std::string& path) { must(impl_->save(path)); }

void Session::finish(milliseconds timeout) {
  if (!try_finish(timeout)) raise_timeout(*impl_, "the job has not answered everything", timeout);
}

bool Session::try_finish(milliseconds timeout) { return take(impl_->finish(timeout)); }

}  // namespace millrace
