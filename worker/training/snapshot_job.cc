#include "worker/training/snapshot_job.h"

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/reduce/reduce.h"
#include "worker/config/job_config.h"

namespace millrace::training {
namespace {

/// Returns the mean over the contributors. Each part has a denominator of its own: it may lack a worker that the other
/// parts have.
Stream mean_of_pieces(const TensorUpdate& update, uint64_t dimension) {
  std::vector<Stream> means;
  std::vector<StreamView> views;
  for (const UpdatePiece& piece : update.pieces) {
    Stream& mean = means.emplace_back(Stream::empty(piece.dimension));
    mean.dense = piece.dense;
    mean.indices.assign(piece.indices.begin(), piece.indices.end());
    for (const float value : piece.values) {
      mean.values.push_back(static_cast<float>(static_cast<double>(value) / piece.denominator));
    }
  }
  for (const Stream& mean : means) views.push_back(mean.view());
  auto whole = concatenate(views);
  MILLRACE_CHECK(whole.has_value() && whole->dimension == dimension, update.step, dimension);
  return std::move(*whole);
}

}  // namespace

program::Outcome check_snapshots(const TrainOptions& options) {
  const auto refuse = [](std::string why) { return program::fail_with(program::ExitCode::kUsage, std::move(why)); };
  if (options.optimizer != TrainOptimizer::kSvrg) {
    if (options.snapshot_every == 0) return {};
    return refuse("--snapshot-every is of --optimizer svrg: sgd takes no snapshots");
  }
  if (!is_synchronous(options)) {
    return refuse(
        "--optimizer svrg needs --mode synchronous: a snapshot needs the gradients of all workers, and mode " +
        std::string(worker::consistency_name(options.job.consistency)) + " does not wait for them");
  }
  if (options.job.store) {
    return refuse(
        "--optimizer svrg with --store: the servers change the weights by the sent differences alone, without the "
        "gradient at the snapshot; leave --store out");
  }
  if (!options.state_path.empty()) {
    return refuse("--optimizer svrg with --state: a returning worker has no snapshot; leave --state out");
  }
  if (options.job.updates.initial_weights != InitialWeights::kOwn) {
    return refuse(
        "--optimizer svrg with --initial-weights first: its workers neither give nor take weights, and all begin with "
        "zeros; leave --initial-weights out");
  }
  if (options.job.guarantees.reproducible) {
    return refuse(
        "--optimizer svrg sums the gradient at a snapshot exactly, and --reproducible rounds sums to a grid: leave "
        "one out");
  }
  return {};
}

JobConfig snapshot_job_config(const JobConfig& steps) {
  JobConfig job = steps;
  job.name += ".snapshots";  // `millrace status` and the alert MillraceJobStalled know it by this name
  job.consistency = Synchronous{};
  job.select = Selection::all();
  job.reselect = Reselect::none();
  job.codec_up = job.codec_down = Codec();
  job.momentum = Momentum::none();
  job.contributions = {.non_finite = steps.contributions.non_finite};
  job.guarantees.audit = false;
  job.updates.initial_weights = InitialWeights::kOwn;  // no weights are attached
  job.path = ServerPath{};
  job.grid.reset();
  return job;
}

WorkerConfig snapshot_worker_config(const WorkerConfig& steps) {
  WorkerConfig me = steps;
  me.rack.clear();
  me.switch_key_file.clear();
  return me;
}

TensorOptions snapshot_tensor(uint64_t dimension) {
  TensorOptions tensor;
  tensor.name = "full gradient";
  tensor.dimension = dimension;
  return tensor;
}

std::unique_ptr<SnapshotJob> SnapshotJob::connect(const JobConfig& steps, const WorkerConfig& me, const Dataset& data) {
  return std::unique_ptr<SnapshotJob>(new SnapshotJob(steps, me, data));
}

SnapshotJob::SnapshotJob(const JobConfig& steps, const WorkerConfig& me, const Dataset& data) : data_(data) {
  session_ =
      Session::connect(snapshot_job_config(steps), snapshot_worker_config(me), {snapshot_tensor(data.dimension + 1)});
}

Stream SnapshotJob::full_gradient(const LinearModel& model, const std::atomic<bool>& stop) const {
  const auto gradient_of = [&](std::span<const uint32_t> rows) -> std::optional<Stream> {
    if (stop.load()) return std::nullopt;
    Stream piece = batch_gradient(model, data_, rows).gradient;
    // The piece's gradient is the mean over its own rows.
    const double share = static_cast<double>(rows.size()) / static_cast<double>(data_.rows());
    for (float& value : piece.values) value = static_cast<float>(static_cast<double>(value) * share);
    return piece;
  };
  return sum_of_pieces(model.tensor_dimension(), data_.rows(), gradient_of);
}

bool SnapshotJob::try_push(const Stream& gradient, std::chrono::milliseconds timeout) {
  pushed_ = gradient.dense ? session_->try_push(0, gradient.values, 1, timeout)
                           : session_->try_push_sparse(0, gradient.indices, gradient.values, 1, timeout);
  return pushed_.has_value();
}

bool SnapshotJob::try_take(const LinearModel& model, std::chrono::milliseconds timeout) {
  const std::optional<TensorUpdate> update = session_->try_await(0, pushed_.value(), timeout);
  if (!update) return false;
  const Stream mean = mean_of_pieces(*update, model.tensor_dimension());
  reduction_.take(model, mean.view(), 1);
  return true;
}

void SnapshotJob::add_to(Stats& stats) const {
  const Stats own = session_->stats();
  stats.bytes_up += own.bytes_up;
  stats.bytes_down += own.bytes_down;
  stats.dense_bytes += own.dense_bytes;
  stats.time_blocked_s += own.time_blocked_s;
  stats.time_in_communication_s += own.time_in_communication_s;
}

}  // namespace millrace::training
