#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/millrace.h"
#include "worker/program/outcome.h"
#include "worker/training/data/dataset.h"
#include "worker/training/model/learning_curve.h"
#include "worker/training/model/linear_model.h"
#include "worker/training/model/rate_schedule.h"

namespace millrace::training {

/// Says how a gradient is handed to the session.
enum class GradientForm : uint8_t {
  kSparse = 1,  ///< the touched features
  kDense = 2,   ///< the whole array, every entry on the wire: the cost of a dense exchange
};

/// Names the rule of the pushes of `millrace train`.
enum class TrainOptimizer : uint8_t {
  kSgd = 1,  ///< the gradient of its rows
  /// The difference of its rows' gradient to their gradient at a snapshot of the model. Every worker adds the gradient
  /// of all rows at the snapshot (variance_reduction.h).
  kSvrg = 2,
};

/// Returns the command line's word: "sgd" or "svrg".
constexpr std::string_view train_optimizer_name(TrainOptimizer optimizer) {
  return optimizer == TrainOptimizer::kSvrg ? "svrg" : "sgd";
}

/// Returns the options of a training job by default: workers send all entries, and the update is a mean.
inline JobConfig train_job() {
  return {.name = "train", .select = Selection::all(), .updates = {.combine = Combine::kMean}};
}

/// Describes one worker's part in a training run. All but `me`, `curve_every` and `compute_ms` must be equal at all
/// workers. A new field belongs in the job's specification, or in train_recipe().
struct TrainOptions {
  JobConfig job = train_job();  ///< train() sets the recipe and workers_min
  /// This worker. A process that does rounds and little else keeps freed memory.
  WorkerConfig me = {.keep_freed_memory = true};

  /// The job ends when fewer live, and is done with that number; 0: it ends with none, is done with all.
  uint32_t workers_min = 0;
  Loss loss = Loss::kLogistic;
  GradientForm form = GradientForm::kSparse;
  TrainOptimizer optimizer = TrainOptimizer::kSgd;
  uint64_t snapshot_every = 0;  ///< svrg: steps between two snapshots; 0: as many as an epoch has
  uint32_t batch_rows = 64;     ///< a worker and step
  uint32_t epochs = 3;
  uint64_t steps_max = 0;      ///< ends the run early; 0: never
  uint64_t rounds_max = 0;     ///< the same, by the job's rounds in the weights: with this worker or without
  uint64_t curve_every = 0;    ///< rounds between points of the learning curve; 0: no curve
  uint32_t compute_ms = 0;     ///< minimum time of a gradient: a slower machine, for measurements
  double learning_rate = 1;    ///< mode asynchronous: over the workers, since each contribution is a step
  RateSchedule schedule = {};  ///< of `learning_rate`, by whole epochs; its own rate counts for nothing
  double l2 = 0;

  std::string
      state_path;  ///< file of this worker's state while it trains, and of its initial state if it exists. With it, the
                   ///< process replaces an earlier one of this worker. Empty: none
  uint32_t save_every = 1'000;                       ///< steps between two savings; 0: only when the run ends early
  std::function<void(double seconds)> on_step = {};  ///< from a step's push to its update applied
  std::function<void(const Stats&)> on_stats = {};   ///< the session's sums, a few times a second
  /// Gets the session once it is there, and nullptr before it ends.
  std::function<void(Session*)> on_session = {};
  /// Gets one line when it is out of the job or continues from a later step.
  std::function<void(const std::string&)> on_return = {};
  /// Takes the model when all steps are in it, before this worker leaves the job. A worker that is killed meanwhile
  /// rejoins for it. Where it fails, the worker still leaves as finished: the others have all its rows.
  std::function<program::Outcome(const LinearModel&)> on_model = {};
};

/// Holds an epoch's times and results, for this worker.
struct EpochReport {
  uint32_t epoch = 0;  ///< from 1
  uint64_t steps = 0;  ///< of this epoch
  double loss = 0;     ///< mean over the rows as they were trained on
  uint64_t bytes_up = 0;
  uint64_t bytes_down = 0;
  uint64_t entries_up = 0;
  uint64_t non_finite_dropped = 0;  ///< values of gradients that were NaN or infinite, and left out
  double seconds = 0;               ///< without the evaluation
  double blocked_s = 0;             ///< of these, waiting for the servers
  double communication_s = 0;       ///< first byte of a step out .. its update complete, summed over steps
  bool evaluated = false;           ///< there is held-out data
  Evaluation held_out;
};

struct TrainResult {
  LinearModel model;
  std::vector<EpochReport> epochs;
  std::vector<CurvePoint>
      curve;  ///< first before any round, last at the end; empty without held-out data or curve_every
  uint32_t workers_missing = 0;  ///< of the job's workers, at the end: left without finishing, and not back
  uint64_t rounds = 0;           ///< of the job, in the weights (its first part's); mode asynchronous: contributions
  uint64_t contributions = 0;    ///< counted in these rounds, of all workers
  double rounds_per_s = 0;       ///< of training, until rounds_max were in the weights
  uint64_t dense_bytes = 0;      ///< what dense exchange would have moved in all, one way
  int64_t history_bytes_saved = 0;
  AuditStats audit;       ///< at the end
  SwitchStats by_switch;  ///< the same
};

/// Trains through servers: mini-batch SGD, L2 applied here and never sent. Joins the job, runs, leaves it as finished.
/// In a job that runs already it trains from the job's present step on.
///
/// data      this worker's rows (part `worker` of `workers`); rows_in_file counts those of all workers.
/// held_out  evaluated after every epoch, or with curve_every at the end for all points; nullptr: none.
/// on_epoch  after every epoch, and after the steps of one that steps_max cut short.
/// stop      becomes true when the run is to end: between two steps, or while it waits for servers.
/// Errors    as the session's, with its exit code; of on_model; interrupted. The state is at state_path then; after a
///           run that came to its end it is gone.
std::expected<TrainResult, program::Failure> train(const TrainOptions& options, const Dataset& data,
                                                   const Dataset* held_out,
                                                   const std::function<void(const EpochReport&)>& on_epoch,
                                                   const std::atomic<bool>& stop);

/// Refuses a job that no server would be asked for: select, codecs and their combinations, names, counts. Before data
/// is read.
///
/// features  of the data; 0: not known yet.
/// Errors    usage.
program::Outcome check_job(const TrainOptions& options, uint64_t features);

/// Refuses the result of fewer workers than the job was asked for, or than `options.workers_min` allows.
///
/// missing  as TrainResult has it.
/// Errors   job_ended: how many are missing, and what to do.
program::Outcome check_workers_at_end(const TrainOptions& options, uint32_t missing);

bool is_asynchronous(const TrainOptions& options);

bool is_synchronous(const TrainOptions& options);

/// Steps of an epoch: equal at all workers, enough for the one with the most rows.
uint64_t steps_per_epoch(uint64_t rows_of_all_workers, uint32_t workers, uint32_t batch_rows);

}  // namespace millrace::training
