#include <algorithm>
#include <deque>
#include <limits>
#include <string>
#include <utility>

#include "kernels/base/clock.h"
#include "worker/peer/collectives/reduce_scatter.h"
#include "worker/peer/group/group_gather.h"
#include "worker/training/data/epoch_order.h"
#include "worker/training/data/feature_columns.h"
#include "worker/training/exchange/group_agreement.h"
#include "worker/training/optimizers/coordinate_exchange.h"
#include "worker/training/optimizers/optimizer.h"

/// Stochastic coordinate descent: the features that occur are divided into blocks of consecutive ones, a block a rank.
/// In a step each owner takes some of its own at random, none twice in an epoch. It changes each by its exact partial
/// derivative over all ranks' rows, over a bound of its curvature.
///
/// Step     of coordinate j: rate (dF/dw_j) / (beta L_j), L_j = c sum_i x_ij^2 / rows + l2. Here c is the largest
///          curvature of the loss: 1/4 for lr, 2 for the squared hinge. beta makes it safe that several coordinates
///          change at once, those in flight among them: with rate 1 the objective decreases in expectation.
/// Source   [SparCML19, 8.2]; [Wright15], which it cites (block coordinate descent). beta: [RichtarikTakac16] (tau-nice
///          sampling). The squared hinge by such steps: [Chang08].
namespace millrace::training {
namespace {

double coordinate_descent_seconds_since(TimeNs begin) {
  return static_cast<double>(monotonic_now_ns() - begin) / static_cast<double>(kNsPerS);
}

Status check_descent(const OptimizerOptions& options) {
  if (options.loss == Loss::kHinge) {
    return fail(ErrorCode::kInvalidArgument,
                "scd trains lr and l2svm: svm's hinge has corners, where coordinate descent stays (--model l2svm)");
  }
  if (options.path == ExchangePath::kServers) {
    return fail(ErrorCode::kInvalidArgument,
                "scd gathers the changes of all ranks, which servers cannot: it has --path peers alone");
  }
  // auto: what --path auto sets where no algorithm was given.
  if (options.algorithm != OptimizerOptions().algorithm && options.algorithm != peer::AlgorithmId::kAuto) {
    return fail(ErrorCode::kInvalidArgument, "scd gathers changes and sums no gradients: it has no --algorithm");
  }
  if (const auto codec = codec_of(options); codec && codec->automatic) {
    return fail(ErrorCode::kInvalidArgument, "--codec-up: peers have no automatic codec (--path server has): name one");
  }
  if (has_momentum(options) || options.job.contributions.clip != 0) {
    return fail(ErrorCode::kInvalidArgument, "scd changes weights by themselves: no --momentum and no --clip");
  }
  if (options.job.guarantees.reproducible || reselects(options)) {
    return fail(ErrorCode::kInvalidArgument,
                "scd gathers changes and adds no gradients: it has no --reproducible and no --reselect");
  }
  if (options.snapshot_every != 0) {
    return fail(ErrorCode::kInvalidArgument, "scd takes no snapshots: --snapshot-every is of --optimizer svrg");
  }
  if (options.allgather == AllgatherForm::kDense && codec_of(options)) {
    return fail(ErrorCode::kInvalidArgument, "--allgather dense sends slices as they are: leave --codec-up out");
  }
  if (options.job.contributions.unbiased) {
    return fail(ErrorCode::kInvalidArgument, "scd draws nothing and sends every changed coordinate: no --unbiased");
  }
  if (select_of(options).selection != SelectionId::kNone || options.quantizer) {
    return fail(ErrorCode::kInvalidArgument,
                "scd sends the coordinates that it changed, all of them: no --select and no --quantizer");
  }
  return {};
}

class CoordinateDescent final : public PeerOptimizer {
 public:
  explicit CoordinateDescent(const OptimizerSetup& setup)
      : setup_(setup), options_(setup.options), model_(options_.loss, setup.data.dimension) {
    model_.set_trained_on(setup.data.written_as());
  }
  CoordinateDescent(const CoordinateDescent&) = delete;
  CoordinateDescent& operator=(const CoordinateDescent&) = delete;
  ~CoordinateDescent() override {
    if (in_flight_.empty() || setup_.group.failure()) return;
    static_cast<void>(end_group(setup_.group, {ErrorCode::kUnavailable, "it gave up with steps in flight"}));
  }

  static Result<std::unique_ptr<PeerOptimizer>> make(const OptimizerSetup& setup) {
    auto descent = std::make_unique<CoordinateDescent>(setup);
    if (Status status = descent->prepare(); !status) return std::unexpected(status.error());
    return descent;
  }

  uint64_t steps_per_epoch() const override { return steps_per_epoch_; }
  size_t in_flight() const override { return in_flight_.size(); }
  const LinearModel& model() const override { return model_; }
  OptimizerCounts counts() const override { return counts_; }

  /// Draws the order of all blocks, which every rank must know, and computes the margins from the start: sums of
  /// changes drift.
  void begin_epoch(uint32_t epoch) override {
    order_.resize(setup_.group.size());
    for (uint32_t owner = 0; owner < order_.size(); ++owner) {
      order_[owner] = epoch_order(blocks().dimension(owner), options_.job.seed, owner, epoch);
      for (uint32_t& at : order_[owner]) at += static_cast<uint32_t>(blocks().begin(owner));
    }
    margins_.resize(setup_.data.rows());
    setup_.threads.run([this](uint32_t part) {
      const PartOfRange rows = part_of_range(margins_.size(), part, setup_.threads.count());
      for (size_t row = rows.begin; row < rows.end; ++row) margins_[row] = model_.margin(setup_.data.row(row));
    });
  }

  Status start(uint64_t step) override {
    const TimeNs begin = monotonic_now_ns();
    const uint64_t at = step % steps_per_epoch_;
    CoordinateStep exchanged;
    std::vector<uint32_t> own;
    for (uint32_t owner = 0; owner < setup_.group.size(); ++owner) {
      std::vector<uint32_t> columns = coordinates_of(owner, at);
      exchanged.partials.push_back(partials_of(columns));
      if (owner == setup_.group.rank()) own = std::move(columns);
    }
    const double rate = options_.schedule.at(static_cast<double>(step) / static_cast<double>(steps_per_epoch_));
    exchanged.changes = changes_of(own, rate);
    if (options_.allgather == AllgatherForm::kDense) exchanged.slices = slices();
    counts_.entries += own.size();
    ++counts_.steps;
    monitoring::SpanTimer timer(setup_.spans);
    auto pending = setup_.group.start<peer::Gathered>(
        std::string(options_.allgather == AllgatherForm::kDense ? "coordinate descent, dense slices, "
                                                                : "coordinate descent, ") +
            peer::description_of(exchange_),
        [step = std::move(exchanged), settings = exchange_](peer::Channel& channel) mutable {
          return exchange_coordinates(channel, std::move(step), settings);
        });
    if (!pending) return std::unexpected(pending.error());
    timer.end(span_of(step, monitoring::SpanName::kEncode));
    in_flight_.push_back(std::move(*pending));
    counts_.compute_s += coordinate_descent_seconds_since(begin);
    return {};
  }

  Status finish_oldest() override {
    const TimeNs begin = monotonic_now_ns();
    monitoring::SpanTimer timer(setup_.spans);
    const uint64_t step = counts_.steps - in_flight_.size();
    peer::Pending<peer::Gathered> oldest = std::move(in_flight_.front());
    in_flight_.pop_front();
    const auto gathered = oldest.wait();
    counts_.waiting_s += coordinate_descent_seconds_since(begin);
    if (!gathered) return std::unexpected(gathered.error());
    timer.end(span_of(step, monitoring::SpanName::kExchange));
    const TimeNs applied = monotonic_now_ns();
    for (const SharedStream& stream : gathered->streams) {
      if (Status status = apply(stream.view); !status) return end_group(setup_.group, status.error());
      counts_.sum_entries += stream.view.count();
    }
    timer.end(span_of(step, monitoring::SpanName::kApply));
    counts_.compute_s += coordinate_descent_seconds_since(applied);
    return {};
  }

 private:
  static monitoring::Span span_of(uint64_t step, monitoring::SpanName name) {
    return {.step = step, .name = name, .unit_kind = monitoring::SpanUnit::kTensor};
  }

  struct Change {
    size_t column = 0;
    double by = 0;
  };

  /// What all ranks' rows have: which features, their squares, and the longest row.
  Status prepare() {
    const Dataset& data = setup_.data;
    Stream squares = Stream::empty(data.dimension + 1);
    squares.indices = data.indices;
    // A square that is too small for f32 is none the less one of a feature that occurs.
    constexpr float kSquareMin = std::numeric_limits<float>::min();
    for (const float value : data.values) squares.values.push_back(std::max(value * value, kSquareMin));
    squares.indices.push_back(static_cast<uint32_t>(data.dimension));
    squares.values.push_back(static_cast<float>(data.rows()));
    auto own = coalesce(data.dimension + 1, squares.indices, squares.values);
    if (!own) return std::unexpected(own.error());
    peer::AllreduceSettings settings;
    settings.dimension = data.dimension + 1;
    auto sum = peer::make_allreduce(peer::AlgorithmId::kSsarSplitAllgather, settings);
    if (!sum) return std::unexpected(sum.error());
    auto pending = setup_.group.start_allreduce(**sum, settings, SharedStream::from(std::move(*own)));
    if (!pending) return std::unexpected(pending.error());
    const auto reduced = pending->wait();
    if (!reduced) return std::unexpected(reduced.error());
    uint64_t longest = 0;
    for (size_t row = 0; row < data.rows(); ++row)
      longest = std::max(longest, data.row_begin[row + 1] - data.row_begin[row]);
    const auto all = peer::gather<uint64_t>(setup_.group, "longest row", {longest});
    if (!all) return std::unexpected(all.error());
    prepare_coordinates(to_sparse(reduced->sum.view), *std::ranges::max_element(*all) + 1);
    return {};
  }

  void prepare_coordinates(const Stream& squares, uint64_t longest_row) {
    const auto rows = static_cast<double>(setup_.data.rows_in_file);
    const double curvature_max = loss_curvature_max(options_.loss);
    std::vector<uint32_t> features;
    for (size_t at = 0; at < squares.indices.size(); ++at) {
      const bool is_intercept = squares.indices[at] == setup_.data.dimension;
      features.push_back(squares.indices[at]);
      curvature_.push_back(curvature_max * static_cast<double>(squares.values[at]) / rows +
                           (is_intercept ? 0 : options_.l2));
    }
    columns_.emplace(setup_.data, std::move(features));
    uint64_t largest_block = 0;
    for (uint32_t owner = 0; owner < setup_.group.size(); ++owner) {
      largest_block = std::max(largest_block, blocks().dimension(owner));
    }
    const uint64_t a_step = options_.coordinates;
    steps_per_epoch_ = std::max<uint64_t>((largest_block + a_step - 1) / a_step, 1);
    const auto count = static_cast<double>(columns_->count());
    const double at_once = std::min(
        count, static_cast<double>(a_step) * setup_.group.size() * (static_cast<double>(staleness_of(options_)) + 1));
    safety_ = 1 + static_cast<double>(longest_row - 1) * (at_once - 1) / std::max(1.0, count - 1);
    exchange_.dimension = setup_.data.dimension + 1;
    exchange_.codec = codec_of(options_);
    exchange_.random = RandomKey::from(options_.job.seed);
  }

  peer::Slices blocks() const { return {columns_->count(), setup_.group.size()}; }

  /// Returns the slices of the whole model: an owner's slice begins with the first feature of its block.
  std::vector<uint64_t> slices() const {
    std::vector<uint64_t> bounds = {0};
    for (uint32_t owner = 1; owner < setup_.group.size(); ++owner) {
      const uint64_t first = blocks().begin(owner);
      bounds.push_back(first < columns_->count() ? columns_->feature(first) : exchange_.dimension);
    }
    bounds.push_back(exchange_.dimension);
    return bounds;
  }

  /// Of an owner, in a step of the epoch; ascending. An epoch's steps have equal parts of a block.
  std::vector<uint32_t> coordinates_of(uint32_t owner, uint64_t at) const {
    const std::vector<uint32_t>& order = order_[owner];
    const size_t begin = order.size() * at / steps_per_epoch_, end = order.size() * (at + 1) / steps_per_epoch_;
    std::vector<uint32_t> columns(order.begin() + static_cast<ptrdiff_t>(begin),
                                  order.begin() + static_cast<ptrdiff_t>(end));
    std::ranges::sort(columns);
    return columns;
  }

  /// This rank's rows' part of the mean loss's derivatives.
  std::vector<double> partials_of(const std::vector<uint32_t>& columns) {
    std::vector<double> partials(columns.size());
    setup_.threads.run([&](uint32_t part) {
      const PartOfRange mine = part_of_range(columns.size(), part, setup_.threads.count());
      for (size_t at = mine.begin; at < mine.end; ++at) {
        const FeatureColumns::Column column = columns_->column(columns[at]);
        double sum = 0;
        for (size_t entry = 0; entry < column.rows.size(); ++entry) {
          const uint32_t row = column.rows[entry];
          sum += loss_slope(options_.loss, setup_.data.labels[row], margins_[row]) *
                 static_cast<double>(column.values[entry]);
        }
        partials[at] = sum / static_cast<double>(setup_.data.rows_in_file);
      }
    });
    return partials;
  }

  /// How an owner changes these, with the weights as they are now: no step in flight has one of them.
  std::function<Stream(const std::vector<double>&)> changes_of(const std::vector<uint32_t>& columns,
                                                               double rate) const {
    Stream form = Stream::empty(exchange_.dimension);
    std::vector<double> shrinking, factors;
    for (const uint32_t column : columns) {
      const uint32_t feature = columns_->feature(column);
      form.indices.push_back(feature);
      shrinking.push_back(feature == model_.dimension() ? 0 : options_.l2 * model_.weight(feature));
      factors.push_back(-rate / (safety_ * curvature_[column]));
    }
    return [form = std::move(form), shrinking = std::move(shrinking),
            factors = std::move(factors)](const std::vector<double>& derivatives) {
      Stream changes = form;
      for (size_t at = 0; at < derivatives.size(); ++at) {
        changes.values.push_back(static_cast<float>(factors[at] * (derivatives[at] + shrinking[at])));
      }
      return changes;
    };
  }

  /// Errors   malformed: a feature that no rank has.
  Status apply(const StreamView& changes) {
    std::vector<Change> made;
    for (size_t at = 0; at < changes.values.size(); ++at) {
      const uint32_t feature = changes.dense ? static_cast<uint32_t>(at) : changes.indices[at];
      if (changes.values[at] == 0) continue;
      const size_t column = columns_->position_of(feature);
      if (column == columns_->count()) {
        return fail(ErrorCode::kMalformed, "a change of feature " + std::to_string(feature) + ", which no row has");
      }
      float& value = model_.values()[feature];
      const auto before = static_cast<double>(value);
      value += changes.values[at];
      made.push_back({column, static_cast<double>(value) - before});
    }
    setup_.threads.run([&](uint32_t part) {
      const PartOfRange mine = part_of_range(margins_.size(), part, setup_.threads.count());
      for (const Change& change : made) add_to_margins(change, mine);
    });
    return {};
  }

  void add_to_margins(const Change& change, PartOfRange rows) {
    const FeatureColumns::Column column = columns_->column(change.column);
    const auto first = std::ranges::lower_bound(column.rows, rows.begin);
    for (auto entry = static_cast<size_t>(first - column.rows.begin()); entry < column.rows.size(); ++entry) {
      const uint32_t row = column.rows[entry];
      if (row >= rows.end) return;
      margins_[row] += change.by * static_cast<double>(column.values[entry]);
    }
  }

  OptimizerSetup setup_;
  const OptimizerOptions& options_;
  LinearModel model_;
  std::optional<FeatureColumns> columns_;  ///< of this rank's rows; which there are is the same on all
  std::vector<double> curvature_;          ///< [columns] at most, over all ranks' rows
  double safety_ = 1;                      ///< beta
  uint64_t steps_per_epoch_ = 1;
  peer::SparseAllgatherSettings exchange_;
  std::vector<std::vector<uint32_t>> order_;  ///< by owner: its columns, as the epoch takes them
  std::vector<double> margins_;               ///< of this rank's rows
  std::deque<peer::Pending<peer::Gathered>> in_flight_;
  OptimizerCounts counts_;
};

}  // namespace

OptimizerInfo coordinate_descent_optimizer() {
  return {
      .name = "scd",
      .source = "[SparCML19, 8.2]",
      .summary = "stochastic coordinate descent: ranks own blocks of features, and gather their changes (lr, l2svm)",
      .make = &CoordinateDescent::make,
      .check = &check_descent};
}

}  // namespace millrace::training
