#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/stream/shared_stream.h"
#include "worker/peer/channel/channel.h"
#include "worker/peer/channel/coroutine_task.h"
#include "worker/peer/channel/stream_wire.h"

namespace millrace::peer {

/// Holds settings that are the same on all ranks.
struct SparseAllgatherSettings {
  uint64_t dimension = 0;
  std::optional<CodecSpec> codec;  ///< may lose something; none: as they are
  RandomKey random;                ///< of stochastic rounding
};

/// Holds the streams of all ranks.
struct Gathered {
  std::vector<SharedStream> streams;  ///< [size] by rank; the same bits on all ranks
  Stream returned;                    ///< the codec's changes of this rank's own stream; sparse
};

/// Gathers the streams of all ranks sparsely (coordinates that each rank has changed, its slice of a vector, ...) on
/// every rank, not added. Each may have another count, and be dense.
///
/// own      of the settings' dimension, finite.
/// Bytes    a rank: (P - 1) / P of all streams (of like sizes), in ceil(log2 P) messages while they are small
///          (allgather.h).
/// Errors   invalid_argument: another dimension. non_finite: NaN or infinity. malformed: invalid bytes from a peer. The
///          codec's.
/// Source   [SparCML19, 5.2, 8.2] (stochastic coordinate descent).
Task<Result<Gathered>> sparse_allgather(Channel& channel, SharedStream own, SparseAllgatherSettings settings);

/// Returns the text on which ranks must agree.
std::string description_of(const SparseAllgatherSettings& settings);

}  // namespace millrace::peer
