#include <cmath>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/accumulate/add_and_collect.h"
#include "kernels/base/hash.h"
#include "kernels/stream/stream.h"
#include "protocol/job/step_sends.h"
#include "worker/config/option_access.h"
#include "worker/config/option_text.h"
#include "worker/config/selection_text.h"
#include "worker/core/residual/local_clip.h"
#include "worker/core/residual/momentum.h"
#include "worker/training/exchange/error_feedback.h"
#include "worker/training/exchange/exchange.h"
#include "worker/training/exchange/group_agreement.h"
#include "worker/training/exchange/peer_grid.h"

/// Sums among the ranks themselves, by an allreduce of the registry: clipping, momentum, error feedback around it.
namespace millrace::training {
namespace {

using monitoring::SpanName;
using peer::AlgorithmInfo;
using peer::AllreduceSettings;

bool selects_globally(const AlgorithmInfo& info) {
  return info.selects || info.result == peer::ResultKind::kGlobalTopk;
}

AllreduceSettings settings_of(const OptimizerOptions& options, uint64_t dimension) {
  AllreduceSettings settings;
  settings.dimension = dimension;
  if (selects_globally(peer::algorithm_info(options.algorithm))) settings.k = k_of(select_of(options), dimension);
  settings.wire.contribution = codec_of(options);
  if (settings.wire.contribution) settings.wire.sums = peer::lossless_of(*settings.wire.contribution);
  settings.wire.random = RandomKey::from(options.job.seed);
  settings.dense_quantizer = options.quantizer;
  settings.thresholds_period = options.thresholds_period;
  settings.boundaries_period = options.boundaries_period;
  settings.boundaries = options.boundaries;
  return settings;
}

/// The settings of uncompressed steps: no codec changes a value.
AllreduceSettings exact_settings_of(const OptimizerOptions& options, uint64_t dimension) {
  OptimizerOptions exact = options;
  if (const auto codec = codec_of(options)) exact.job.codec_up = OptionAccess::codec_of(without_loss(*codec));
  exact.quantizer.reset();
  return settings_of(exact, dimension);
}

/// What LocalClip looks at in a job: one tensor, as many workers as ranks, and how their contributions are combined.
protocol::JobSpec clipping_of(const OptimizerOptions& options, uint32_t ranks) {
  protocol::JobSpec spec;
  spec.workers = ranks;
  spec.clip = options.job.contributions.clip;
  spec.combine = options.job.updates.combine;
  spec.tensors.resize(1);
  return spec;
}

/// Returns the entries of `stream` that did not return as a whole: a whole return means that nothing was applied.
SharedStream without_returned(const StreamView& stream, const StreamView& returned) {
  Stream out = Stream::empty(stream.dimension);
  size_t back = 0;
  for (size_t at = 0; at < stream.values.size(); ++at) {
    const auto index = stream.dense ? static_cast<uint32_t>(at) : stream.indices[at];
    while (back < returned.indices.size() && returned.indices[back] < index) ++back;
    const bool is_back = back < returned.indices.size() && returned.indices[back] == index;
    if (stream.values[at] == 0 || (is_back && returned.values[back] == stream.values[at])) continue;
    out.indices.push_back(index);
    out.values.push_back(stream.values[at]);
  }
  return SharedStream::from(std::move(out));
}

class PeerExchange final : public TimedExchange {
 public:
  PeerExchange(const ExchangeSetup& setup, const OptimizerOptions& options, ErrorFeedback feedback)
      : setup_(setup),
        select_(select_of(options)),
        usual_{settings_of(options, setup.dimension), {}},
        exact_{exact_settings_of(options, setup.dimension), {}},
        clip_(clipping_of(options, setup.group.size())),
        masked_(momentum_of(options).masked),
        unbiased_(options.job.contributions.unbiased),
        update_(reselects(options) ? protocol::UpdateCarries::kReselected : protocol::UpdateCarries::kWholeSum),
        feedback_(std::move(feedback)) {
    const protocol::MomentumSpec momentum = momentum_of(options);
    if (momentum.momentum != protocol::Momentum::kNone) velocity_.emplace(momentum, setup.dimension);
  }
  // Allreduces in flight read this object.
  ~PeerExchange() override {
    if (in_flight_.empty() || setup_.group.failure()) return;
    static_cast<void>(end_group(setup_.group, {ErrorCode::kUnavailable, "it gave up with steps in flight"}));
  }

  /// Reproducible: from now on contributions are on the grid.
  Status round_to(const OptimizerOptions& options) {
    auto grid = PeerGrid::make(options, setup_.dimension, setup_.group.size());
    if (!grid) return std::unexpected(grid.error());
    grid_.emplace(std::move(*grid));
    return {};
  }

  /// Each allreduce has one run at a time, and keeps its state between runs; steps take them in turn.
  Status add_allreduces(const OptimizerOptions& options) {
    for (Allreduces* const of_steps : {&usual_, &exact_}) {
      if (of_steps == &exact_ && !protocol::sends_uncompressed(select_, setup_.dimension)) break;
      for (uint32_t at = 0; at <= staleness_of(options); ++at) {
        auto allreduce = peer::make_allreduce(options.algorithm, of_steps->settings);
        if (!allreduce) return std::unexpected(allreduce.error());
        of_steps->each.push_back(std::move(*allreduce));
      }
    }
    return {};
  }

  Status start(uint64_t number, Stream&& gradient) override {
    const uint64_t step = begin(number);
    monitoring::SpanTimer timer(setup_.spans);
    return send(step, contribution(step, std::move(gradient)), timer);
  }

  Result<uint64_t> start_from(uint64_t number, std::span<const float> gradient) override {
    const Error not_finite{ErrorCode::kNonFinite, "the gradient has NaN or infinity: nothing of it is sent"};
    const bool is_sent_whole = !velocity_ && feedback_.is_whole(steps_before_ + number);
    if (clip_.on() || is_sent_whole) {
      Buffer<float> copied(gradient.size());
      if (!copy_finite(gradient.data(), copied)) return std::unexpected(not_finite);
      const Status started = start(number, {setup_.dimension, true, {}, std::move(copied)});
      return started ? Result<uint64_t>(gradient.size_bytes()) : std::unexpected(started.error());
    }
    if (!all_finite_on_threads(gradient)) return std::unexpected(not_finite);
    const uint64_t step = begin(number);
    monitoring::SpanTimer timer(setup_.spans);
    const StreamView entering{setup_.dimension, true, {}, gradient};
    const Status started = send(step,
                                velocity_ ? feedback_.contribution(velocity_->enter(gradient), step)
                                          : feedback_.contribution_of(entering, step),
                                timer);
    return started ? Result<uint64_t>(0) : std::unexpected(started.error());
  }

  Result<StepSum> finish_oldest() override {
    InFlight oldest = std::move(in_flight_.front());
    in_flight_.pop_front();
    monitoring::SpanTimer timer(setup_.spans);
    auto reduced = oldest.pending.wait();
    if (!reduced) return std::unexpected(reduced.error());
    timer.end(setup_.span_of(oldest.step, SpanName::kExchange));
    StepSum sum = grid_ ? finish_on_grid(oldest, std::move(reduced->sum)) : finish(oldest, std::move(*reduced));
    sum.step = oldest.step;
    timer.end(setup_.span_of(oldest.step, SpanName::kApply));
    return sum;
  }

  bool wait_for_oldest(TimeNs at_most) override {
    monitoring::SpanTimer timer(setup_.spans);
    const bool is_there = in_flight_.front().pending.wait_for(at_most);
    timer.end(setup_.span_of(in_flight_.front().step, SpanName::kExchange));
    return is_there;
  }

  size_t in_flight() const override { return in_flight_.size(); }
  ExchangeCounts counts() const override {
    return {.entries = entries_,
            .sum_entries = sum_entries_,
            .residual_norm = std::sqrt(worker::squared_norm_of(feedback_.residual()))};
  }
  Result<Stream> take_residual() override { return feedback_.take_residual(); }
  Stream take_velocity() override {
    return velocity_ ? velocity_->take(0, setup_.dimension) : Stream::empty(setup_.dimension);
  }
  Status restore(const StreamView& residual, const StreamView& velocity) override {
    if (velocity.count() > 0 && !velocity_)
      return fail(ErrorCode::kInvalidArgument, "there is no momentum: no velocity can be restored");
    if (velocity.count() > 0) {
      if (auto added = velocity_->add(velocity); !added) return added;
    }
    feedback_.give_back(residual);
    return {};
  }
  Status end() override { return {}; }

  Retained retained() const override {
    Retained out{settings_digest(), steps_};
    append_list(out, feedback_.retained());
    for (const Allreduces* const of_steps : {&usual_, &exact_}) {
      for (const auto& allreduce : of_steps->each) append_list(out, allreduce->retained());
    }
    append_list(out, grid_ ? grid_->retained() : Retained{});
    return out;
  }

  Result<bool> restore_retained(std::span<const uint64_t> retained) override {
    constexpr uint64_t kStepsMax = uint64_t{1} << 62;
    if (retained.empty() || retained.front() != settings_digest()) return false;
    RetainedReader reader(retained.subspan(1));
    const uint64_t steps = reader.next(0, kStepsMax);
    if (Status status = feedback_.restore_retained(reader.list()); !status) return std::unexpected(status.error());
    for (Allreduces* const of_steps : {&usual_, &exact_}) {
      for (const auto& allreduce : of_steps->each) {
        if (Status status = allreduce->restore_retained(reader.list()); !status) return std::unexpected(status.error());
      }
    }
    const std::span<const uint64_t> of_grid = reader.list();
    const Status restored = grid_ ? grid_->restore_retained(of_grid, setup_.dimension) : RetainedReader(of_grid).end();
    if (!restored) return std::unexpected(restored.error());
    if (Status status = reader.end(); !status) return std::unexpected(status.error());
    steps_before_ += steps - steps_;
    steps_ = steps;
    return true;
  }

 private:
  struct Allreduces {
    AllreduceSettings settings;
    std::vector<std::unique_ptr<peer::Allreduce>> each;
  };
  struct InFlight {
    peer::Pending<peer::Reduced> pending;
    SharedStream own;
    bool masks = false;  ///< the velocity of the entries that were handed over ends
    uint64_t step = 0;
  };

  /// Counts the step with this number, and returns its place in the whole job.
  uint64_t begin(uint64_t number) {
    const uint64_t step = steps_before_ + number;
    steps_ = step + 1;
    return step;
  }

  /// Starts the sum of the step's contribution, which returns to the residual where that fails.
  Status send(uint64_t step, Result<SharedStream>&& own, monitoring::SpanTimer& timer) {
    if (!own) return end_group(setup_.group, own.error());
    const SharedStream taken = *own;
    if (grid_) *own = grid_->round(taken);
    timer.end(setup_.span_of(step, SpanName::kSelect));
    const protocol::StepSends sends = protocol::step_sends(select_, setup_.dimension, step);
    const Allreduces& of_step = sends == protocol::StepSends::kUncompressed ? exact_ : usual_;
    peer::Contribution given(*own, rest_beside(of_step.settings));
    // Ranks with different grids would go on to different updates, and no later step would tell.
    const std::string state = grid_ ? " grid=" + std::to_string(grid_->digest()) : std::string();
    peer::Allreduce& allreduce = *of_step.each[step % of_step.each.size()];
    auto pending = setup_.group.start_allreduce(allreduce, of_step.settings, std::move(given), state);
    if (!pending) {
      if (!unbiased_) feedback_.give_back(taken.view);
      return std::unexpected(pending.error());
    }
    timer.end(setup_.span_of(step, SpanName::kEncode));
    // Masks are for entries that arrive late (worker/core/residual/DESIGN.md). Without a rest no entry does.
    in_flight_.push_back(
        {std::move(*pending), std::move(*own), velocity_ && masked_ && keeps_remainder(sends, update_), step});
    return {};
  }

  StepSum finish(const InFlight& oldest, peer::Reduced&& reduced) {
    sum_entries_ += reduced.sum.view.count();
    feedback_.take_back(oldest.own, reduced);
    entries_ += keeps_largest() ? reduced.contributed.size() : oldest.own.view.count() + reduced.added.count();
    if (oldest.masks) mask(oldest.own, reduced);
    return StepSum{std::move(reduced.sum), static_cast<double>(setup_.group.size())};
  }

  StepSum finish_on_grid(const InFlight& oldest, SharedStream&& sum) {
    PeerGrid::Decided decided = grid_->decide(std::move(sum));
    sum_entries_ += decided.update.view.count();
    feedback_.give_back(decided.returned.view());
    entries_ += oldest.own.view.count();
    if (oldest.masks) velocity_->applied(0, oldest.own, decided.is_selected ? &decided.update : nullptr);
    return StepSum{std::move(decided.update), static_cast<double>(setup_.group.size())};
  }

  Result<SharedStream> contribution(uint64_t step, Stream&& gradient) {
    if (clip_.on()) {
      clip_.pushed(pushes_, 0, worker::squared_norm_of(gradient.values));
      const float factor = clip_.factor(pushes_);
      clip_.taken(pushes_++, 1);
      worker::scale(gradient, factor);
    }
    if (velocity_) {
      if (!all_finite_on_threads(gradient.values)) return fail(ErrorCode::kNonFinite, "a gradient has NaN or infinity");
      gradient = velocity_->enter(std::move(gradient));
    }
    return feedback_.contribution(std::move(gradient), step);
  }

  /// Returns the values for the entries that the contribution's index codec adds, where it sends more than the selected
  /// ones.
  SharedStream rest_beside(const peer::AllreduceSettings& settings) const {
    // Algorithms that select fill from `own`; those that send dense vectors use no codec.
    const peer::AlgorithmInfo& info = usual_.each.front()->info();
    if (!fills_from_rest(settings.wire) || keeps_largest() || info.dense_only) return {};
    return feedback_.rest();
  }

  /// Returns what all ranks of both exchanges must have alike, for one to continue the other's state.
  uint64_t settings_digest() const {
    const peer::AlgorithmId algorithm = usual_.each.front()->info().id;
    std::string text = peer::description_of(algorithm, usual_.settings) + ' ' + worker::selection_text(select_);
    text += " ranks=" + std::to_string(setup_.group.size());
    text += usual_.each.size() == 1 ? "" : " steps=" + std::to_string(usual_.each.size());
    if (grid_) text += " grid " + grid_->text();
    return hash64(text);
  }

  bool keeps_largest() const { return usual_.each.front()->info().result == peer::ResultKind::kGlobalTopk; }

  /// Ends the velocity of the sent entries that were handed over, those that the index codec added included.
  void mask(const SharedStream& own, const peer::Reduced& reduced) {
    if (!keeps_largest()) {
      const StreamView returned = reduced.returned.view();
      const bool all_went = returned.count() == 0;
      velocity_->applied(0, all_went ? own : without_returned(own.view, returned), nullptr);
      velocity_->applied(0, without_returned(reduced.added.view(), returned), nullptr);
      return;
    }
    Stream carried = Stream::empty(setup_.dimension);
    carried.indices = reduced.contributed;
    carried.values.assign(carried.indices.size(), 1.0F);
    const auto held = SharedStream::from(std::move(carried));
    velocity_->applied(0, own, &held);
  }

  ExchangeSetup setup_;
  SelectionSpec select_;
  Allreduces usual_;
  Allreduces exact_;  ///< for uncompressed steps
  worker::LocalClip clip_;
  uint64_t pushes_ = 0;
  uint64_t steps_ = 0;         ///< started, with those of the exchange whose state was restored
  uint64_t steps_before_ = 0;  ///< of that exchange; wraps around where this one has made more
  std::optional<worker::Velocity> velocity_;
  bool masked_;
  bool unbiased_;
  protocol::UpdateCarries update_;
  ErrorFeedback feedback_;
  std::optional<PeerGrid> grid_;  ///< reproducible
  std::deque<InFlight> in_flight_;
  uint64_t entries_ = 0;
  uint64_t sum_entries_ = 0;
};

/// Refuses a codec whose decoded values are not the encoded ones in expectation.
Status check_unbiased_codec(const std::string& flag, const std::optional<CodecSpec>& codec) {
  if (!codec) return {};
  const ValueCodec* values = find_value_codec(codec->value);
  if (values != nullptr && !values->unbiased(*codec)) {
    return fail(
        ErrorCode::kInvalidArgument,
        flag + ' ' + codec_text(*codec) +
            " rounds with a bias, and --unbiased sends the gradient in expectation: take qsgd4 or terngrad for the "
            "values");
  }
  const IndexCodec* indices = find_index_codec(codec->index);
  if (indices != nullptr && !indices->lossless()) {
    return fail(ErrorCode::kInvalidArgument,
                flag + ' ' + codec_text(*codec) +
                    " sends entries that --unbiased did not draw, and does not scale them: "
                    "take gap for its indices");
  }
  return {};
}

/// Refuses what needs a residual, or is biased, as protocol/job/job_spec_validate.cc does for jobs over servers.
/// ErrorFeedback::make() checks the selection.
Status check_peer_unbiased(const OptimizerOptions& options) {
  const AlgorithmInfo& info = peer::algorithm_info(options.algorithm);
  if (selects_globally(info)) {
    return fail(
        ErrorCode::kInvalidArgument,
        std::string(info.name) +
            " keeps the largest entries and returns the rest, and --unbiased keeps no residual to return it to: "
            "take an algorithm with exact sums, as ssar_split_allgather");
  }
  if (options.job.guarantees.reproducible) {
    return fail(ErrorCode::kInvalidArgument,
                "--reproducible keeps the rounding error of the grid, and --unbiased keeps nothing: leave one out");
  }
  const protocol::MomentumSpec momentum = momentum_of(options);
  if (momentum.momentum != protocol::Momentum::kNone && momentum.masked) {
    return fail(ErrorCode::kInvalidArgument,
                "--momentum " + worker::momentum_text(momentum) +
                    " ends for drawn entries, so that --unbiased would not send the momentum in expectation: add "
                    ":unmasked, or take --momentum none");
  }
  if (Status status = check_unbiased_codec("--codec-up", codec_of(options)); !status) return status;
  return check_unbiased_codec("--quantizer", options.quantizer);
}

/// Refuses the numbers that a job over servers refuses (protocol/job/job_spec_validate.cc).
Status check_peer_numbers(const OptimizerOptions& options) {
  const protocol::MomentumSpec momentum = momentum_of(options);
  if (momentum.momentum != protocol::Momentum::kNone && !(momentum.factor > 0 && momentum.factor < 1)) {
    return fail(ErrorCode::kInvalidArgument,
                "--momentum " + worker::momentum_text(momentum) + ": the factor is not in (0, 1)");
  }
  const double clip = options.job.contributions.clip;
  if (std::isfinite(clip) && clip >= 0) return {};
  return fail(ErrorCode::kInvalidArgument, "--clip is an L2 norm: a finite number, 0 or more; 0 does not clip");
}

}  // namespace

Status check_peer_exchange(const OptimizerOptions& options) {
  const AlgorithmInfo& info = peer::algorithm_info(options.algorithm);
  const SelectionSpec select = select_of(options);
  const bool plain =
      select.selection == SelectionId::kTopK && !select.alternate_signs && select.warm_up == WarmUp::kNone;
  if (options.job.contributions.unbiased) {
    if (Status status = check_peer_unbiased(options); !status) return status;
  }
  if (selects_globally(info) && !plain) {
    return fail(ErrorCode::kInvalidArgument, std::string(info.name) +
                                                 " keeps the largest entries by itself: say how many "
                                                 "with --select topk:DENSITY or topk:COUNT");
  }
  if (const auto codec = codec_of(options); codec && codec->automatic) {
    return fail(ErrorCode::kInvalidArgument, "--codec-up: peers have no automatic codec (--path server has): name one");
  }
  constexpr uint64_t kAnyDimension = 1 << 20;
  if (Status status = check_peer_grid(options, kAnyDimension); !status) return status;
  if (const auto made = peer::make_allreduce(options.algorithm, settings_of(options, kAnyDimension)); !made) {
    return std::unexpected(made.error());
  }
  if (const Status valid = check_peer_numbers(options); !valid) return valid;
  // Of any dimension: whether the selection is one at all.
  ErrorFeedbackOptions feedback;
  feedback.dimension = 1;
  if (!selects_globally(info)) feedback.select = select_of(options);
  feedback.unbiased = options.job.contributions.unbiased;
  const auto made = ErrorFeedback::make(feedback);
  return made ? Status{} : std::unexpected(made.error());
}

Result<std::unique_ptr<TimedExchange>> make_peer_exchange(const ExchangeSetup& setup, const OptimizerOptions& options) {
  const AlgorithmInfo& info = peer::algorithm_info(options.algorithm);
  ErrorFeedbackOptions feedback;
  feedback.dimension = setup.dimension;
  if (!selects_globally(info)) feedback.select = select_of(options);
  feedback.seed = options.job.seed;
  feedback.rank = setup.group.rank();
  feedback.unbiased = options.job.contributions.unbiased;
  feedback.result = info.result;
  feedback.codec_error = codec_error_of(options);
  auto made = ErrorFeedback::make(feedback);
  if (!made) return std::unexpected(made.error());
  auto exchange = std::make_unique<PeerExchange>(setup, options, std::move(*made));
  if (options.job.guarantees.reproducible) {
    if (Status status = check_peer_grid(options, setup.dimension); !status) return std::unexpected(status.error());
    if (Status status = exchange->round_to(options); !status) return std::unexpected(status.error());
  }
  if (Status status = exchange->add_allreduces(options); !status) return std::unexpected(status.error());
  return exchange;
}

}  // namespace millrace::training
