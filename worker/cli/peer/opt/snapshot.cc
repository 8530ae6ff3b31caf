#include "worker/cli/peer/opt/snapshot.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/reduce/reduce.h"
#include "worker/cli/peer/opt/batch_gradient.h"

namespace millrace::cli {

OptimizerOptions snapshot_options(const OptimizerOptions& options) {
  OptimizerOptions exact = options;
  const peer::AlgorithmInfo& info = peer::algorithm_info(options.algorithm);
  const bool sums_all = info.result == peer::ResultKind::kExactSum && !info.selects;
  if (!sums_all) exact.algorithm = peer::AlgorithmId::kSsarSplitAllgather;
  exact.job = options.job + ".snapshots";
  exact.select = {};
  exact.codec.reset();
  if (options.codec && !options.codec->automatic) exact.codec = without_loss(*options.codec);
  exact.quantizer.reset();
  exact.codec_error.reset();
  exact.unbiased = false;
  exact.momentum = "none";
  exact.clip = 0;
  exact.asynchronous = 0;
  return exact;
}

Snapshots::Snapshots(const OptimizerSetup& setup, std::unique_ptr<Exchange> exchange)
    : setup_(setup), exchange_(std::move(exchange)), rows_(setup.data.rows()) {
  std::iota(rows_.begin(), rows_.end(), 0U);
}

Result<std::unique_ptr<Snapshots>> Snapshots::make(const OptimizerSetup& setup) {
  auto exchange = make_exchange({setup.group, setup.data.dimension + 1}, snapshot_options(setup.options));
  if (!exchange) return std::unexpected(exchange.error());
  return std::unique_ptr<Snapshots>(new Snapshots(setup, std::move(*exchange)));
}

/// Returns this rank's part, so weighted that the mean over the ranks is the mean over all rows. Between two pieces the other
/// ranks see that this rank is alive.
Stream Snapshots::full_gradient(const LinearModel& model) {
  constexpr size_t kRowsOfPiece = 65'536;
  const uint64_t rows_of_all = std::accumulate(setup_.rank_rows.begin(), setup_.rank_rows.end(), uint64_t{0});
  const double weight = setup_.group.size() / static_cast<double>(std::max<uint64_t>(rows_of_all, 1));
  Stream sum = Stream::empty(model.tensor_dimension());
  for (size_t begin = 0; begin < rows_.size(); begin += kRowsOfPiece) {
    const auto rows = std::span(rows_).subspan(begin, std::min(kRowsOfPiece, rows_.size() - begin));
    Stream piece = weighted_gradient(setup_.threads, model, setup_.data, rows, weight).gradient;
    sum = begin == 0 ? std::move(piece) : sum_two(sum.view(), piece.view()).value();
    setup_.group.make_progress();
  }
  return sum;
}

Status Snapshots::take(const LinearModel& model) {
  if (Status status = exchange_->start(taken_++, full_gradient(model)); !status) return status;
  const auto sum = exchange_->finish_oldest();
  if (!sum) return std::unexpected(sum.error());
  reduction_.take(model, sum->sum.view, sum->denominator);
  return {};
}

}  // namespace millrace::cli
