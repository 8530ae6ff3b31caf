#pragma once

#include <memory>

#include "worker/peer/algorithms/cost_chain.h"
#include "worker/peer/algorithms/registry.h"
#include "worker/peer/collectives/reduce_scatter.h"

/// The common part of SSAR_Split_allgather and DSAR_Split_allgather, which differ in the form of the gathered slices.
///
/// Any P   the gathering is recursive doubling or Bruck's.
/// Bits    one rank adds, in the order of the ranks; where it quantizes, it uses its own decoding.
/// Law     the sums are exact, unless the settings have a quantizer for them. Its error on a slice is in the `returned`
///         of the slice's owner.
/// Source  [SparCML19, 5.3.2, 5.3.3, 6].
namespace millrace::peer {

/// Makes the allreduce `id`, whose ranks join slices as `join`. Errors  invalid_argument: of the quantizer of sums.
Result<std::unique_ptr<Allreduce>> make_split_allgather(AlgorithmId id, JoinAs join, const AllreduceSettings& settings);

void cost_of_split_allgather(CostChain& chain);

}  // namespace millrace::peer
