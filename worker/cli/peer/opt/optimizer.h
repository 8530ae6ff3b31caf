#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/codec/codec.h"
#include "kernels/select/select.h"
#include "millrace/millrace.h"
#include "worker/cli/dataset.h"
#include "worker/cli/linear_model.h"
#include "worker/cli/peer/boundaries_flag.h"
#include "worker/cli/peer/opt/compute_threads.h"
#include "worker/cli/peer/opt/error_feedback.h"
#include "worker/cli/peer/opt/rate_schedule.h"
#include "worker/peer/allreduce.h"
#include "worker/peer/group.h"

namespace millrace::cli {

/// The order in which a rank takes its rows.
enum class RowOrder : uint8_t {
  kShuffled = 1,  ///< anew in every epoch
  kFile = 2,      ///< as they are in the file
};

/// What sums the gradients.
enum class ExchangePath : uint8_t {
  kPeers = 1,    ///< the ranks, by an allreduce
  kServers = 2,  ///< sharded servers, of which the ranks are the workers
};

/// "peers" and "servers": the command line's words.
constexpr std::string_view path_name(ExchangePath path) { return path == ExchangePath::kServers ? "servers" : "peers"; }

/// Says how the ranks of scd gather their changes.
enum class AllgatherForm : uint8_t {
  kSparse = 1,  ///< the coordinates that each changed
  kDense = 2,   ///< every rank's whole slice, zeros included: a baseline
};

/// All ranks: the same.
struct OptimizerOptions {
  Loss loss = Loss::kLogistic;
  RateSchedule schedule;
  double l2 = 0;                                     ///< of optimizers by gradients: schedule.rate * l2 < 1
  uint32_t batch_rows = 1000;                        ///< of optimizers by gradients: at most, of a rank and step
  uint64_t snapshot_every = 0;                       ///< svrg: steps; 0: as many as an epoch has
  uint32_t coordinates = 100;                        ///< scd: at most, of a rank and step
  AllgatherForm allgather = AllgatherForm::kSparse;  ///< scd
  RowOrder order = RowOrder::kShuffled;

  ExchangePath path = ExchangePath::kPeers;
  std::vector<std::string> servers = {};  ///< kServers: "tcp://host:port", one a shard
  std::string job = "train";              ///< kServers: its name at the servers
  std::string recipe = {};                ///< kServers: JobOptions::recipe
  uint32_t connect_timeout_ms = 10'000;   ///< kServers: for reaching every shard

  /// kPeers: what sums. kServers: whether the whole sum comes back, or its k largest entries (kOktopk).
  peer::AlgorithmId algorithm = peer::AlgorithmId::kSsarSplitAllgather;
  SelectionSpec select;             ///< of what is summed; of an algorithm that keeps a global top-k: how many
  uint32_t thresholds_period = 32;  ///< oktopk: steps between exact thresholds (tau')
  uint32_t boundaries_period = 64;  ///< oktopk over peers: steps between two that divide the dimension anew (tau)
  Boundaries boundaries = Boundaries::kAveraged;  ///< oktopk over peers: how they do
  std::optional<CodecSpec> codec;                 ///< of what ranks contribute
  std::optional<CodecSpec> quantizer;             ///< kPeers: of dense phases
  std::optional<CodecError> codec_error;          ///< none: retained, unless that would not end
  /// The sent values are the gradient in expectation, and no entry stays for later (JobOptions::unbiased).
  bool unbiased = false;
  /// Before the exchange: "correction:FACTOR", "nesterov:FACTOR", "nesterov_printed:FACTOR" (JobOptions::momentum).
  std::string momentum = "none";
  double clip = 0;                ///< of a rank's mean gradient, an L2 norm, over the square root of the ranks; 0: off
  bool reproducible = false;      ///< the same bits by every algorithm with exact sums, and over servers
  std::string grid = "auto";      ///< reproducible: JobOptions::grid
  std::string reselect = "none";  ///< reproducible: "topk:DENSITY|COUNT" of the sum, by the counts of the step before
  uint32_t asynchronous = 0;      ///< steps whose sums may be under way while the next is computed

  // What changes the weights after the exchange.
  double beta1 = 0.9;     ///< momentum: what is left of the velocity; adam: of the first moment
  double beta2 = 0.999;   ///< adam: what is left of the second moment
  double epsilon = 1e-8;  ///< adam
  uint64_t seed = 1;
};

/// What an optimizer works on. All outlive it.
struct OptimizerSetup {
  peer::PeerGroup& group;
  ComputeThreads& threads;
  const Dataset& data;                  ///< this rank's rows; dimension and rows_in_file are of all
  std::span<const uint64_t> rank_rows;  ///< [size] rows of each rank
  const OptimizerOptions& options;
  std::function<void(double seconds)> on_update = {};  ///< ExchangeSetup::on_update
};

/// What a rank did since it began.
struct OptimizerCounts {
  double compute_s = 0;               ///< gradients, and applying sums
  double waiting_s = 0;               ///< for sums
  uint64_t entries = 0;               ///< of this rank, in sums
  uint64_t sum_entries = 0;           ///< of sums that have ended
  double residual_norm = 0;           ///< L2 norm of what stays for later
  uint64_t steps = 0;                 ///< started
  uint64_t bytes_sent = 0;            ///< beside what went through the group
  uint64_t bytes_received = 0;        ///< beside what came through the group
  std::optional<Stats> session = {};  ///< path servers: the session's own
};

/// One rank's part in training a linear model with others: steps that are started in order, and end in order, with the same
/// model on all ranks after each end. Adding one: its file, its line in optimizers.cc.
///
/// Errors   the group's where it has ended, on all ranks; non_finite: a gradient overflowed.
/// Threads  one.
class PeerOptimizer {
 public:
  virtual ~PeerOptimizer() = default;

  virtual uint64_t steps_per_epoch() const = 0;
  /// Nothing is in flight. epoch: from 0.
  virtual void begin_epoch(uint32_t epoch) = 0;
  /// Computes a step of the epoch with the model as it is, and starts what ranks exchange for it. step: from 0, over all epochs.
  virtual Status start(uint64_t step) = 0;
  /// Waits for the oldest step in flight, and applies it to the model. REQUIRES: in_flight() > 0.
  virtual Status finish_oldest() = 0;
  virtual size_t in_flight() const = 0;

  virtual const LinearModel& model() const = 0;
  /// Cost  may be a pass over a residual: not every step.
  virtual OptimizerCounts counts() const = 0;
  /// All ranks have made their last step. REQUIRES: nothing is in flight.
  virtual Status end() { return {}; }
};

/// What an optimizer takes where the options do not say, in the words of the command line.
struct OptimizerDefaults {
  std::string_view algorithm = "ssar_split_allgather";
  std::string_view select = "none";
  std::string_view codec = "raw";
  std::string_view momentum = "none";
  std::optional<CodecError> codec_error = {};
};

struct OptimizerInfo {
  std::string_view name;     ///< "sgd"
  std::string_view source;   ///< "[SparCML19, 7, 8.2]" (kernels/REFERENCES.md)
  std::string_view summary;  ///< one line for --help
  Result<std::unique_ptr<PeerOptimizer>> (*make)(const OptimizerSetup& setup);
  /// Refuses options that it does not take, as far as they can be told without data.
  Status (*check)(const OptimizerOptions& options);
  OptimizerDefaults defaults = {};
};

/// Every optimizer of this build.
std::span<const OptimizerInfo> optimizers();
const OptimizerInfo* find_optimizer(std::string_view name);

// One line an optimizer: what its file gives to the list.
OptimizerInfo sgd_optimizer();
OptimizerInfo oktopk_sgd_optimizer();
OptimizerInfo topk_sgd_optimizer();
OptimizerInfo rgc_optimizer();
OptimizerInfo svrg_optimizer();
OptimizerInfo momentum_optimizer();
OptimizerInfo adam_optimizer();
OptimizerInfo coordinate_descent_optimizer();

/// Options with what the optimizer takes by itself.
OptimizerOptions default_options(const OptimizerInfo& optimizer);

/// Returns all options that change what a rank does to its weights, or the order in which it takes its rows: words
/// KEY=VALUE, as JobOptions::recipe has them.
std::string recipe_of(const OptimizerInfo& optimizer, const OptimizerOptions& options);

/// What ranks must agree on, as text.
std::string description_of(const OptimizerInfo& optimizer, const OptimizerOptions& options);

}  // namespace millrace::cli
