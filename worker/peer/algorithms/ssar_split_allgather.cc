#include "worker/peer/algorithms/split_allgather.h"

/// SSAR_Split_allgather: every rank owns an equal range of the indices. It gets all entries of the others in it and
/// adds them up, and all ranks gather the slices of the sum. For much data. split_allgather.h has the common part.
///
/// Bytes   a rank: P - 1 messages of (P - 1) / P k entries in all, then its slice of the sum to P - 1 others. The
///         latter are from 2 (P - 1) / P k to P k entries. Sums are dense where that is smaller, slice by slice.
/// Source  [SparCML19, 5.3.2].
namespace millrace::peer {

AlgorithmEntry ssar_split_allgather_entry() {
  return {.info = {.id = AlgorithmId::kSsarSplitAllgather,
                   .name = "ssar_split_allgather",
                   .source = "[SparCML19, 5.3.2]",
                   .result = ResultKind::kExactSum},
          .make =
              [](const AllreduceSettings& settings) {
                return make_split_allgather(AlgorithmId::kSsarSplitAllgather, JoinAs::kSmaller, settings);
              },
          .cost = cost_of_split_allgather,
          .message_values = values_of_slice};
}

}  // namespace millrace::peer
