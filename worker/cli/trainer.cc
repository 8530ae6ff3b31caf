#include "worker/cli/trainer.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <numeric>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/random.h"
#include "monitoring/http_address.h"
#include "worker/cli/job_failure.h"

namespace millrace::cli {
namespace {

constexpr uint64_t kOrderStream = 11;
/// await() is called in slices, so that an interruption is seen; this many of them are the time a step may take.
constexpr std::chrono::milliseconds kAwaitSlice(500);
constexpr TimeNs kStatsEvery = kNsPerS / 4;  // they cost a pass over the residual
constexpr int kAwaitSlices = 1200;

/// What a dense gradient holds where the batch touched nothing. The library sends a mostly zero array in its sparse form, which
/// is what a dense exchange is to be compared with; this is no zero, and too small to change a weight.
constexpr float kUntouched = 1e-30F;

Failure failure_of_run(const JobError& error, JobStage stage) {
  Failure failure = failure_of(error, stage);
  if (error.code() == JobErrorCode::kNonFinite)
    failure.message += "; lower --lr, or leave such values out: --non-finite drop";
  return failure;
}

JobOptions job_options(const TrainOptions& options) {
  JobOptions job;
  job.name = options.job;
  job.worker = options.worker;
  job.workers = options.workers;
  job.shards = options.servers;
  job.select = options.select;
  job.reselect = options.reselect;
  job.codec_up = options.codec_up;
  job.codec_down = options.codec_down;
  job.codec_error = options.codec_error;
  job.momentum = options.momentum;
  job.clip = options.clip;
  job.unbiased = options.unbiased;
  job.non_finite = options.non_finite;
  job.mode = options.mode == "sync" ? "synchronous" : options.mode;
  job.staleness = options.staleness;
  job.quorum = options.quorum;
  job.deadline_ms = options.deadline_ms;
  job.participants = options.participants;
  job.combine = "mean";
  job.seed = options.seed;
  job.save_path = options.state_path;
  job.connect_timeout_ms = options.connect_timeout_ms;
  job.start_timeout_ms = options.start_timeout_ms;
  job.log = options.log;
  return job;
}

TensorOptions tensor_options(uint64_t dimension) {
  TensorOptions tensor;
  tensor.name = "linear";
  tensor.dimension = dimension;
  return tensor;
}

/// One run: the session, the model and the steps in flight.
class Run {
 public:
  Run(const TrainOptions& options, const Dataset& data, const std::atomic<bool>& stop)
      : options_(options), data_(data), stop_(stop), model_(options.loss, data.dimension) {}

  void connect() {
    JobOptions job = job_options(options_);
    job.give_up = [this] { return stop_.load(); };
    session_ = Session::connect(job, {tensor_options(model_.tensor_dimension())});
    // On await, so that no update arrives while a gradient is being computed from the weights.
    session_->attach_weights(0, model_.values(), 0, ApplyWhen::kOnAwait);
    if (options_.form == GradientForm::kDense) dense_.assign(model_.tensor_dimension(), kUntouched);
  }

  /// False when it was stopped.
  bool epoch(uint32_t epoch, EpochReport& report) {
    report.epoch = epoch + 1;
    const Stats before = session_->stats();
    const TimeNs started = monotonic_now_ns();
    const std::vector<uint32_t> order = epoch_order(data_.rows(), options_.seed, options_.worker, epoch);
    const double rate = options_.learning_rate / (1 + epoch * options_.learning_rate_decay);
    const uint64_t steps = steps_per_epoch(data_.rows_in_file, options_.workers, options_.batch_rows);
    uint64_t rows_seen = 0;
    for (uint64_t step = 0; step < steps && !finished(); ++step) {
      const size_t begin = std::min<size_t>(step * options_.batch_rows, order.size());
      const size_t end = std::min<size_t>(begin + options_.batch_rows, order.size());
      report.loss += push(std::span(order).subspan(begin, end - begin), rate);
      rows_seen += end - begin;
      ++report.steps;
      while (in_flight_.size() > options_.staleness) {
        if (!await_oldest()) return false;
      }
    }
    // What is still in flight belongs to this epoch: its model is what is evaluated.
    while (!in_flight_.empty()) {
      if (!await_oldest()) return false;
    }
    report.seconds = static_cast<double>(monotonic_now_ns() - started) / static_cast<double>(kNsPerS);
    report.loss /= static_cast<double>(std::max<uint64_t>(rows_seen, 1));
    take_difference(before, report);
    return true;
  }

  bool finished() const { return options_.steps_max > 0 && steps_ >= options_.steps_max; }
  const LinearModel& model() const { return model_; }

  TrainResult finish() {
    session_->finish();
    const Stats stats = session_->stats();
    if (options_.on_stats) options_.on_stats(stats);
    session_.reset();
    return {std::move(model_), {}, stats.dense_bytes};
  }

 private:
  struct InFlight {
    uint64_t step = 0;
    double rate = 0;
    TimeNs pushed_at = 0;
  };

  /// Returns the sum of the rows' losses.
  double push(std::span<const uint32_t> rows, double rate) {
    const BatchGradient batch = batch_gradient(model_, data_, rows);
    const Stream<float>& gradient = batch.gradient;
    const TimeNs pushed_at = monotonic_now_ns();
    uint64_t step = 0;
    if (options_.form == GradientForm::kSparse) {
      step = session_->push_sparse(0, gradient.indices, gradient.values);
    } else {
      for (size_t at = 0; at < gradient.indices.size(); ++at) dense_[gradient.indices[at]] = gradient.values[at];
      step = session_->push(0, dense_);
      for (const uint32_t index : gradient.indices) dense_[index] = kUntouched;
    }
    in_flight_.push_back({step, rate, pushed_at});
    ++steps_;
    return batch.loss_sum;
  }

  /// Waits for the oldest step and applies it: weights shrink by L2, then the mean gradient is subtracted. False when stopped.
  bool await_oldest() {
    const InFlight oldest = in_flight_.front();
    model_.shrink(static_cast<float>(1 - oldest.rate * options_.l2));
    session_->set_scale(0, static_cast<float>(-oldest.rate / static_cast<double>(model_.scale())));
    for (int slice = 1; !stop_.load(); ++slice) {
      try {
        session_->await(0, oldest.step, kAwaitSlice);
        in_flight_.pop_front();
        report_step(oldest.pushed_at);
        return true;
      } catch (const JobError& error) {
        if (error.code() != JobErrorCode::kTimeout || slice >= kAwaitSlices) throw;
      }
    }
    return false;
  }

  void report_step(TimeNs pushed_at) {
    const TimeNs now = monotonic_now_ns();
    if (options_.on_step) options_.on_step(static_cast<double>(now - pushed_at) / static_cast<double>(kNsPerS));
    if (!options_.on_stats || now < next_stats_ns_) return;
    next_stats_ns_ = now + kStatsEvery;
    options_.on_stats(session_->stats());
  }

  void take_difference(const Stats& before, EpochReport& report) {
    const Stats after = session_->stats();
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
  LinearModel model_;
  std::unique_ptr<Session> session_;
  std::vector<float> dense_;
  std::deque<InFlight> in_flight_;
  uint64_t steps_ = 0;
  TimeNs next_stats_ns_ = 0;
};

}  // namespace

Outcome check_job(const TrainOptions& options, uint64_t features) {
  try {
    Session::check(job_options(options), {tensor_options(features + 1)});
    return {};
  } catch (const JobError& error) {
    return fail_with(ExitCode::kUsage, error.what());
  }
}

uint64_t steps_per_epoch(uint64_t rows_of_all_workers, uint32_t workers, uint32_t batch_rows) {
  const uint64_t rows = (rows_of_all_workers + workers - 1) / workers;
  return (rows + batch_rows - 1) / batch_rows;
}

std::vector<uint32_t> epoch_order(size_t rows, uint64_t seed, uint32_t worker, uint32_t epoch) {
  std::vector<uint32_t> order(rows);
  std::iota(order.begin(), order.end(), 0U);
  RandomSequence random(random_key(seed, worker, epoch), kOrderStream);
  for (size_t at = rows; at > 1; --at) std::swap(order[at - 1], order[random.next_below(at)]);
  return order;
}

Result<std::vector<std::string>> server_addresses(const std::string& text) {
  constexpr std::string_view kScheme = "tcp://";
  std::vector<std::string> addresses;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    std::string address = text.substr(begin, end - begin);
    if (!address.starts_with(kScheme)) address.insert(0, kScheme);
    const auto parsed = monitoring::parse_http_address(std::string_view(address).substr(kScheme.size()));
    if (!parsed || parsed->port == 0) {
      return fail(ErrorCode::kInvalidArgument,
                  "'" + text.substr(begin, end - begin) + "' is not host:port; servers are host:port,host:port");
    }
    addresses.push_back(std::move(address));
    begin = end + 1;
  }
  return addresses;
}

std::expected<TrainResult, Failure> train(const TrainOptions& options, const Dataset& data, const Dataset* held_out,
                                          const std::function<void(const EpochReport&)>& on_epoch,
                                          const std::atomic<bool>& stop) {
  MILLRACE_CHECK(options.batch_rows > 0 && options.workers > 0, options.batch_rows, options.workers);
  JobStage stage = JobStage::kJoining;
  try {
    Run run(options, data, stop);
    run.connect();
    stage = JobStage::kRunning;
    std::vector<EpochReport> epochs;
    for (uint32_t epoch = 0; epoch < options.epochs && !run.finished(); ++epoch) {
      EpochReport& report = epochs.emplace_back();
      if (!run.epoch(epoch, report) || stop.load())
        return fail_with(ExitCode::kInterrupted, "interrupted; no model was written");
      if (held_out != nullptr) {
        report.held_out = evaluate(run.model(), *held_out);
        report.evaluated = true;
      }
      if (on_epoch) on_epoch(report);
    }
    TrainResult result = run.finish();
    result.epochs = std::move(epochs);
    return result;
  } catch (const JobError& error) {
    if (stop.load()) return fail_with(ExitCode::kInterrupted, "interrupted; no model was written");
    return std::unexpected(failure_of_run(error, stage));
  }
}

}  // namespace millrace::cli
