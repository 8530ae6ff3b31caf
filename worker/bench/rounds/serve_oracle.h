#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/codec/codec.h"
#include "kernels/stream/stream.h"

namespace millrace::bench {

/// Describes a range of the tensor's indices, and the shard that sums it and selects from it.
struct ServePart {
  uint32_t shard = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// Describes the pushes of all workers of the serve benchmark, and their requests to the servers.
struct ServeJob {
  uint64_t n = 0;
  uint64_t pushed = 0;  ///< entries a worker and round
  uint64_t k = 0;       ///< entries that the sum is cut to
  uint64_t seed = 0;    ///< of the inputs and of the job
  uint32_t workers = 0;
  uint32_t threshold_period = 1;
  std::vector<ServePart> parts;  ///< in index order, all of [0, n); a part's place here is its number in the job
  CodecSpec codec;               ///< both ways; lossless indices
  double error_max = 0;          ///< where the codec changes values: bound of ServeVerdict::relative_error
};

/// Returns a round's sum: all workers' contributions as decoded, added in worker order. Sparse.
Stream serve_sum(const ServeJob& job, uint32_t round);

/// Returns, by part, the number of entries over a threshold that is agreed on in the round: in all min(k, non-zero
/// entries of the sum). A part has its share of the boundary bin as a fraction.
std::vector<double> serve_shares(const ServeJob& job, const Stream& sum);

/// Holds the judgement of a received update.
struct ServeVerdict {
  bool agrees = false;
  double relative_error = 0;  ///< ||update - s|| / ||s||, s the entries' sum before any codec
  std::string reason;         ///< where it does not agree
};

/// Judges the update of one round by the bounds of server/aggregation/DESIGN.md.
///
/// Entries  are non-zero entries of the round's sum, with its bits; of a codec that changes values, within error_max
///          over all.
/// Exact    steps (round % threshold_period == 0) have min(k, non-zero entries) of them. A shard's are its largest,
///          ties by lower index, and as many as its share, the boundary bin's made whole.
/// Reuse    steps: a part's entries are its largest, and every shard has its share at an agreement, give or take 2 %
///          and half an entry. That may be an agreement of this or an earlier round, not the same one on every shard.
///          So the size differs from k by chance too, by more than 2 % where a shard's share is a few thousand entries
///          or less. But the inputs of all rounds are known, and with them the shares: chance needs no allowance.
///          Agreements are possible in exact steps, in every eighth, and after one in which the threshold omitted
///          nothing.
ServeVerdict judge_update(const ServeJob& job, uint32_t round, const StreamView& update);

}  // namespace millrace::bench
