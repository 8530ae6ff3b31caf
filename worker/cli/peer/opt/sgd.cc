#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <string>
#include <utility>

#include "kernels/base/clock.h"
#include "kernels/reduce/reduce.h"
#include "worker/cli/epoch_order.h"
#include "worker/cli/peer/agree.h"
#include "worker/cli/peer/opt/batch_gradient.h"
#include "worker/cli/peer/opt/error_feedback.h"
#include "worker/cli/peer/opt/optimizer.h"

/// Mini-batch SGD: every rank contributes the rate times its share of the mean gradient over all ranks' batches, and all subtract
/// the sum. L2 is applied by each rank for itself and never sent, so that what is sent is as sparse as the data.
///
/// Weights  of every row of a step the same, also where ranks have fewer rows than others: one rank's steps are those of many.
/// Source   sparcml.txt, section 7 (MPI-OPT), 8.2; algorithm 1 where something is selected or quantized.
namespace millrace::cli {
namespace {

using peer::AlgorithmInfo;
using peer::AllreduceSettings;

double seconds_since(TimeNs begin) {
  return static_cast<double>(monotonic_now_ns() - begin) / static_cast<double>(kNsPerS);
}

bool is_lossy(const std::optional<CodecSpec>& codec) { return codec && *codec != peer::lossless_of(*codec); }

/// An error is fed back unless that would not end.
CodecError codec_error_of(const OptimizerOptions& options) {
  for (const auto& codec : {options.codec, options.quantizer}) {
    if (!is_lossy(codec)) continue;
    const ValueCodec* values = find_value_codec(codec->value);
    if (values != nullptr && !values->contraction(*codec)) return CodecError::kDropped;
  }
  return CodecError::kRetained;
}

bool selects_globally(const AlgorithmInfo& info) {
  return info.selects || info.result == peer::ResultKind::kGlobalTopk;
}

AllreduceSettings<float> settings_of(const OptimizerOptions& options, uint64_t dimension) {
  AllreduceSettings<float> settings;
  settings.dimension = dimension;
  if (selects_globally(peer::algorithm_info(options.algorithm))) settings.k = k_of(options.select, dimension);
  settings.wire.contribution = options.codec;
  if (options.codec) settings.wire.sums = peer::lossless_of(*options.codec);
  settings.wire.random = RandomKey::from(options.seed);
  settings.dense_quantizer = options.quantizer;
  return settings;
}

Status check_sgd(const OptimizerOptions& options) {
  if (options.schedule.rate * options.l2 >= 1) {
    return fail(ErrorCode::kInvalidArgument, "a rate of " + std::to_string(options.schedule.rate) + " times an l2 of " +
                                                 std::to_string(options.l2) +
                                                 " is 1 or more: a step would turn the weights round");
  }
  const AlgorithmInfo& info = peer::algorithm_info(options.algorithm);
  const SelectionSpec& select = options.select;
  const bool plain = select.selection == Selection::kTopK && !select.alternate_signs && select.warm_up == WarmUp::kNone;
  if (selects_globally(info) && !plain) {
    return fail(ErrorCode::kInvalidArgument, std::string(info.name) +
                                                 " keeps the largest entries by itself: say how many "
                                                 "with --select topk:DENSITY or topk:COUNT");
  }
  constexpr uint64_t kAnyDimension = 1 << 20;
  if (const auto made = peer::make_allreduce<float>(options.algorithm, settings_of(options, kAnyDimension)); !made) {
    return std::unexpected(made.error());
  }
  // Of any dimension: whether the selection is one at all.
  ErrorFeedbackOptions feedback;
  feedback.dimension = 1;
  if (!selects_globally(info)) feedback.select = options.select;
  const auto made = ErrorFeedback::make(feedback);
  return made ? Status{} : std::unexpected(made.error());
}

class Sgd final : public PeerOptimizer {
 public:
  Sgd(const OptimizerSetup& setup, ErrorFeedback feedback)
      : setup_(setup),
        options_(setup.options),
        settings_(settings_of(options_, setup.data.dimension + 1)),
        model_(options_.loss, setup.data.dimension),
        feedback_(std::move(feedback)) {
    const uint64_t most = *std::ranges::max_element(setup.rank_rows);
    steps_per_epoch_ = std::max<uint64_t>((most + options_.batch_rows - 1) / options_.batch_rows, 1);
  }

  Sgd(const Sgd&) = delete;
  Sgd& operator=(const Sgd&) = delete;
  // What is under way looks into the allreduces.
  ~Sgd() override {
    if (in_flight_.empty() || setup_.group.failure()) return;
    static_cast<void>(end_group(setup_.group, {ErrorCode::kUnavailable, "it gave up with steps in flight"}));
  }

  static Result<std::unique_ptr<PeerOptimizer>> make(const OptimizerSetup& setup) {
    const OptimizerOptions& options = setup.options;
    const AlgorithmInfo& info = peer::algorithm_info(options.algorithm);
    ErrorFeedbackOptions feedback;
    feedback.dimension = setup.data.dimension + 1;
    if (!selects_globally(info)) feedback.select = options.select;
    feedback.random = random_key(options.seed, setup.group.rank(), kDrawsOfSelection);
    feedback.result = info.result;
    feedback.codec_error = codec_error_of(options);
    auto made = ErrorFeedback::make(feedback);
    if (!made) return std::unexpected(made.error());
    auto sgd = std::make_unique<Sgd>(setup, std::move(*made));
    // Each has one run at a time, and keeps what it carries over; steps take them in turn.
    for (uint32_t at = 0; at <= options.asynchronous; ++at) {
      auto allreduce = peer::make_allreduce<float>(options.algorithm, sgd->settings_);
      if (!allreduce) return std::unexpected(allreduce.error());
      sgd->allreduces_.push_back(std::move(*allreduce));
    }
    return sgd;
  }

  uint64_t steps_per_epoch() const override { return steps_per_epoch_; }
  size_t in_flight() const override { return in_flight_.size(); }
  const LinearModel& model() const override { return model_; }
  const OptimizerCounts& counts() const override { return counts_; }

  void begin_epoch(uint32_t epoch) override {
    const size_t rows = setup_.data.rows();
    if (options_.order == RowOrder::kShuffled) {
      order_ = epoch_order(rows, options_.seed, setup_.group.rank(), epoch);
    } else {
      order_.resize(rows);
      std::iota(order_.begin(), order_.end(), 0U);
    }
  }

  Status start(uint64_t step) override {
    const TimeNs begin = monotonic_now_ns();
    const uint64_t at = step % steps_per_epoch_;
    uint64_t rows_of_all = 0;
    for (const uint64_t rows : setup_.rank_rows) rows_of_all += rows_at(rows, at).end - rows_at(rows, at).begin;
    const PartOfRange mine = rows_at(order_.size(), at);
    const auto rows = std::span(order_).subspan(mine.begin, mine.end - mine.begin);
    const double weight = rate_of(step) / static_cast<double>(std::max<uint64_t>(rows_of_all, 1));
    BatchGradient batch = weighted_gradient(setup_.threads, model_, setup_.data, rows, weight);
    auto own = feedback_.contribution(std::move(batch.gradient), step);
    if (!own) return end_group(setup_.group, own.error());
    counts_.entries += own->view.count();
    ++counts_.steps;
    peer::Allreduce<float>& allreduce = *allreduces_[step % allreduces_.size()];
    auto pending = setup_.group.start_allreduce(allreduce, settings_, *own);
    if (!pending) return std::unexpected(pending.error());
    in_flight_.push_back({std::move(*pending), std::move(*own), step});
    counts_.compute_s += seconds_since(begin);
    return {};
  }

  Status finish_oldest() override {
    const TimeNs begin = monotonic_now_ns();
    InFlight oldest = std::move(in_flight_.front());
    in_flight_.pop_front();
    const auto reduced = oldest.pending.wait();
    counts_.waiting_s += seconds_since(begin);
    if (!reduced) return std::unexpected(reduced.error());
    const TimeNs applied = monotonic_now_ns();
    feedback_.take_back(oldest.own, *reduced);
    apply(reduced->sum.view, rate_of(oldest.step));
    counts_.compute_s += seconds_since(applied);
    return {};
  }

 private:
  struct InFlight {
    peer::Pending<peer::Reduced<float>> pending;
    HeldStream<float> own;
    uint64_t step = 0;
  };
  static constexpr uint64_t kDrawsOfSelection = 0x73656c;

  /// Of a rank with so many rows, those of a step: an epoch's steps have equal parts of them.
  PartOfRange rows_at(size_t rows, uint64_t at) const {
    return {rows * at / steps_per_epoch_, rows * (at + 1) / steps_per_epoch_};
  }

  double rate_of(uint64_t step) const {
    return options_.schedule.at(static_cast<double>(step) / static_cast<double>(steps_per_epoch_));
  }

  /// w = (1 - rate l2) w - sum, the intercept unshrunk, where `sum` has the rate in it. The shrinking is one multiplication of
  /// the common scale (LinearModel), which goes into the values before f32 has no room for them.
  void apply(const StreamView<float>& sum, double rate) {
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
    add_scaled<float>(values, sum, -1 / model_.scale());
  }

  OptimizerSetup setup_;
  const OptimizerOptions& options_;
  AllreduceSettings<float> settings_;
  LinearModel model_;
  ErrorFeedback feedback_;
  uint64_t steps_per_epoch_ = 1;
  std::vector<uint32_t> order_;
  std::vector<std::unique_ptr<peer::Allreduce<float>>> allreduces_;
  std::deque<InFlight> in_flight_;
  OptimizerCounts counts_;
};

}  // namespace

OptimizerInfo sgd_optimizer() {
  return {.name = "sgd",
          .source = "sparcml.txt, sections 7 and 8.2",
          .summary = "mini-batch SGD: the sum of the ranks' gradients, by an allreduce",
          .make = &Sgd::make,
          .check = &check_sgd};
}

}  // namespace millrace::cli
