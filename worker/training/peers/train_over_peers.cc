#include "worker/training/peers/train_over_peers.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <string>
#include <utility>

#include "kernels/base/clock.h"
#include "kernels/base/hash.h"
#include "worker/peer/group/group_gather.h"
#include "worker/training/optimizers/batch_gradient.h"
#include "worker/training/peers/stop_agreement.h"

namespace millrace::training {

using peer::gather;

namespace {

uint64_t bits_of(const LinearModel& model) {
  const std::span<const float> values = model.values();
  const ByteSpan bytes(std::bit_cast<const uint8_t*>(values.data()), values.size_bytes());
  return hash64(bytes, std::bit_cast<uint32_t>(model.scale()));
}

/// |w|^2 without the intercept.
double squared_norm(const LinearModel& model) {
  double sum = 0;
  for (const float value : model.values().first(model.dimension())) {
    sum += static_cast<double>(value) * static_cast<double>(value);
  }
  return sum * static_cast<double>(model.scale()) * static_cast<double>(model.scale());
}

constexpr TimeNs kProgressEvery = kNsPerS;

class PeerRun {
 public:
  PeerRun(peer::PeerGroup& group, const Dataset& data, const Dataset* held_out, const PeerTrainOptions& options,
          const PeerTrainObserver& observer, const std::atomic<bool>& stop)
      : group_(group),
        data_(data),
        held_out_(held_out),
        options_(options),
        observer_(observer),
        stop_(stop),
        threads_(options.threads),
        agreement_(group) {}

  Status prepare() {
    const auto rows = gather<uint64_t>(group_, description_of(*options_.optimizer, options_.options), {data_.rows()});
    if (!rows) return std::unexpected(rows.error());
    rank_rows_ = *rows;
    auto made = options_.optimizer->make(
        {group_, threads_, data_, rank_rows_, options_.options, observer_.on_update, observer_.spans});
    if (!made) return std::unexpected(made.error());
    optimizer_ = std::move(*made);
    return {};
  }

  Result<PeerTrainResult> run() {
    std::vector<PeerEpoch> epochs;
    for (uint32_t epoch = 0; epoch < options_.epochs && !finished() && !interrupted_; ++epoch) {
      Result<PeerEpoch> report = one_epoch(epoch);
      if (!report) return std::unexpected(report.error());
      if (interrupted_) break;
      epochs.push_back(*report);
      if (observer_.on_epoch) observer_.on_epoch(*report);
    }
    if (!interrupted_) {
      if (Status status = optimizer_->end(); !status) return std::unexpected(status.error());
    }
    show_progress();
    return PeerTrainResult{optimizer_->model(), std::move(epochs), step_, interrupted_,
                           group_.traffic().messages_unexpected};
  }

 private:
  bool finished() const { return options_.steps_max > 0 && step_ >= options_.steps_max; }

  /// Returns the counts, with those of the group.
  OptimizerCounts counts() const {
    OptimizerCounts counts = optimizer_->counts();
    const peer::Traffic traffic = group_.traffic();
    counts.bytes_sent += traffic.bytes_sent;
    counts.bytes_received += traffic.bytes_received;
    return counts;
  }

  Status drain(size_t left) {
    while (optimizer_->in_flight() > left) {
      if (Status status = optimizer_->finish_oldest(); !status) return status;
      step_ended();
    }
    return {};
  }

  void step_ended() {
    const TimeNs now = monotonic_now_ns();
    const TimeNs took = now - began_.front();
    began_.pop_front();
    ++ended_;
    if (observer_.on_step) observer_.on_step(static_cast<double>(took) / static_cast<double>(kNsPerS));
    if (now < next_progress_) return;
    next_progress_ = now + kProgressEvery;
    show_progress();
  }

  void show_progress() const {
    if (!observer_.on_progress) return;
    const uint64_t bytes_a_step = sizeof(float) * optimizer_->model().tensor_dimension();
    observer_.on_progress({ended_, ended_ * bytes_a_step, optimizer_->counts(), group_.traffic()});
  }

  Result<PeerEpoch> one_epoch(uint32_t epoch) {
    PeerEpoch report;
    report.epoch = epoch + 1;
    const OptimizerCounts before = counts();
    const TimeNs begin = monotonic_now_ns();
    optimizer_->begin_epoch(epoch);
    for (uint64_t at = 0; at < optimizer_->steps_per_epoch() && !finished() && !interrupted_; ++at) {
      began_.push_back(monotonic_now_ns());
      if (Status status = optimizer_->start(step_); !status) return std::unexpected(status.error());
      ++step_;
      if (Status status = drain(staleness_of(options_.options)); !status) return std::unexpected(status.error());
      const Result<bool> stops = agreement_.ask(stop_);
      if (!stops) return std::unexpected(stops.error());
      interrupted_ = *stops;
    }
    if (Status status = drain(0); !status) return std::unexpected(status.error());
    if (interrupted_) return report;
    report.seconds = static_cast<double>(monotonic_now_ns() - begin) / static_cast<double>(kNsPerS);
    const OptimizerCounts now = counts();
    report.steps = now.steps - before.steps;
    report.compute_s = now.compute_s - before.compute_s;
    report.waiting_s = now.waiting_s - before.waiting_s;
    report.entries_mean =
        static_cast<double>(now.entries - before.entries) / static_cast<double>(std::max<uint64_t>(report.steps, 1));
    report.bytes_sum = now.bytes_sent - before.bytes_sent;
    report.received_sum = now.bytes_received - before.bytes_received;
    report.rate = options_.options.schedule.at(static_cast<double>(step_ - 1) /
                                               static_cast<double>(optimizer_->steps_per_epoch()));
    return share(report);
  }

  /// Combines the ranks' reports.
  Result<PeerEpoch> share(PeerEpoch report) {
    const std::vector<uint64_t> numbers = {bits_of(optimizer_->model()), report.bytes_sum, report.received_sum};
    const auto models = gather<uint64_t>(group_, "models", numbers);
    if (!models) return std::unexpected(models.error());
    report.bytes_sum = report.received_sum = 0;
    for (size_t at = 0; at < models->size(); at += numbers.size()) {
      if ((*models)[at] != (*models)[0]) {
        return fail(ErrorCode::kInternal, "after epoch " + std::to_string(report.epoch) + " rank " +
                                              std::to_string(at / numbers.size()) + " has another model than rank 0");
      }
      report.bytes_sum += (*models)[at + 1];
      report.bytes_max = std::max(report.bytes_max, (*models)[at + 1]);
      report.received_sum += (*models)[at + 2];
      report.received_max = std::max(report.received_max, (*models)[at + 2]);
    }
    const std::vector<double> own = {report.seconds, report.compute_s, report.waiting_s, report.entries_mean};
    const auto all = gather<double>(group_, "times", own);
    if (!all) return std::unexpected(all.error());
    report.compute_s = report.waiting_s = report.entries_mean = 0;
    for (size_t at = 0; at < all->size(); at += own.size()) {
      report.seconds = std::max(report.seconds, (*all)[at]);
      report.compute_s += (*all)[at + 1] / group_.size();
      report.waiting_s += (*all)[at + 2] / group_.size();
      report.entries_mean += (*all)[at + 3] / group_.size();
    }
    if (Status status = evaluate_on(data_, report.train); !status) return std::unexpected(status.error());
    report.objective = report.train.loss + options_.options.l2 / 2 * squared_norm(optimizer_->model());
    if (held_out_ != nullptr) {
      if (Status status = evaluate_on(*held_out_, report.held_out); !status) return std::unexpected(status.error());
    }
    return report;
  }

  /// Over the rows of all ranks, added in the order of the ranks.
  Status evaluate_on(const Dataset& data, PeerEvaluation& evaluation) {
    const LossSums own = loss_sums(threads_, optimizer_->model(), data, [this] { group_.make_progress(); });
    const auto all = gather<double>(group_, "evaluation", {own.rows, own.loss, own.right});
    if (!all) return std::unexpected(all.error());
    LossSums sums;
    for (size_t at = 0; at < all->size(); at += 3) {
      sums.rows += (*all)[at];
      sums.loss += (*all)[at + 1];
      sums.right += (*all)[at + 2];
    }
    evaluation = {sums.loss / sums.rows, sums.right / sums.rows};
    return {};
  }

  peer::PeerGroup& group_;
  const Dataset& data_;
  const Dataset* held_out_;
  const PeerTrainOptions& options_;
  const PeerTrainObserver& observer_;
  const std::atomic<bool>& stop_;
  ComputeThreads threads_;
  StopAgreement agreement_;
  std::vector<uint64_t> rank_rows_;
  std::unique_ptr<PeerOptimizer> optimizer_;
  uint64_t step_ = 0;         ///< started
  uint64_t ended_ = 0;        ///< ... and ended
  std::deque<TimeNs> began_;  ///< of the steps between
  TimeNs next_progress_ = 0;
  bool interrupted_ = false;
};

}  // namespace

Result<PeerTrainResult> train_over_peers(peer::PeerGroup& group, const Dataset& data, const Dataset* held_out,
                                         const PeerTrainOptions& options, const PeerTrainObserver& observer,
                                         const std::atomic<bool>& stop) {
  PeerRun run(group, data, held_out, options, observer, stop);
  if (Status status = run.prepare(); !status) return std::unexpected(status.error());
  return run.run();
}

}  // namespace millrace::training
