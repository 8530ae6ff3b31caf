#pragma once

#include "kernels/base/result.h"
#include "worker/peer/group/peer_group.h"
#include "worker/training/data/dataset.h"
#include "worker/training/exchange/path_choice.h"

namespace millrace::cli {

/// Measures what path_choice.h chooses by, on all ranks of the group, and returns the choice: on all ranks the path
/// that rank 0 takes. Each rank connects to every server and closes the connection; no path is tried out.
///
/// The entries of a contribution are those of the rank's first batch: the features that occur in it, or what the
/// selection takes where that is less. A selection that goes by magnitude or variance is taken to send them all.
/// Selecting takes the same over both paths and is left out, but for oktopk: shards select as well. A --reselect is
/// taken to keep as many entries as a rank sends.
///
/// data     this rank's rows.
/// options  path is not looked at. REQUIRES: both paths take the others (check_exchange()).
/// Errors   the same on all ranks. unavailable: a server cannot be reached within connect_timeout_ms, from any rank.
///          The group's.
Result<PathChoice> measure_paths(peer::PeerGroup& group, const Dataset& data, const OptimizerOptions& options);

/// Returns how many entries this rank contributes to a step, as measure_paths() has it: 1 at least.
uint64_t entries_of_a_step(const Dataset& data, const OptimizerOptions& options);

}  // namespace millrace::cli
