#pragma once

#include <cstdint>
#include <expected>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "worker/program/outcome.h"

namespace millrace::bench {

/// Describes a worker that computes slower than the others.
struct SlowWorker {
  uint32_t worker = 0;
  double factor = 1;  ///< its steps take this multiple of the time
};

struct ConvergeOptions {
  /// A LIBSVM file, every tenth row of which is held out; "debian": this machine's package index; "generated". Empty:
  /// w8a from the shared data, beside the working folder or in $MILLRACE_SHARED, else generated.
  std::string data;
  std::string folder;  ///< made data, tables, logs
  uint32_t workers = 4;
  uint32_t shards = 2;
  uint32_t rounds = 600;
  uint32_t points = 60;  ///< of each curve
  uint32_t batch = 64;
  double learning_rate = 4;
  uint64_t dimension = uint64_t{1} << 20;  ///< of data that is made: hashed, or drawn
  /// Texts of the job's options, as train's flags have them. The first two are of all rows but the dense one.
  std::string select = "topk:0.1";
  std::string reselect = "topk:0.3";
  std::string deadline = "20ms";   ///< of the rows that have one
  uint32_t compute_ms = 0;         ///< minimum time of a gradient
  std::vector<std::string> rows;   ///< names of ConvergeRow; empty: all
  std::optional<SlowWorker> slow;  ///< needs compute_ms
  uint64_t seed = 1;
};

/// Describes one way to train: its name, and the flags of `millrace train` for it.
struct ConvergeRow {
  std::string name;
  std::string title;
  std::vector<std::string> flags;
  uint32_t rounds_per_step = 1;  ///< rounds of `train` that count as one: mode asynchronous has one a contribution
};

/// Returns every way, in the order of the table. The first two are those that the others are compared with: dense and
/// synchronous, and selected and synchronous.
std::vector<ConvergeRow> converge_rows(const ConvergeOptions& options);

/// Parses "2:10" as worker 2, ten times as slow. Errors  invalid_argument.
Result<SlowWorker> slow_worker_from_text(const std::string& text);

/// Returns the row's JSON from its workers' output: loss and curve of worker 0, bytes of all. Its rate is that of the
/// workers that are not slow.
nlohmann::json summarise_row(const ConvergeRow& row, const std::vector<nlohmann::json>& workers,
                             const ConvergeOptions& options);

/// Adds to each row its ratios to the synchronous ones: rate_over_synchronous (the selected one's), log_loss_over_dense
/// and dense_bytes_over_this. A row without a partner has none.
void compare_rows(nlohmann::json& rows);

/// Draws two panels, held-out log-loss against rounds and against bytes of a worker, from bench_converge()'s result.
std::string converge_svg(const nlohmann::json& result);

/// Trains the same logistic regression in every way of options.rows, through shards and workers of its own.
///
/// say     called with one line at a time.
/// Errors  as data's, servers' and workers': the sentence names the log. usage: an unknown row, a job that no server
///         would take. interrupted.
std::expected<nlohmann::json, program::Failure> bench_converge(const ConvergeOptions& options,
                                                               const std::function<void(const std::string&)>& say);

}  // namespace millrace::bench
