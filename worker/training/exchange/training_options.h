#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/codec/codec.h"
#include "kernels/select/select.h"
#include "worker/peer/collectives/allreduce.h"
#include "worker/peer/collectives/boundaries_text.h"
#include "worker/training/exchange/error_feedback.h"
#include "worker/training/model/linear_model.h"
#include "worker/training/model/rate_schedule.h"

namespace millrace::training {

/// Says in which order a rank takes its rows.
enum class RowOrder : uint8_t {
  kShuffled = 1,  ///< another order in every epoch
  kFile = 2,      ///< as they are in the file
};

/// Says which processes sum the gradients.
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

/// Options of a training run over peers, the same on all ranks. Exchanges and optimizers both read them.
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
  std::string recipe = {};                ///< kServers: JobConfig::recipe
  uint32_t connect_timeout_ms = 10'000;   ///< kServers: for reaching every shard

  /// kPeers: what sums. kServers: whether the servers return the whole sum, or its k largest entries (kOktopk).
  peer::AlgorithmId algorithm = peer::AlgorithmId::kSsarSplitAllgather;
  SelectionSpec select;  ///< of the entries that are summed; of an algorithm that keeps a global top-k: how many
  uint32_t thresholds_period = 32;  ///< oktopk: steps between exact thresholds (tau')
  uint32_t boundaries_period = 64;  ///< oktopk over peers: steps between two divisions of the dimension (tau)
  peer::Boundaries boundaries = peer::Boundaries::kAveraged;  ///< oktopk over peers: how they do
  std::optional<CodecSpec> codec;                             ///< of what ranks contribute
  std::optional<CodecSpec> quantizer;                         ///< kPeers: of dense phases
  std::optional<CodecError> codec_error;                      ///< none: retained, unless that would not end
  /// The sent values are the gradient in expectation, and no entry stays for later (Contributions::unbiased).
  bool unbiased = false;
  /// Before the exchange: "correction:FACTOR", "nesterov:FACTOR", "nesterov_printed:FACTOR" (JobConfig::momentum).
  std::string momentum = "none";
  double clip = 0;                ///< of a rank's mean gradient, an L2 norm, over the square root of the ranks; 0: off
  bool reproducible = false;      ///< the same bits by every algorithm with exact sums, and over servers
  std::string grid = "auto";      ///< reproducible: JobConfig::grid
  std::string reselect = "none";  ///< reproducible: "topk:DENSITY|COUNT" of the sum, by the counts of the step before
  uint32_t asynchronous = 0;      ///< steps whose sums may be under way while the next is computed

  // What changes the weights after the exchange.
  double beta1 = 0.9;     ///< momentum: share of the velocity that stays; adam: of the first moment
  double beta2 = 0.999;   ///< adam: share of the second moment that stays
  double epsilon = 1e-8;  ///< adam
  uint64_t seed = 1;
};

}  // namespace millrace::training
