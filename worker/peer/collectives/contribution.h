#pragma once

#include "kernels/reduce/reduce.h"
#include "worker/peer/collectives/allreduce.h"

namespace millrace::peer {

/// Holds a rank's contribution as all ranks will have it: a rank that sends lossy bytes uses their decoding itself.
struct CodedContribution {
  Packet packet;
  SharedStream sent;
  Stream returned;  ///< own + added - sent: the codec's changes
  Stream added;     ///< entries of the rest that the index codec sent beside it: Reduced::added
};

/// Holds the changes that a codec made to a contribution.
struct CodecChange {
  Stream returned;  ///< own + added - sent; sparse, without zeros
  Stream added;     ///< entries of `rest` at indices of `sent` that `own` lacks; sparse, without zeros
};

/// own, sent   of one dimension.
/// rest        of that dimension, or of dimension 0: none.
/// Cost        one pass; a search for each added entry where `rest` is sparse.
CodecChange change_of(const StreamView& own, const StreamView& rest, const StreamView& sent);

/// Returns the indices of both, ascending. REQUIRES: they have none in common.
IndexBuffer merged_indices(IndexSpan a, IndexSpan b);

/// Errors   invalid_argument: a dimension that is not the settings' (a rest may have 0). non_finite: NaN or infinity.
Status check_contribution(const Contribution& given, const AllreduceSettings& settings);

/// Codes it with the settings' codec; with none, it is sent as it is.
///
/// Errors   check_contribution()'s; the codec's.
Result<CodedContribution> code_contribution(const Contribution& given, const AllreduceSettings& settings,
                                            Channel& channel);

/// Returns the key of this rank's random numbers in this collective.
RandomKey random_key_of(RandomKey job, const Channel& channel);

/// Returns a - b, entry by entry where either has one; entries that are equal are left out. Sparse.
Stream difference(const StreamView& a, const StreamView& b);

/// Returns the simulated time of adding this number of entries: two cache-resident reads and a write each
/// (`millrace-bench reduce`).
constexpr TimeNs reduce_time(uint64_t entries) { return static_cast<TimeNs>(entries) * 2; }

}  // namespace millrace::peer
