#include "worker/training/optimizers/snapshot.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "worker/config/option_access.h"
#include "worker/training/optimizers/batch_gradient.h"

namespace millrace::training {

OptimizerOptions snapshot_options(const OptimizerOptions& options) {
  OptimizerOptions exact = options;
  const peer::AlgorithmInfo& info = peer::algorithm_info(options.algorithm);
  const bool sums_all = info.result == peer::ResultKind::kExactSum && !info.selects;
  if (!sums_all) exact.algorithm = peer::AlgorithmId::kSsarSplitAllgather;
  exact.job.name = options.job.name + ".snapshots";
  exact.job.select = Selection::all();
  exact.job.codec_up = index::raw;
  const auto codec = codec_of(options);
  if (codec && !codec->automatic) exact.job.codec_up = OptionAccess::codec_of(without_loss(*codec));
  exact.quantizer.reset();
  exact.codec_error.reset();
  exact.job.contributions.unbiased = false;
  exact.job.momentum = Momentum::none();
  exact.job.contributions.clip = 0;
  exact.job.consistency = Synchronous{};
  return exact;
}

Snapshots::Snapshots(const OptimizerSetup& setup, std::unique_ptr<Exchange> exchange)
    : setup_(setup), exchange_(std::move(exchange)) {}

Result<std::unique_ptr<Snapshots>> Snapshots::make(const OptimizerSetup& setup) {
  auto exchange = make_exchange({setup.group, setup.data.dimension + 1}, snapshot_options(setup.options));
  if (!exchange) return std::unexpected(exchange.error());
  return std::unique_ptr<Snapshots>(new Snapshots(setup, std::move(*exchange)));
}

/// Returns this rank's part, so weighted that the mean over the ranks is the mean over all rows. Between two pieces the
/// other ranks see that this rank is alive.
Stream Snapshots::full_gradient(const LinearModel& model) {
  const uint64_t rows_of_all = std::accumulate(setup_.rank_rows.begin(), setup_.rank_rows.end(), uint64_t{0});
  const double weight = setup_.group.size() / static_cast<double>(std::max<uint64_t>(rows_of_all, 1));
  const auto gradient_of = [&](std::span<const uint32_t> rows) -> std::optional<Stream> {
    Stream piece = weighted_gradient(setup_.threads, model, setup_.data, rows, weight).gradient;
    setup_.group.make_progress();
    return piece;
  };
  return sum_of_pieces(model.tensor_dimension(), setup_.data.rows(), gradient_of);
}

Status Snapshots::take(const LinearModel& model) {
  if (Status status = exchange_->start(taken_++, full_gradient(model)); !status) return status;
  const auto sum = exchange_->finish_oldest();
  if (!sum) return std::unexpected(sum.error());
  reduction_.take(model, sum->sum.view, sum->denominator);
  return {};
}

}  // namespace millrace::training
