#include "worker/peer/algorithms/split_allgather.h"

/// DSAR_Split_allgather: the split of SSAR_Split_allgather, then an allgather of slices that have become dense,
/// quantized if asked for. For sums that fill up. split_allgather.h has the common part.
///
/// Forms   a slice travels in the form that takes fewer bytes; the result is dense.
/// Bytes   a rank: P - 1 messages of (P - 1) / P k entries in all. Then its slice, N / P values at most, to P - 1
///         others.
/// Source  [SparCML19, 5.3.3, 6].
namespace millrace::peer {

AlgorithmEntry dsar_split_allgather_entry() {
  return {.info = {.id = AlgorithmId::kDsarSplitAllgather,
                   .name = "dsar_split_allgather",
                   .source = "[SparCML19, 5.3.3]",
                   .result = ResultKind::kExactSum,
                   .bounded_volume = true},
          .make =
              [](const AllreduceSettings& settings) {
                return make_split_allgather(AlgorithmId::kDsarSplitAllgather, JoinAs::kDense, settings);
              },
          .cost = cost_of_split_allgather,
          .message_values = values_of_slice};
}

}  // namespace millrace::peer
