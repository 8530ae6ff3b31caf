#include <algorithm>
#include <cmath>
#include <exception>
#include <new>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "protocol/container/codec_speeds.h"
#include "protocol/files/atomic_file.h"
#include "worker/session/session_shell.h"

/// What callers' threads do: they read the board, fill slots, leave commands and wait.
namespace millrace::worker {

CallResult<size_t> SessionShell::tensor(std::string_view name) const {
  const std::vector<protocol::TensorSpec>& tensors = core_.spec().tensors;
  const auto at = std::ranges::find(tensors, name, &protocol::TensorSpec::name);
  if (at != tensors.end()) return static_cast<size_t>(at - tensors.begin());
  return std::unexpected(CallError({ErrorCode::kInvalidArgument, "the job has no tensor '" + std::string(name) + "'"}));
}

Status SessionShell::check_tensor(size_t tensor) const {
  if (tensor < gates_.size()) return {};
  return fail(ErrorCode::kInvalidArgument,
              "tensor " + std::to_string(tensor) + " of a job with " + std::to_string(gates_.size()) + " tensors");
}

void SessionShell::post(Commands&& prepared) {
  {
    const std::lock_guard lock(mutex_);
    commands_.splice(commands_.end(), prepared);
  }
  waker_.wake();
}

SessionShell::Errand::Errand(SessionShell& shell, Command command) : shell_(shell) {
  prepared_.emplace_back([this, command = std::move(command)] {
    // An exception of the command (no memory) is its caller's. It must neither end the session nor leave the caller
    // waiting.
    std::exception_ptr thrown;
    try {
      command();
    } catch (...) {
      thrown = std::current_exception();
    }
    const std::lock_guard lock(shell_.mutex_);
    thrown_ = std::move(thrown);
    done_ = true;
    shell_.changed_.notify_all();
  });
}

void SessionShell::Errand::run() {
  shell_.post(std::move(prepared_));
  std::unique_lock lock(shell_.mutex_);
  shell_.changed_.wait(lock, [&] { return done_; });
  if (thrown_) std::rethrow_exception(thrown_);
}

std::unexpected<CallError> SessionShell::end_by_tensor(size_t tensor, const Error& why) {
  CallError error = of_tensor(tensor, why);
  run_there([&] { fail_by_own(error.error); });
  await_end();
  const std::lock_guard lock(mutex_);
  return std::unexpected(error_ ? *error_ : std::move(error));
}

CallStatus SessionShell::await_callers_work(size_t tensor, const std::function<Status()>& await) {
  if (auto valid = check_tensor(tensor); !valid) return std::unexpected(valid.error());
  const Status waited = await();
  if (waited) return {};
  // The residual on the device is lost with the caller's work.
  if (waited.error().code == ErrorCode::kInternal) return end_by_tensor(tensor, waited.error());
  return std::unexpected(waited.error());
}

CallStatus SessionShell::bring_up(size_t tensor, std::optional<uint64_t> push) {
  AttachedWeights& weights = weights_[tensor];
  if (const auto there = weights.due_on_device(push)) {
    if (auto waited = await_callers_work(tensor, [&] { return there->await_callers_work(); }); !waited) return waited;
  }
  if (auto done = push ? weights.catch_up(*push) : weights.take_over(); !done) {
    return end_by_tensor(tensor, done.error());
  }
  return {};
}

CallStatus SessionShell::await_work_with_weights() {
  for (size_t tensor = 0; tensor < weights_.size(); ++tensor) {
    const auto there = weights_[tensor].on_device();
    if (!there) continue;
    if (auto waited = await_callers_work(tensor, [&] { return there->await_callers_work(); }); !waited) return waited;
  }
  return {};
}

void SessionShell::await_end() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return phase_ == Phase::kFinished || error_; });
}

CallStatus SessionShell::join() {
  thread_ = std::thread([this] { run(); });
  // Measured here, and not when the first step is coded: on a busy machine it takes ten seconds. During that time the
  // session's thread would send nothing to the shards. It joins the job meanwhile.
  if (std::ranges::any_of(core_.layout().buckets, [](const auto& bucket) { return bucket.codec_up.automatic; }))
    (void)measured_speeds();
  std::unique_lock lock(mutex_);
  // Reaching the shards ends by itself, in an error after connect_timeout, and so does a return that comes to
  // nothing.
  const auto ended = [&] {
    const bool outside = phase_ == Phase::kJoining || phase_ == Phase::kWaiting || phase_ == Phase::kRejoining;
    return error_ || (!outside && is_waited_for_);
  };
  TimeNs waits_until = 0;  // for the other workers; 0: it does not
  while (!changed_.wait_for(lock, kAskEvery, ended)) {
    lock.unlock();
    const bool given_up = options_.give_up && options_.give_up();
    lock.lock();
    const auto not_started = [](std::string why) {
      return std::unexpected(CallError({ErrorCode::kTimeout, std::move(why)}, JobErrorOrigin::kJob));
    };
    if (given_up) return not_started("given up while waiting for the job to start");
    if (phase_ != Phase::kWaiting) {
      waits_until = 0;
      continue;
    }
    const TimeNs now = monotonic_now_ns();
    if (waits_until == 0) waits_until = now + TimeNs{options_.start_timeout.count()} * kNsPerMs;
    if (now < waits_until) continue;
    return not_started("job '" + core_.spec().name + "' has not started within " +
                       std::to_string(options_.start_timeout.count()) + " ms: " + waiting_for_);
  }
  if (error_) return std::unexpected(*error_);
  lock.unlock();
  run_there([this] { say_positions(); });
  for (size_t tensor = 0; tensor < weights_.size(); ++tensor) {
    if (auto caught_up = weights_[tensor].catch_up_whole(); !caught_up) return end_by_tensor(tensor, caught_up.error());
  }
  return {};
}

Status SessionShell::check_weight(const Gate& gate, double weight) const {
  const float narrow = static_cast<float>(weight);
  if (!std::isfinite(narrow) || narrow <= 0) {
    return fail(ErrorCode::kInvalidArgument, "a weight must be finite and positive");
  }
  if (narrow != 1 && core_.spec().combine != protocol::Combine::kWeightedMean) {
    return fail(ErrorCode::kInvalidArgument, "a weight other than 1 needs combine = weighted_mean");
  }
  for (const Gate& other : gates_) {
    if (&other == &gate || other.bucket != gate.bucket) continue;
    const uint64_t taken = other.steps_pushed + (other.filling ? 1 : 0);
    if (taken == gate.steps_pushed + 1 && other.weight != narrow) {
      return fail(ErrorCode::kInvalidArgument,
                  "tensors that are fused into one bucket must be pushed with one weight a step");
    }
  }
  return {};
}

SessionShell::Moment SessionShell::deadline_of(std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kForEver = std::chrono::hours(24 * 365 * 10);
  return std::chrono::steady_clock::now() + std::clamp(timeout, std::chrono::milliseconds(0), kForEver);
}

CallResult<bool> SessionShell::pass_gate(Gate& gate, Moment deadline, std::unique_lock<std::mutex>& lock) {
  const auto open = [&] { return gate.steps_pushed < gate.steps_allowed && !fills_blocked_; };
  const auto neighbour_is_behind = [&] {
    return std::ranges::any_of(gates_, [&](const Gate& other) {
      return other.bucket == gate.bucket && other.steps_pushed + (other.filling ? 1 : 0) < gate.steps_pushed;
    });
  };
  const TimeNs since = monotonic_now_ns();
  bool in_time = true;
  for (;;) {
    if (error_) return std::unexpected(*error_);
    if (finish_asked_ || phase_ == Phase::kFinishing || phase_ == Phase::kFinished) {
      return fail(ErrorCode::kInvalidArgument, "the session is finished: nothing can be pushed any more");
    }
    // Also after waiting: of two that wait here one goes first.
    if (gate.filling) return fail(ErrorCode::kInvalidArgument, "another thread is pushing this tensor");
    if (open()) break;
    if (neighbour_is_behind()) {
      return fail(ErrorCode::kInvalidArgument,
                  "this tensor was pushed for the step already, and tensors that travel with it "
                  "(fuse_below) were not");
    }
    in_time = std::chrono::steady_clock::now() < deadline;
    if (!in_time) break;
    changed_.wait_until(lock, deadline);
  }
  blocked_s_ += static_cast<double>(monotonic_now_ns() - since) * 1e-9;
  return in_time;
}

CallResult<std::optional<uint64_t>> SessionShell::push(size_t tensor, double weight, std::chrono::milliseconds timeout,
                                                       const Fill& fill) {
  const Moment deadline = deadline_of(timeout);
  if (auto valid = check_tensor(tensor); !valid) return std::unexpected(valid.error());
  if (auto taken = bring_up(tensor, std::nullopt); !taken) return std::unexpected(taken.error());
  // Before the gradient is taken: from the end of the fill until the session thread knows of it nothing is allocated.
  Commands handover;
  handover.emplace_back([this, tensor] {
    const auto committed = core_.commit_push(static_cast<uint32_t>(tensor), monotonic_now_ns());
    MILLRACE_CHECK(committed.has_value(), tensor);
  });
  std::unique_lock lock(mutex_);
  Gate& gate = gates_[tensor];
  const auto passed = pass_gate(gate, deadline, lock);
  if (!passed) return std::unexpected(passed.error());
  if (!*passed) return std::optional<uint64_t>();
  if (auto valid = check_weight(gate, weight); !valid) return std::unexpected(valid.error());
  const size_t queued_max = size_t{core_.spec().staleness} + options_.updates_kept_max;
  if (shelf_.kept(tensor) >= queued_max) {
    return fail(ErrorCode::kLimitExceeded, std::to_string(queued_max) +
                                               " updates of the tensor wait to be awaited: await them, "
                                               "attach weights, or raise updates_kept_max");
  }
  gate.filling = true;
  gate.weight = static_cast<float>(weight);
  ++fills_;
  lock.unlock();
  monitoring::SpanTimer timer(record_.spans);
  std::optional<Status> filled;  // empty: no memory
  try {
    filled = fill(*gate.slot);
  } catch (const std::bad_alloc&) {
    filled.reset();
  }
  Status device;  // while the slot is this call's
  if (filled && !*filled) device = gate.slot->device_status();
  lock.lock();
  gate.filling = false;
  --fills_;
  if (!filled || !*filled) {
    changed_.notify_all();
    if (!device) {
      lock.unlock();
      return end_by_tensor(tensor, device.error());
    }
    if (filled) return std::unexpected(std::move(filled->error()));
    return fail(ErrorCode::kLimitExceeded, "not enough memory for a gradient of tensor '" +
                                               core_.spec().tensors[tensor].name + "'; nothing of it was taken");
  }
  const uint64_t step = gate.steps_pushed++;
  commands_.splice(commands_.end(), handover);
  const bool somebody_waits = fills_blocked_ || finish_asked_;
  lock.unlock();
  waker_.wake();
  if (somebody_waits) changed_.notify_all();
  timer.end({.step = step,
             .unit = static_cast<uint32_t>(tensor),
             .name = monitoring::SpanName::kPush,
             .unit_kind = monitoring::SpanUnit::kTensor});
  return std::optional<uint64_t>(step);
}

CallResult<bool> SessionShell::ready(size_t tensor, uint64_t step) {
  if (auto valid = check_tensor(tensor); !valid) return std::unexpected(valid.error());
  const std::lock_guard lock(mutex_);
  if (shelf_.complete(tensor, step)) return true;
  if (error_) return std::unexpected(*error_);
  return shelf_.handed_out(tensor, step);
}

CallResult<std::optional<TensorUpdate>> SessionShell::await(size_t tensor, uint64_t step,
                                                            std::chrono::milliseconds timeout) {
  if (auto valid = check_tensor(tensor); !valid) return std::unexpected(valid.error());
  std::unique_lock lock(mutex_);
  if (step >= gates_[tensor].steps_pushed) {
    return fail(ErrorCode::kInvalidArgument, "step " + std::to_string(step) + " was not pushed");
  }
  const auto arrived = [&] { return shelf_.complete(tensor, step) || shelf_.handed_out(tensor, step); };
  const TimeNs since = monotonic_now_ns();
  const bool in_time = changed_.wait_until(lock, deadline_of(timeout), [&] { return arrived() || error_; });
  blocked_s_ += static_cast<double>(monotonic_now_ns() - since) * 1e-9;
  if (shelf_.handed_out(tensor, step)) {
    return fail(ErrorCode::kInvalidArgument, "the update of step " + std::to_string(step) + " was handed out before");
  }
  if (!shelf_.complete(tensor, step)) {
    if (error_) return std::unexpected(*error_);
    MILLRACE_CHECK(!in_time);
    return std::optional<TensorUpdate>();
  }
  lock.unlock();
  monitoring::SpanTimer timer(record_.spans);
  const TimeNs begin = monotonic_now_ns();
  if (auto caught_up = bring_up(tensor, step); !caught_up) return std::unexpected(caught_up.error());
  record_.phases.add(StepPhase::kApply, monotonic_now_ns() - begin);
  timer.end({.step = step,
             .unit = static_cast<uint32_t>(tensor),
             .name = monitoring::SpanName::kApply,
             .unit_kind = monitoring::SpanUnit::kTensor});
  lock.lock();
  if (shelf_.handed_out(tensor, step)) {  // to another thread that awaited it beside this one
    return fail(ErrorCode::kInvalidArgument, "the update of step " + std::to_string(step) + " was handed out before");
  }
  TensorUpdate update = shelf_.take(tensor, step);
  lock.unlock();
  update.replaced = weights_[tensor].take_replaced();
  return update;
}

Status SessionShell::check_not_given(size_t tensor) const {
  if (!gates_[tensor].weights_given) return {};
  return fail(ErrorCode::kInvalidArgument,
              "the weights of tensor '" + core_.spec().tensors[tensor].name +
                  "' were given to connect(): they stay, and their scale is a schedule "
                  "(Weights), so that a worker that joins applies every step as the others did");
}

CallStatus SessionShell::attach_weights(size_t tensor, std::span<float> weights, float scale, ApplyWhen when) {
  return attach(tensor, weights.size(), {.weights = weights, .scale = scale, .when = when});
}

CallStatus SessionShell::attach_device_weights(size_t tensor, size_t count, float scale,
                                               const MakeDeviceWeights& make) {
  auto made = make();
  if (!made) return std::unexpected(made.error());
  AttachedWeights::Target target;
  target.scale = scale;
  target.on_device = std::move(*made);
  return attach(tensor, count, std::move(target));
}

CallStatus SessionShell::attach(size_t tensor, size_t count, AttachedWeights::Target&& target) {
  if (auto valid = check_tensor(tensor); !valid) return std::unexpected(valid.error());
  if (auto valid = check_not_given(tensor); !valid) return std::unexpected(valid.error());
  const uint64_t dimension = core_.spec().tensors[tensor].dimension;
  if (count != dimension) {
    return fail(ErrorCode::kInvalidArgument,
                std::to_string(count) + " weights for a tensor of dimension " + std::to_string(dimension));
  }
  if (auto valid = check_scale(target.scale); !valid) return std::unexpected(valid.error());
  if (auto valid = check_apply(target.when, core_.spec().mode); !valid) return std::unexpected(valid.error());
  std::unique_lock lock(mutex_);
  if (gates_[tensor].filling || gates_[tensor].steps_pushed != shelf_.steps_complete(tensor)) {
    return fail(ErrorCode::kInvalidArgument,
                "weights can be attached only while no step of the tensor is in flight: before a "
                "push, or after await of the last one");
  }
  shelf_.attach(tensor, target.when);
  const uint64_t pushes_made = gates_[tensor].steps_pushed;
  lock.unlock();
  weights_[tensor].attach(std::move(target), pushes_made);
  return {};
}

CallStatus SessionShell::set_scale(size_t tensor, float scale) {
  if (auto valid = check_tensor(tensor); !valid) return std::unexpected(valid.error());
  if (auto valid = check_not_given(tensor); !valid) return std::unexpected(valid.error());
  if (auto valid = check_scale(scale); !valid) return std::unexpected(valid.error());
  if (!weights_[tensor].attached()) {
    return fail(ErrorCode::kInvalidArgument, "no weights are attached to tensor '" + core_.spec().tensors[tensor].name +
                                                 "': attach_weights() takes the array and its scale");
  }
  weights_[tensor].set_scale(scale);
  return {};
}

CallResult<uint64_t> SessionShell::steps_applied(size_t tensor) {
  if (auto valid = check_tensor(tensor); !valid) return std::unexpected(valid.error());
  return weights_[tensor].steps();
}

SessionStatus SessionShell::status() const {
  const std::lock_guard lock(mutex_);
  return {phase_ == Phase::kRejoining, returns_, waiting_for_, audit_imbalance_, workers_missing_};
}

std::optional<Error> SessionShell::error() const {
  const std::lock_guard lock(mutex_);
  return error_ ? std::optional(error_->error) : std::nullopt;
}

CallStatus SessionShell::while_idle(size_t tensor, const std::function<Status(const IdleTensor&)>& body) {
  if (auto valid = check_tensor(tensor); !valid) return std::unexpected(valid.error());
  CallStatus done;
  bool ends = false;
  run_there([&] {
    // A fill under way adds to the residual on its caller's thread; one that has ended may not have reached the core
    // yet.
    const PushBarrier still(*this);
    std::unique_lock lock(mutex_);
    for (uint32_t other = 0; other < gates_.size(); ++other) {
      const Gate& gate = gates_[other];
      if (gate.bucket != gates_[tensor].bucket || gate.steps_pushed == core_.steps_pushed(other)) continue;
      done = fail(ErrorCode::kInvalidArgument, "the tensor, or one that travels with it, is being pushed");
      return;
    }
    lock.unlock();
    const Result<IdleTensor> idle = core_.idle_tensor(static_cast<uint32_t>(tensor));
    Status status = idle ? body(*idle) : Status(std::unexpected(idle.error()));
    if (auto devices = fail_by_devices(); !devices) {
      status = std::move(devices);
      ends = true;
    }
    if (!status) done = std::unexpected(answer_of(std::move(status.error())));
  });
  if (ends) await_end();
  return done;
}

CallResult<Stream> SessionShell::take_residual(size_t tensor) {
  Stream taken;
  const CallStatus done = while_idle(tensor, [&](const IdleTensor& idle) -> Status {
    taken = idle.take_residual();
    return {};
  });
  if (!done) return std::unexpected(done.error());
  return taken;
}

CallStatus SessionShell::restore(size_t tensor, const SparseEntries& residual, const SparseEntries& velocity) {
  if (auto valid = check_tensor(tensor); !valid) return std::unexpected(valid.error());
  if (!all_finite(residual.values) || !all_finite(velocity.values))
    return fail(ErrorCode::kNonFinite, "NaN or infinity among entries to restore");
  auto of_residual = coalesce(dimension_of(tensor), residual.indices, residual.values);
  if (!of_residual) return std::unexpected(of_residual.error());
  const auto of_velocity = coalesce(dimension_of(tensor), velocity.indices, velocity.values);
  if (!of_velocity) return std::unexpected(of_velocity.error());
  return while_idle(tensor,
                    [&](const IdleTensor& idle) { return idle.restore(std::move(*of_residual), of_velocity->view()); });
}

Stats SessionShell::stats() {
  Stats stats;
  run_there([&] { stats = collect_stats(); });
  return stats;
}

CallStatus SessionShell::save(const std::string& path) {
  if (auto waited = await_work_with_weights(); !waited) return waited;
  Result<ByteBuffer> bytes;
  bool ends = false;
  run_there([&] {
    bytes = state_bytes();
    if (bytes) return;
    const PushBarrier still(*this);
    ends = !fail_by_devices();  // the error is in `bytes` already
  });
  if (ends) await_end();
  if (!bytes) return std::unexpected(bytes.error());
  if (auto written = files::write_file_atomically(path, *bytes, files::kOwnerOnly); !written)
    return std::unexpected(std::move(written.error()));
  return {};
}

CallResult<bool> SessionShell::finish(std::chrono::milliseconds timeout) {
  const Moment deadline = deadline_of(timeout);
  {
    // A push that has passed its gate hands its step over first: else it would be accepted, and never sent.
    std::unique_lock lock(mutex_);
    finish_asked_ = true;
    if (!changed_.wait_until(lock, deadline, [&] { return fills_ == 0 || error_; })) return false;
  }
  CallStatus asked;
  run_there([&] {
    auto answer = core_.finish(monotonic_now_ns(), actions_);
    if (answer) return;
    asked = std::unexpected(answer_of(std::move(answer.error())));
    const std::lock_guard lock(mutex_);
    finish_asked_ = false;
  });
  if (!asked) return std::unexpected(asked.error());
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return phase_ == Phase::kFinished || error_; });
  if (phase_ == Phase::kFinished) {
    lock.unlock();
    for (size_t tensor = 0; tensor < weights_.size(); ++tensor) {
      if (auto taken = bring_up(tensor, std::nullopt); !taken) return std::unexpected(taken.error());
    }
    return true;
  }
  if (error_) return std::unexpected(*error_);
  return false;
}

}  // namespace millrace::worker
