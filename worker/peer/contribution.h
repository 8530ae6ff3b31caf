#pragma once

#include "kernels/reduce/reduce.h"
#include "worker/peer/allreduce.h"

namespace millrace::peer {

/// What a rank contributes, as all ranks will have it: who sends lossy bytes uses their decoding itself.
struct CodedContribution {
  Packet packet;
  HeldStream sent;
  Stream returned;  ///< contribution - sent: what the codec changed
};

/// Errors   invalid_argument: a dimension that is not the settings'. non_finite: NaN or infinity.
Status check_contribution(const StreamView& own, const AllreduceSettings& settings);

/// Codes it with the settings' codec; with none, it is sent as it is.
///
/// Errors   check_contribution()'s; the codec's.
Result<CodedContribution> code_contribution(const HeldStream& own, const AllreduceSettings& settings, Channel& channel);

/// The key of this rank's random numbers in this collective.
RandomKey random_key_of(RandomKey job, const Channel& channel);

/// a - b, entry by entry where either has one; entries that are equal are left out. Sparse.
Stream difference(const StreamView& a, const StreamView& b);

/// What adding so many entries is charged as, where time is simulated: two cache-resident reads and a write each
/// (`millrace bench reduce`).
constexpr TimeNs reduce_time(uint64_t entries) { return static_cast<TimeNs>(entries) * 2; }

}  // namespace millrace::peer
