#include "worker/training/optimizers/gradient_descent.h"

#include <algorithm>
#include <array>
#include <deque>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/optimize/dense.h"
#include "kernels/reduce/reduce.h"
#include "worker/training/data/epoch_order.h"
#include "worker/training/exchange/exchange.h"
#include "worker/training/optimizers/batch_gradient.h"
#include "worker/training/optimizers/snapshot.h"

namespace millrace::training {
namespace {

double gradient_descent_seconds_since(TimeNs begin) {
  return static_cast<double>(monotonic_now_ns() - begin) / static_cast<double>(kNsPerS);
}

OptimizerSpec rule_of(const OptimizerOptions& options, Optimizer rule) {
  OptimizerSpec spec;
  spec.optimizer = rule;
  spec.rate = options.schedule.rate;
  if (rule != Optimizer::kSgd) spec.momentum = options.beta1;
  if (rule != Optimizer::kAdam) return spec;
  spec.decay = options.beta2;
  spec.epsilon = options.epsilon;
  return spec;
}

class GradientDescent final : public PeerOptimizer {
 public:
  GradientDescent(const OptimizerSetup& setup, const DescentForm& form, std::unique_ptr<Exchange> exchange,
                  std::unique_ptr<Snapshots> snapshots)
      : setup_(setup),
        options_(setup.options),
        form_(form),
        rule_(rule_of(options_, form.rule)),
        model_(options_.loss, setup.data.dimension),
        exchange_(std::move(exchange)),
        snapshots_(std::move(snapshots)) {
    model_.set_trained_on(setup.data.written_as());
    const uint64_t most = *std::ranges::max_element(setup.rank_rows);
    steps_per_epoch_ = std::max<uint64_t>((most + options_.batch_rows - 1) / options_.batch_rows, 1);
    for (size_t at = 0; at < optimizer_states(rule_.optimizer); ++at) states_[at].resize(model_.tensor_dimension());
  }

  uint64_t steps_per_epoch() const override { return steps_per_epoch_; }
  size_t in_flight() const override { return exchange_->in_flight(); }
  const LinearModel& model() const override { return model_; }
  Status end() override {
    if (Status status = exchange_->end(); !status || !snapshots_) return status;
    return snapshots_->end();
  }

  OptimizerCounts counts() const override {
    const ExchangeCounts exchanged = exchange_->counts();
    OptimizerCounts counts = counts_;
    counts.entries = exchanged.entries;
    counts.sum_entries = exchanged.sum_entries;
    counts.residual_norm = exchanged.residual_norm;
    counts.bytes_sent = exchanged.bytes_sent;
    counts.bytes_received = exchanged.bytes_received;
    counts.session = exchanged.session;
    if (snapshots_) {
      const ExchangeCounts of_snapshots = snapshots_->counts();
      counts.bytes_sent += of_snapshots.bytes_sent;
      counts.bytes_received += of_snapshots.bytes_received;
    }
    return counts;
  }

  void begin_epoch(uint32_t epoch) override {
    const size_t rows = setup_.data.rows();
    if (options_.order == RowOrder::kShuffled) {
      order_ = epoch_order(rows, options_.job.seed, setup_.group.rank(), epoch);
    } else {
      order_.resize(rows);
      std::iota(order_.begin(), order_.end(), 0U);
    }
  }

  Status start(uint64_t step) override {
    if (snapshots_ && step % snapshot_every() == 0) {
      if (Status status = take_snapshot(); !status) return status;
    }
    const TimeNs begin = monotonic_now_ns();
    const uint64_t at = step % steps_per_epoch_;
    uint64_t rows_of_all = 0;
    for (const uint64_t rows : setup_.rank_rows) rows_of_all += rows_at(rows, at).end - rows_at(rows, at).begin;
    const PartOfRange mine = rows_at(order_.size(), at);
    const auto rows = std::span(order_).subspan(mine.begin, mine.end - mine.begin);
    const double rate = form_.rate == RateIn::kGradient ? rate_of(step) : 1;
    const double weight = rate * setup_.group.size() / static_cast<double>(std::max<uint64_t>(rows_of_all, 1));
    Stream gradient = weighted_gradient(setup_.threads, model_, setup_.data, rows, weight).gradient;
    if (snapshots_) {
      const LinearModel& snapshot = snapshots_->reduction().snapshot();
      gradient = VarianceReduction::difference(
          gradient, weighted_gradient(setup_.threads, snapshot, setup_.data, rows, weight).gradient);
    }
    if (Status status = exchange_->start(step, std::move(gradient)); !status) return status;
    steps_in_flight_.push_back(step);
    ++counts_.steps;
    counts_.compute_s += gradient_descent_seconds_since(begin);
    return {};
  }

  Status finish_oldest() override {
    const TimeNs begin = monotonic_now_ns();
    const Result<StepSum> sum = exchange_->finish_oldest();
    counts_.waiting_s += gradient_descent_seconds_since(begin);
    if (!sum) return std::unexpected(sum.error());
    const TimeNs applied = monotonic_now_ns();
    monitoring::SpanTimer timer(setup_.spans);
    const uint64_t step = steps_in_flight_.front();
    const double rate = rate_of(step);
    steps_in_flight_.pop_front();
    Status status;
    if (form_.rule == Optimizer::kSgd) {
      subtract(*sum, rate);
    } else {
      status = apply_rule(*sum, rate);
    }
    timer.end({.step = step, .name = monitoring::SpanName::kApply, .unit_kind = monitoring::SpanUnit::kTensor});
    counts_.compute_s += gradient_descent_seconds_since(applied);
    return status;
  }

 private:
  uint64_t snapshot_every() const { return options_.snapshot_every > 0 ? options_.snapshot_every : steps_per_epoch_; }

  Status take_snapshot() {
    while (in_flight() > 0) {
      if (Status status = finish_oldest(); !status) return status;
    }
    const TimeNs begin = monotonic_now_ns();
    const Status status = snapshots_->take(model_);
    counts_.compute_s += gradient_descent_seconds_since(begin);
    return status;
  }

  /// Returns a step's rows, of a rank with `rows` rows: an epoch's steps have equal parts of them.
  PartOfRange rows_at(size_t rows, uint64_t at) const {
    return {rows * at / steps_per_epoch_, rows * (at + 1) / steps_per_epoch_};
  }

  double rate_of(uint64_t step) const {
    return options_.schedule.at(static_cast<double>(step) / static_cast<double>(steps_per_epoch_));
  }

  /// w = (1 - rate l2) w - rate mean, the intercept unshrunk; the rate may be in the sum. The shrinking is one
  /// multiplication of the common scale (LinearModel), which goes into the values before f32 has no room for them.
  void subtract(const StepSum& sum, double rate) {
    const std::span<float> values = model_.values();
    if (options_.l2 > 0) {
      const auto before = static_cast<double>(model_.scale());
      model_.set_scale(static_cast<float>(before * (1 - rate * options_.l2)));
      values.back() =
          static_cast<float>(static_cast<double>(values.back()) * before / static_cast<double>(model_.scale()));
      constexpr float kScaleMin = 0x1p-40F;
      if (model_.scale() < kScaleMin) {
        for (float& value : values) value *= model_.scale();
        model_.set_scale(1);
      }
    }
    const double factor = form_.rate == RateIn::kGradient ? 1 : rate;
    const double by = -factor / static_cast<double>(model_.scale());
    add_scaled(values, sum.sum.view, static_cast<float>(by / sum.denominator));
    if (snapshots_) snapshots_->reduction().add_full(values, by);
  }

  /// All weights are gone over as it is: they are shrunk one by one.
  Status apply_rule(const StepSum& sum, double rate) {
    if (options_.l2 > 0) {
      const auto shrinking = static_cast<float>(1 - rate * options_.l2);
      for (float& value : model_.values().first(model_.dimension())) value *= shrinking;
    }
    rule_.rate = rate;
    OptimizerArrays arrays{model_.values(), {}};
    for (size_t at = 0; at < states_.size(); ++at) arrays.states[at] = states_[at];
    return optimize_dense(rule_, arrays, sum.sum.view, sum.denominator, applied_++);
  }

  OptimizerSetup setup_;
  const OptimizerOptions& options_;
  DescentForm form_;
  OptimizerSpec rule_;
  LinearModel model_;
  std::array<std::vector<float>, kOptimizerStatesMax> states_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<Snapshots> snapshots_;  ///< SVRG's; else none
  uint64_t steps_per_epoch_ = 1;
  uint64_t applied_ = 0;
  std::vector<uint32_t> order_;
  std::deque<uint64_t> steps_in_flight_;
  OptimizerCounts counts_;
};

}  // namespace

Status check_gradient_descent(const OptimizerOptions& options, const DescentForm& form) {
  if (options.schedule.rate * options.l2 >= 1) {
    return fail(ErrorCode::kInvalidArgument, "a rate of " + std::to_string(options.schedule.rate) + " times an l2 of " +
                                                 std::to_string(options.l2) +
                                                 " is 1 or more: a step would turn the weights round");
  }
  const std::string name(form.name);
  if (options.allgather != AllgatherForm::kSparse) {
    return fail(ErrorCode::kInvalidArgument,
                name + " adds gradients and gathers nothing: --allgather is of --optimizer scd");
  }
  if (has_momentum(options) && form.before != BeforeExchange::kMomentumAndClipping) {
    return fail(ErrorCode::kInvalidArgument, name + " has no --momentum before gradients are summed: rgc has");
  }
  if (options.job.contributions.clip != 0 && form.before == BeforeExchange::kNothing) {
    return fail(ErrorCode::kInvalidArgument,
                name + " has no --clip: its sums have the rate in them; rgc, momentum and adam clip");
  }
  if (form.rule != Optimizer::kSgd) {
    if (Status status = validate(rule_of(options, form.rule)); !status) return status;
  }
  if (form.gradient == GradientOf::kDifference) {
    if (Status status = check_exchange(snapshot_options(options)); !status) return status;
  } else if (options.snapshot_every != 0) {
    return fail(ErrorCode::kInvalidArgument, name + " takes no snapshots: --snapshot-every is of --optimizer svrg");
  }
  return check_exchange(options);
}

Result<std::unique_ptr<PeerOptimizer>> make_gradient_descent(const OptimizerSetup& setup, const DescentForm& form) {
  auto exchange = make_exchange({setup.group, setup.data.dimension + 1, setup.on_update, setup.spans}, setup.options);
  if (!exchange) return std::unexpected(exchange.error());
  std::unique_ptr<Snapshots> snapshots;
  if (form.gradient == GradientOf::kDifference) {
    auto made = Snapshots::make(setup);
    if (!made) return std::unexpected(made.error());
    snapshots = std::move(*made);
  }
  return std::make_unique<GradientDescent>(setup, form, std::move(*exchange), std::move(snapshots));
}

}  // namespace millrace::training
