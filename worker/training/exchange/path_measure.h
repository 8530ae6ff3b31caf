#pragma once

#include "kernels/base/result.h"
#include "worker/peer/group/peer_group.h"
#include "worker/training/data/dataset.h"
#include "worker/training/exchange/path_choice.h"

namespace millrace::training {

/// Measures the inputs of path_choice.h, on all ranks of the group, and returns the choice: on all ranks the choice of
/// rank 0. Each rank connects to every server and closes the connection; no path is tried out.
///
/// The entries of a contribution are those of the rank's first batch: its features, or the selection's number where
/// that is less. For a selection by magnitude or variance, it assumes that all of them are sent. Selecting takes the
/// same over both paths and is left out, but for oktopk: shards select as well. A --reselect is assumed to keep as many
/// entries as a rank sends.
///
/// data     this rank's rows.
/// options  path is ignored. REQUIRES: both paths take the others (check_exchange()).
/// Errors   the same on all ranks. unavailable: a server cannot be reached within connect_timeout, from any rank.
///          The group's.
Result<PathChoice> measure_paths(peer::PeerGroup& group, const Dataset& data, const OptimizerOptions& options);

/// Returns how many entries this rank contributes to a step, as measure_paths() has it: 1 at least.
uint64_t entries_of_a_step(const Dataset& data, const OptimizerOptions& options);

}  // namespace millrace::training
