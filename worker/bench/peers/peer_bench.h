#pragma once

#include <cstdint>
#include <expected>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kernels/codec/codec.h"
#include "worker/bench/peers/peer_inputs.h"
#include "worker/peer/collectives/allreduce.h"
#include "worker/peer/collectives/boundaries_text.h"
#include "worker/peer/transport/mpi_communicator.h"

namespace millrace::bench {

/// Says where the ranks compute while they communicate: on the machine's cores, or on an accelerator, which takes none
/// of them.
enum class ComputeWhere : uint8_t { kCores = 1, kElsewhere = 2 };
/// Says whether MPI_Allreduce of the dense vector runs in the same run.
enum class DenseRow : uint8_t { kMeasured = 1, kLeftOut = 2 };

struct PeerBenchOptions {
  PeerInputs inputs;
  std::vector<std::string> algorithms;  ///< none: all
  std::optional<CodecSpec> codec;
  std::optional<CodecSpec> quantizer;                         ///< of dense phases
  uint64_t k = 0;                                             ///< 0: as many as each rank has
  peer::Boundaries boundaries = peer::Boundaries::kAveraged;  ///< oktopk
  uint32_t repeats = 9;
  uint32_t warmup = 2;
  uint32_t silence_ms_max = 10'000;
  DenseRow dense = DenseRow::kMeasured;
  std::optional<ComputeWhere> overlap;
  /// overlap: of a dense gradient's buckets, at least. Nothing hides the last one's communication, so it is a small
  /// part.
  uint64_t bucket_bytes = uint64_t{2} << 20;
};

using SayProgress = std::function<void(const std::string&)>;

peer::AllreduceSettings settings_of(const PeerBenchOptions& options);
/// Errors   invalid_argument: a name that is none (the message lists them all).
Result<std::vector<peer::AlgorithmId>> algorithms_of(const PeerBenchOptions& options);

/// Takes steps until what chooses among algorithms has made its choice, so that nothing is measured while it tries them
/// out.
Status run_until_chosen(const peer::Allreduce& allreduce, const std::function<Status()>& step);

/// Allreduces of made-up contributions, round after round, each algorithm once in each; every rank calls it. A rank's
/// time is from when all have come to a barrier until it has the result; a round's that of the slowest. The first and
/// the last round are checked.
///
/// Errors   job_mismatch: the ranks were started with different options; the group's.
Result<nlohmann::json> bench_peers(peer::MpiJob& job, peer::Communicator& communicator, const PeerBenchOptions& options,
                                   const SayProgress& say);

/// Measures the same with computation beside: how long a step takes over the longer of the two (peer_overlap.cc).
Result<nlohmann::json> bench_overlap(peer::MpiJob& job, peer::Communicator& communicator,
                                     const PeerBenchOptions& options, const SayProgress& say);

}  // namespace millrace::bench
