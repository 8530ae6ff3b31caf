#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "worker/program/outcome.h"

namespace millrace::cli {

struct DemoOptions {
  uint32_t workers = 4;
  uint32_t shards = 2;
  uint32_t epochs = 3;
  uint32_t batch = 64;
  double learning_rate = 4;
  double l2 = 1e-6;
  uint32_t dense_steps = 8;
  uint64_t dimension = uint64_t{1} << 24;
  std::vector<std::string> job_flags;  ///< of `millrace train`, for all rows: the mode
  bool kill = false;                   ///< the sparse rows once more each, with a shard killed, and a worker
  std::string rate;                    ///< "1gbit": every process behind it; empty: loopback
  std::string folder;                  ///< data, table, logs
};

/// Holds the results of one run of all workers. Bytes, entries and times are of one worker and step.
struct DemoRow {
  std::string name;  ///< "natural", "sparse", "dense"; with kill "natural-killed", "sparse-killed"
  std::string title;
  std::vector<std::string> flags;  ///< of `millrace train`, beside those that all rows share
  uint64_t steps = 0;
  uint64_t epochs = 0;
  double accuracy = 0;  ///< held out, after the last epoch
  double log_loss = 0;
  double average_precision = 0;
  double entries_up = 0;
  double bytes_up = 0;
  double bytes_down = 0;
  double step_ms = 0;  ///< median over epochs of the epoch's mean
  double communication_ms = 0;
  std::optional<bool> same_model;  ///< of a row with a kill: the model is that of the row without, to the bit
};

struct DemoResult {
  std::vector<DemoRow> rows;
};

/// Returns whether the servers hold the weights.
bool has_store(const DemoOptions& options);

/// Returns `millrace train`'s arguments for a row of the demonstration but the data, to check them before.
std::vector<std::string> demo_train_flags(const DemoOptions& options);

/// Makes the data (once), starts shards, runs `millrace train` in every worker for each row, ends the shards.
///
/// say     called with one line at a time: what happens now, where the status page is.
/// Errors  as the data's, the servers' and the workers': the sentence names the log. interrupted: SIGINT or SIGTERM;
///         every process that was started is ended.
std::expected<DemoResult, program::Failure> run_demo(const DemoOptions& options,
                                                     const std::function<void(const std::string&)>& say);

}  // namespace millrace::cli
