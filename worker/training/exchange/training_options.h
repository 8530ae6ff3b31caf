#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/codec/codec.h"
#include "kernels/select/select.h"
#include "millrace/options.h"
#include "protocol/job/job_spec.h"
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

/// "peers" and "server": the command line's words.
constexpr std::string_view path_name(ExchangePath path) { return path == ExchangePath::kServers ? "server" : "peers"; }

/// Says how the ranks of scd gather their changes.
enum class AllgatherForm : uint8_t {
  kSparse = 1,  ///< the coordinates that each changed
  kDense = 2,   ///< every rank's whole slice, zeros included: a baseline
};

/// Returns the options of a job of ranks by default: all entries, as they are, and the update is a mean.
inline JobConfig peer_job() {
  return {.name = "train",
          .select = Selection::all(),
          .codec_up = index::raw,
          .codec_down = index::raw,
          .updates = {.combine = Combine::kMean}};
}

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
  /// The options that a job over servers has as well. On both paths: select, codec_up (raw: no codec), momentum, clip,
  /// unbiased, reproducible, grid, reselect (of reproducible jobs), seed. Mode synchronous; its staleness is the number
  /// of steps whose sums may be under way while the next is computed. The exchange sets the other ones.
  JobConfig job = peer_job();
  /// kServers: shards and connect_timeout. A process that does rounds and little else keeps freed memory.
  WorkerConfig me = {.keep_freed_memory = true};

  /// kPeers: what sums. kServers: whether the servers return the whole sum, or its k largest entries (kOktopk).
  peer::AlgorithmId algorithm = peer::AlgorithmId::kSsarSplitAllgather;
  uint32_t thresholds_period = 32;  ///< oktopk: steps between exact thresholds (tau')
  uint32_t boundaries_period = 64;  ///< oktopk over peers: steps between two divisions of the dimension (tau)
  peer::Boundaries boundaries = peer::Boundaries::kAveraged;  ///< oktopk over peers: how they do
  std::optional<CodecSpec> quantizer;                         ///< kPeers: of dense phases
  std::optional<CodecError> codec_error;                      ///< none: retained, unless that would not end

  // What changes the weights after the exchange.
  double beta1 = 0.9;     ///< momentum: share of the velocity that stays; adam: of the first moment
  double beta2 = 0.999;   ///< adam: share of the second moment that stays
  double epsilon = 1e-8;  ///< adam
};

// The job's options in the form that kernels and peers take.

/// Returns the selection: of an algorithm that keeps a global top-k, the number of entries.
SelectionSpec select_of(const OptimizerOptions& options);
/// Returns the codec of contributions; empty: none.
std::optional<CodecSpec> codec_of(const OptimizerOptions& options);
protocol::MomentumSpec momentum_of(const OptimizerOptions& options);
protocol::ReselectSpec reselect_of(const OptimizerOptions& options);
/// Returns how many steps may be in flight before the next. REQUIRES: mode synchronous.
uint32_t staleness_of(const OptimizerOptions& options);
bool has_momentum(const OptimizerOptions& options);
bool reselects(const OptimizerOptions& options);
/// Returns the treatment of codecs' errors: that of the options, else feedback, unless feedback would not converge.
CodecError codec_error_of(const OptimizerOptions& options);

}  // namespace millrace::training
