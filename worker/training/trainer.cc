#include "worker/training/trainer.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "worker/config/job_config.h"
#include "worker/training/data/epoch_order.h"
#include "worker/training/job_failure.h"
#include "worker/training/model/descent.h"
#include "worker/training/snapshot_job.h"
#include "worker/training/train_recipe.h"

namespace millrace::training {
namespace {

using program::ExitCode, program::fail_with, program::Failure, program::Outcome;

/// Blocking calls are made in slices, so that an interruption is seen. A pull is not: begun again, it would have the
/// same weights sent again.
constexpr std::chrono::milliseconds kTrainSlice(500);
constexpr TimeNs kStatsEvery = kNsPerS / 4;  // they cost a pass over the residual

/// Value of a dense gradient's entries that the batch did not touch. The library sends a mostly zero array in its
/// sparse form, but the measurement compares with a dense exchange. This value is not zero, and too small to change a
/// weight.
constexpr float kUntouched = 1e-30F;

Failure failure_of_run(const JobError& error, JobStage stage) {
  Failure failure = failure_of(error, stage);
  if (error.code() == JobErrorCode::kNonFinite)
    failure.message += "; lower --lr, or leave such values out: --non-finite drop";
  return failure;
}

JobConfig job_of(const TrainOptions& options) {
  JobConfig job = options.job;
  job.workers_min = std::max({1U, job.guarantees.apply_after_acks, options.workers_min});
  return job;
}

WorkerConfig worker_of(const TrainOptions& options) {
  WorkerConfig me = options.me;
  me.save_path = options.state_path;
  me.load_path = options.state_path;
  me.returns = !options.state_path.empty();
  return me;
}

uint32_t staleness_of(const JobConfig& job) { return worker::staleness_of(job.consistency); }

TensorOptions tensor_options(uint64_t dimension) {
  TensorOptions tensor;
  tensor.name = "linear";
  tensor.dimension = dimension;
  return tensor;
}

/// Returns the number of contributions that change the model like a step of all workers: in mode asynchronous each is a
/// step.
uint64_t steps_per_round(const TrainOptions& options) { return is_asynchronous(options) ? options.job.workers : 1; }

uint64_t pushes_per_epoch(const TrainOptions& options, const Dataset& data) {
  return std::max<uint64_t>(steps_per_epoch(data.rows_in_file, options.job.workers, options.batch_rows), 1);
}

DescentOptions descent_options(const TrainOptions& options, const Dataset& data) {
  RateSchedule schedule = options.schedule;
  schedule.rate = options.learning_rate / static_cast<double>(steps_per_round(options));
  return {.schedule = schedule,
          .l2 = options.l2,
          .steps_per_epoch = pushes_per_epoch(options, data) * steps_per_round(options),
          .epochs = std::max(options.epochs, 1U),
          .intercept = data.dimension};
}

/// Does one run: the session, the model and the steps in flight. Rows, rates and epochs follow the job's steps, not
/// this process's: a worker that joins or rejoins continues at the others' step.
class Run {
 public:
  Run(const TrainOptions& options, const Dataset& data, const Dataset* held_out, const std::atomic<bool>& stop)
      : options_(options),
        data_(data),
        stop_(stop),
        descent_(descent_options(options, data)),
        turns_(steps_per_round(options)),
        steps_per_epoch_(pushes_per_epoch(options, data)),
        steps_end_(steps_per_epoch_ * options.epochs),
        model_(options.loss, data.dimension) {
    model_.set_trained_on(data.written_as());
    if (options_.steps_max > 0) steps_end_ = std::min(steps_end_, options_.steps_max);
    if (held_out != nullptr && options.curve_every > 0) curve_.emplace(*held_out);
  }

  ~Run() {
    if (options_.on_session) options_.on_session(nullptr);
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  /// In modes that leave workers out, parts may have different steps at one moment: all must be under one scale.
  Outcome check_shrinking() const {
    if (is_synchronous(options_) || !descent_.folds_before(steps_end_ * turns_)) return {};
    return fail_with(ExitCode::kUsage,
                     fmt::format("--l2 {} at --lr {} shrinks weights by more than 2^-40 in {} steps: in mode {} less "
                                 "of it, or fewer steps",
                                 options_.l2, options_.learning_rate, steps_end_,
                                 worker::consistency_name(options_.job.consistency)));
  }

  void connect() {
    JobConfig job = job_of(options_);
    job.recipe = train_recipe(options_, data_);
    WorkerConfig me = worker_of(options_);
    me.give_up = [this] {  // during a pull, too
      if (session_) say_while_out();
      return stop_.load();
    };
    TensorOptions tensor = tensor_options(model_.tensor_dimension());
    const bool svrg = options_.optimizer == TrainOptimizer::kSvrg;
    const bool attaches = !pulls() && !svrg;
    if (attaches) tensor.weights = attached_weights();
    session_ = Session::connect(job, me, {tensor});
    if (options_.on_session) options_.on_session(session_.get());
    if (options_.form == GradientForm::kDense) dense_.assign(model_.tensor_dimension(), kUntouched);
    follow_weights();
    if (svrg) connect_snapshots(job, me);
    position_ = std::min(session_->steps_applied(0) / turns_, steps_end_);
    rounds_ = session_->steps_applied(0);
    if (position_ > 0) say_return(fmt::format("the job is at step {}: this worker continues from there", position_));
    started_ns_ = monotonic_now_ns();
    first_round_ = rounds_;
    take_point();
  }

  /// The rest of the epoch that the job is in. False when it was stopped.
  bool epoch(EpochReport& report) {
    const auto epoch = static_cast<uint32_t>(std::min(position_, steps_end_ - 1) / steps_per_epoch_);
    report.epoch = epoch + 1;
    const Stats before = stats();
    const TimeNs started = monotonic_now_ns();
    const std::vector<uint32_t> order = epoch_order(data_.rows(), options_.job.seed, options_.me.worker, epoch);
    const uint64_t first = epoch * steps_per_epoch_;
    const uint64_t end = std::min(first + steps_per_epoch_, steps_end_);
    uint64_t rows_seen = 0;
    while (position_ < end && !finished()) {
      const size_t begin_row = std::min<size_t>((position_ - first) * options_.batch_rows, order.size());
      const size_t end_row = std::min<size_t>(begin_row + options_.batch_rows, order.size());
      const auto rows = std::span(order).subspan(begin_row, end_row - begin_row);
      if (pulls() && !pull_for(rows)) return false;
      if (snapshots_ && position_ % snapshot_every() == 0 && !take_snapshot()) return false;
      if (!push(rows, report.loss)) return false;
      rows_seen += rows.size();
      ++report.steps;
      while (must_await() || answer_is_here()) {
        if (!await_oldest()) return false;
      }
      save_when_due();
    }
    // Steps still in flight belong to this epoch: its evaluation uses the model after them.
    while (!in_flight_.empty()) {
      if (!await_oldest()) return false;
    }
    if (pulls() && !pull_all()) return false;
    report.seconds = static_cast<double>(monotonic_now_ns() - started) / static_cast<double>(kNsPerS);
    report.loss /= static_cast<double>(std::max<uint64_t>(rows_seen, 1));
    take_difference(before, report);
    return true;
  }

  bool finished() const {
    return position_ >= steps_end_ || (options_.rounds_max > 0 && rounds_ >= options_.rounds_max);
  }
  const LinearModel& model() const { return model_; }

  TrainResult finish() {
    if (curve_ && curve_->points().back().round < rounds_) take_point();
    // Before this worker leaves: a worker that has made all steps, and dies now, contributed to all of them.
    const uint32_t missing = session_->status().workers_missing;
    leave();
    const Stats all = stats();
    if (options_.on_stats) options_.on_stats(all);
    if (options_.on_session) options_.on_session(nullptr);
    session_.reset();
    snapshots_.reset();
    remove_state();
    TrainResult result{
        .model = std::move(model_), .epochs = {}, .curve = {}, .audit = all.audit, .by_switch = all.by_switch};
    if (curve_) result.curve = curve_->evaluated();
    result.workers_missing = missing;
    result.rounds = rounds_;
    result.contributions = contributions_;
    result.rounds_per_s = rounds_per_s_;
    result.dense_bytes = all.dense_bytes;
    result.history_bytes_saved = all.history_bytes_saved;
    return result;
  }

  /// Returns the end of an interrupted run; a session that ended has saved its state by itself.
  Failure interrupted() { return with_state({ExitCode::kInterrupted, "interrupted; no model was written"}); }

  /// Returns the end of a run whose model could not be taken. The worker leaves as finished: the job has all its rows.
  Failure without_model(Failure failure) {
    failure = with_state(std::move(failure));
    try {
      leave();
    } catch (const JobError& error) {
      failure.message += std::string("; it leaves the job as failed: ") + error.what();
    }
    return failure;
  }

 private:
  struct InFlight {
    uint64_t push = 0;
    TimeNs pushed_at = 0;
  };

  /// Saves the state, and returns the failure with its place.
  Failure with_state(Failure failure) {
    if (!session_ || options_.state_path.empty()) return failure;
    try {
      session_->save(options_.state_path);
      failure.message += "; the state is in " + options_.state_path;
    } catch (const JobError& error) {
      failure.message += std::string("; the state could not be saved: ") + error.what();
    }
    return failure;
  }

  /// Leaves as finished. The model is complete: an interruption of this wait makes the session leave at once.
  void leave() {
    in_slices("the job has not answered everything",
              [this](std::chrono::milliseconds slice) { return session_->try_finish(slice); });
    if (snapshots_) {
      in_slices("the snapshots' job has not answered everything",
                [this](std::chrono::milliseconds slice) { return snapshots_->try_finish(slice); });
    }
  }

  bool pulls() const { return options_.job.store.has_value(); }
  uint64_t snapshot_every() const { return options_.snapshot_every > 0 ? options_.snapshot_every : steps_per_epoch_; }

  std::string waiting_for() const {
    const std::string steps = session_->status().waiting_for;
    return snapshots_ ? fmt::format("{}; snapshots: {}", steps, snapshots_->waiting_for()) : steps;
  }

  /// Returns the sums of both jobs.
  Stats stats() const {
    Stats all = session_->stats();
    if (snapshots_) snapshots_->add_to(all);
    return all;
  }

  /// Returns the weights for connect(). On await, so that no update arrives while a gradient is computed from them.
  Weights attached_weights() {
    if (const std::optional<float> factor = descent_.constant_factor()) return {model_.values(), *factor};
    return {model_.values(), [descent = &descent_](uint64_t step, uint64_t begin, std::span<float> run) {
              return descent->before_step(step, begin, run);
            }};
  }

  /// Attaches the weights after connect(): the steps are no function of their number, since they have G in them. So the
  /// session takes no worker in later, and lets none return, neither of which would have the others' snapshot.
  void connect_snapshots(const JobConfig& job, const WorkerConfig& me) {
    session_->attach_weights(0, model_.values(), static_cast<float>(-descent_.rate(0)), ApplyWhen::kOnAwait);
    snapshots_ = SnapshotJob::connect(job, me, data_);
  }

  /// Takes a snapshot of the model. The steps in flight end first, with the snapshot that they began with. Returns
  /// false when stopped.
  bool take_snapshot() {
    while (!in_flight_.empty()) {
      if (!await_oldest()) return false;
    }
    const Stream full = snapshots_->full_gradient(model_, stop_);
    const auto push = [&](std::chrono::milliseconds slice) { return snapshots_->try_push(full, slice); };
    const auto take = [&](std::chrono::milliseconds slice) { return snapshots_->try_take(model_, slice); };
    return in_slices("the gradient at a snapshot could not be pushed", push) &&
           in_slices("no sum of the gradients at a snapshot", take);
  }

  /// Repeats a call that is false where its slice of time has passed. False when stopped; after kDefaultTimeout `what`
  /// is an error.
  template <typename Attempt>
  bool in_slices(const std::string& what, const Attempt& attempt) {
    for (auto left = kDefaultTimeout; !stop_.load(); left -= kTrainSlice) {
      if (left.count() <= 0) throw_timeout(what);
      if (attempt(kTrainSlice)) return true;
      say_while_out();
    }
    return false;
  }

  [[noreturn]] void throw_timeout(const std::string& what) const {
    throw JobError(JobErrorCode::kTimeout,
                   fmt::format("{} within {} ms: {}", what, kDefaultTimeout.count(), waiting_for()));
  }

  /// Returns whether a pull has ended with weights. False when stopped; after kDefaultTimeout it is an error.
  bool is_pulled(const std::optional<PulledSteps>& pulled) const {
    if (!pulled && !stop_.load()) throw_timeout("the weights were not there");
    return pulled.has_value();
  }

  bool pull_all() { return is_pulled(session_->try_pull(0, model_.values())); }

  /// The weights that the rows touch.
  bool pull_for(std::span<const uint32_t> rows) {
    touched_.clear();
    for (const uint32_t row : rows) {
      const IndexSpan indices = data_.row(row).indices;
      touched_.insert(touched_.end(), indices.begin(), indices.end());
    }
    touched_.push_back(static_cast<uint32_t>(model_.dimension()));  // the intercept
    std::ranges::sort(touched_);
    touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
    pulled_.resize(touched_.size());
    if (!is_pulled(session_->try_pull_indices(0, touched_, pulled_))) return false;
    for (size_t at = 0; at < touched_.size(); ++at) model_.values()[touched_[at]] = pulled_[at];
    return true;
  }

  /// Adds the rows' losses to `loss`. False when stopped.
  bool push(std::span<const uint32_t> rows, double& loss) {
    const TimeNs began = monotonic_now_ns();
    BatchGradient batch = batch_gradient(model_, data_, rows);
    if (snapshots_) {
      const LinearModel& snapshot = snapshots_->reduction().snapshot();
      batch.gradient = VarianceReduction::difference(batch.gradient, batch_gradient(snapshot, data_, rows).gradient);
    }
    wait_until(began + options_.compute_ms * kNsPerMs);
    const Stream& gradient = batch.gradient;
    const TimeNs pushed_at = monotonic_now_ns();
    const bool sparse = options_.form == GradientForm::kSparse;
    for (size_t at = 0; at < gradient.indices.size() && !sparse; ++at)
      dense_[gradient.indices[at]] = gradient.values[at];
    std::optional<uint64_t> number;
    const auto attempt = [&](std::chrono::milliseconds slice) {
      number = sparse ? session_->try_push_sparse(0, gradient.indices, gradient.values, 1, slice)
                      : session_->try_push(0, dense_, 1, slice);
      return number.has_value();
    };
    if (!in_slices("the next step could not be pushed", attempt)) return false;
    for (size_t at = 0; at < gradient.indices.size() && !sparse; ++at) dense_[gradient.indices[at]] = kUntouched;
    in_flight_.push_back({*number, pushed_at});
    ++position_;
    ++pushes_;
    loss += batch.loss_sum;
    return true;
  }

  bool must_await() const { return in_flight_.size() > staleness_of(options_.job); }

  /// Mode synchronous takes updates `staleness` steps later even if they come earlier, so that a run can be repeated to
  /// the bit. In other modes chance decides which workers are in a step anyway. There, waiting would make a slow worker
  /// compute from old weights: `staleness` of its own, long steps ago.
  bool answer_is_here() {
    return !is_synchronous(options_) && !in_flight_.empty() && session_->ready(0, in_flight_.front().push);
  }

  /// Waits for the oldest step: weights have shrunk by L2 then, and the mean gradient is subtracted. False when
  /// stopped.
  bool await_oldest() {
    const InFlight oldest = in_flight_.front();
    const uint64_t step = session_->steps_applied(0);
    if (snapshots_) session_->set_scale(0, descent_.before_step(step, 0, model_.values()));
    std::optional<TensorUpdate> update;
    const auto take = [&](std::chrono::milliseconds slice) {
      update = session_->try_await(0, oldest.push, slice);
      return update.has_value();
    };
    if (!in_slices("no update of step " + std::to_string(oldest.push), take)) return false;
    follow_weights();
    if (snapshots_) {  // no worker sends G: each adds it itself
      snapshots_->reduction().add_full(model_.values(), -descent_.rate(step) / static_cast<double>(model_.scale()));
    }
    count_rounds(*update);
    in_flight_.pop_front();
    follow_job();
    report_step(oldest.pushed_at);
    return true;
  }

  void follow_weights() { model_.set_scale(descent_.scale_after(session_->steps_applied(0))); }

  /// Continues at the job's step after an absence: the others did not wait for this worker's steps in between.
  void follow_job() {
    const uint64_t returns = session_->status().returns;
    if (returns == returns_seen_) return;
    returns_seen_ = returns;
    reported_out_ = false;
    position_ = std::min(std::max(position_, session_->steps_applied(0) / turns_), steps_end_);
    say_return(fmt::format("back in the job, which is at step {}", position_));
  }

  void say_while_out() {
    const SessionStatus status = session_->status();
    if (!status.returning || reported_out_) return;
    reported_out_ = true;
    say_return("out of the job, and rejoining: " + status.waiting_for);
  }

  void say_return(const std::string& line) const {
    if (options_.on_return) options_.on_return(line);
  }

  /// Removes the saved state: the next run of that name would begin with it.
  void remove_state() const {
    if (options_.state_path.empty() || ::unlink(options_.state_path.c_str()) == 0 || errno == ENOENT) return;
    say_return(
        fmt::format("the run is over, and its state {} cannot be removed ({}): remove it, or the next run begins "
                    "with it",
                    options_.state_path, std::strerror(errno)));
  }

  void save_when_due() {
    if (options_.save_every == 0 || options_.state_path.empty() || pushes_ % options_.save_every != 0) return;
    session_->save(options_.state_path);
  }

  /// An update brings the rounds that passed without this worker as well: the first part has a piece of each.
  void count_rounds(const TensorUpdate& update) {
    const bool open = !finished();
    for (const UpdatePiece& piece : update.pieces) {
      if (piece.begin != 0) continue;
      ++rounds_;
      contributions_ += piece.contributors;
    }
    if (update.replaced) rounds_ = session_->steps_applied(0);
    // Steps in flight beyond the last requested round do not count in this figure: other workers may have left by then.
    if (open) rounds_per_s_ = static_cast<double>(rounds_ - first_round_) / seconds_since_start();
    if (curve_ && rounds_ >= curve_->points().back().round + options_.curve_every) take_point();
  }

  void take_point() {
    if (!curve_) return;
    const Stats now = stats();
    curve_->take(model_, {rounds_, seconds_since_start(), now.bytes_up, now.bytes_down});
  }

  double seconds_since_start() const {
    return static_cast<double>(monotonic_now_ns() - started_ns_) / static_cast<double>(kNsPerS);
  }

  /// In slices, so that an interruption is seen.
  void wait_until(TimeNs due) const {
    for (TimeNs now = monotonic_now_ns(); now < due && !stop_.load(); now = monotonic_now_ns()) {
      const TimeNs slice = std::min<TimeNs>(due - now, kTrainSlice.count() * kNsPerMs);
      const timespec wait{slice / kNsPerS, slice % kNsPerS};
      ::ppoll(nullptr, 0, &wait, nullptr);
    }
  }

  void report_step(TimeNs pushed_at) {
    const TimeNs now = monotonic_now_ns();
    if (options_.on_step) options_.on_step(static_cast<double>(now - pushed_at) / static_cast<double>(kNsPerS));
    if (!options_.on_stats || now < next_stats_ns_) return;
    next_stats_ns_ = now + kStatsEvery;
    options_.on_stats(stats());
  }

  void take_difference(const Stats& before, EpochReport& report) {
    const Stats after = stats();
    report.bytes_up = after.bytes_up - before.bytes_up;
    report.bytes_down = after.bytes_down - before.bytes_down;
    report.entries_up = after.tensors[0].entries_sent - before.tensors[0].entries_sent;
    report.non_finite_dropped = after.tensors[0].non_finite_dropped - before.tensors[0].non_finite_dropped;
    report.blocked_s = after.time_blocked_s - before.time_blocked_s;
    report.communication_s = after.time_in_communication_s - before.time_in_communication_s;
  }

  const TrainOptions& options_;
  const Dataset& data_;
  const std::atomic<bool>& stop_;
  const Descent descent_;  ///< before the session: its thread asks
  uint64_t turns_ = 1;     ///< steps of the log that are one of the workers'
  uint64_t steps_per_epoch_ = 1;
  uint64_t steps_end_ = 0;
  LinearModel model_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<SnapshotJob> snapshots_;  ///< svrg
  std::vector<float> dense_;
  std::vector<uint32_t> touched_;
  std::vector<float> pulled_;
  std::deque<InFlight> in_flight_;
  uint64_t position_ = 0;  ///< of the job: the step that the next push is for
  uint64_t pushes_ = 0;
  uint64_t returns_seen_ = 0;
  bool reported_out_ = false;
  std::optional<LearningCurve> curve_;
  uint64_t rounds_ = 0;
  uint64_t first_round_ = 0;
  uint64_t contributions_ = 0;
  double rounds_per_s_ = 0;
  TimeNs started_ns_ = 0;
  TimeNs next_stats_ns_ = 0;
};

}  // namespace

bool is_asynchronous(const TrainOptions& options) {
  return std::holds_alternative<Asynchronous>(options.job.consistency);
}

bool is_synchronous(const TrainOptions& options) {
  return std::holds_alternative<Synchronous>(options.job.consistency);
}

Outcome check_job(const TrainOptions& options, uint64_t features) {
  if (Outcome valid = check_snapshots(options); !valid) return valid;
  try {
    JobConfig job = job_of(options);
    const WorkerConfig me = worker_of(options);
    // Whether there are as many windows the data will say.
    if (auto* path = std::get_if<SwitchPath>(&job.path);
        path != nullptr && features == 0 && path->lanes > 0 && path->slots % path->lanes == 0) {
      path->lanes = 1;
    }
    Session::check(job, me, {tensor_options(features + 1)});
    if (options.optimizer == TrainOptimizer::kSvrg) {
      Session::check(snapshot_job_config(job), snapshot_worker_config(me), {snapshot_tensor(features + 1)});
    }
    return {};
  } catch (const JobError& error) {
    return fail_with(ExitCode::kUsage, error.what());
  }
}

Outcome check_workers_at_end(const TrainOptions& options, uint32_t missing) {
  const uint32_t least = options.workers_min > 0 ? options.workers_min : options.job.workers;
  if (options.job.workers - missing >= least) return {};
  return fail_with(ExitCode::kJobEnded,
                   fmt::format("the job continued to its end without {} of its {} workers: its steps after their loss "
                               "lack their rows. Train again with all of them, or allow it with --workers-min {}",
                               missing, options.job.workers, options.job.workers - missing));
}

uint64_t steps_per_epoch(uint64_t rows_of_all_workers, uint32_t workers, uint32_t batch_rows) {
  const uint64_t rows = (rows_of_all_workers + workers - 1) / workers;
  return (rows + batch_rows - 1) / batch_rows;
}

std::expected<TrainResult, Failure> train(const TrainOptions& options, const Dataset& data, const Dataset* held_out,
                                          const std::function<void(const EpochReport&)>& on_epoch,
                                          const std::atomic<bool>& stop) {
  MILLRACE_CHECK(options.batch_rows > 0 && options.job.workers > 0, options.batch_rows, options.job.workers);
  JobStage stage = JobStage::kJoining;
  try {
    Run run(options, data, held_out, stop);
    if (Outcome valid = run.check_shrinking(); !valid) return std::unexpected(valid.error());
    run.connect();
    stage = JobStage::kRunning;
    std::vector<EpochReport> epochs;
    do {  // a worker that joins when all steps are made has a row all the same: of the model that it took over
      EpochReport& report = epochs.emplace_back();
      if (!run.epoch(report) || stop.load()) return std::unexpected(run.interrupted());
      if (held_out != nullptr && options.curve_every == 0) {
        report.held_out = evaluate(run.model(), *held_out);
        report.evaluated = true;
      }
      if (on_epoch) on_epoch(report);
    } while (!run.finished());
    if (options.on_model) {
      if (Outcome taken = options.on_model(run.model()); !taken)
        return std::unexpected(run.without_model(taken.error()));
    }
    TrainResult result = run.finish();
    result.epochs = std::move(epochs);
    return result;
  } catch (const JobError& error) {
    if (stop.load()) return fail_with(ExitCode::kInterrupted, "interrupted; no model was written");
    return std::unexpected(failure_of_run(error, stage));
  }
}

}  // namespace millrace::training
