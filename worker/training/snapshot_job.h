#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "millrace/millrace.h"
#include "worker/program/outcome.h"
#include "worker/training/data/dataset.h"
#include "worker/training/model/linear_model.h"
#include "worker/training/model/variance_reduction.h"
#include "worker/training/trainer.h"

namespace millrace::training {

/// Takes SVRG's snapshots of a worker over servers. A second job, NAME.snapshots beside the steps' job NAME, sums the
/// workers' gradients at a snapshot without loss.
///
/// Errors   JobError, as the session's.
/// Threads  one.
class SnapshotJob {
 public:
  /// Joins the job. steps: the options of the steps' job.
  static std::unique_ptr<SnapshotJob> connect(const JobConfig& steps, const WorkerConfig& me, const Dataset& data);

  /// Returns this worker's mean gradient over all of its rows.
  ///
  /// stop  becomes true: the function leaves out the remaining rows, and the result is of no use.
  Stream full_gradient(const LinearModel& model, const std::atomic<bool>& stop) const;
  /// Pushes this worker's gradient. Returns false where the time was too short: the caller repeats the call.
  bool try_push(const Stream& gradient, std::chrono::milliseconds timeout);
  /// Waits for the mean of the pushed gradients, and makes `model` the snapshot. Returns false where the time was too
  /// short.
  bool try_take(const LinearModel& model, std::chrono::milliseconds timeout);
  /// Leaves the job as finished. Returns false where the time was too short.
  bool try_finish(std::chrono::milliseconds timeout) { return session_->try_finish(timeout); }
  /// Returns the reason why this job is blocked, as SessionStatus has it.
  std::string waiting_for() const { return session_->status().waiting_for; }

  const VarianceReduction& reduction() const { return reduction_; }
  /// Adds this job's bytes and times to those of the steps' job.
  void add_to(Stats& stats) const;

 private:
  SnapshotJob(const JobConfig& steps, const WorkerConfig& me, const Dataset& data);

  const Dataset& data_;
  std::unique_ptr<Session> session_;
  std::optional<uint64_t> pushed_;
  VarianceReduction reduction_;
};

/// Returns the options of the snapshots' job: workers, recipe and limits of the steps' job. The job selects nothing,
/// quantizes nothing and keeps nothing back.
JobConfig snapshot_job_config(const JobConfig& steps);
/// Returns this worker's options there: no switch.
WorkerConfig snapshot_worker_config(const WorkerConfig& steps);
/// Returns the one tensor of the snapshots' job.
TensorOptions snapshot_tensor(uint64_t dimension);

/// Refuses svrg in jobs whose workers may lack a common snapshot, and --snapshot-every without svrg.
///
/// Errors   usage.
program::Outcome check_snapshots(const TrainOptions& options);

}  // namespace millrace::training
