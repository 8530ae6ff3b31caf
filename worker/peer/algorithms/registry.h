#pragma once

#include <memory>

#include "worker/peer/collectives/allreduce.h"

namespace millrace::peer {

/// Describes an algorithm for the registry; the algorithm's file returns it.
struct AlgorithmEntry {
  AlgorithmInfo info;
  /// Makes the allreduce; the settings are valid for the fields of `info`, but the entry's own parameters are not
  /// checked yet.
  Result<std::unique_ptr<Allreduce>> (*make)(const AllreduceSettings& settings);
};

// One line an algorithm, in the order of their numbers; registry.cc has the same.
AlgorithmEntry dense_ring_entry();
AlgorithmEntry dense_recursive_doubling_entry();
AlgorithmEntry dense_rabenseifner_entry();
AlgorithmEntry ssar_recursive_doubling_entry();
AlgorithmEntry ssar_split_allgather_entry();
AlgorithmEntry dsar_split_allgather_entry();
AlgorithmEntry sparse_ring_entry();
AlgorithmEntry topk_a_entry();
AlgorithmEntry gtopk_entry();
AlgorithmEntry gaussian_k_entry();
AlgorithmEntry oktopk_entry();
AlgorithmEntry redsync_allgather_entry();
AlgorithmEntry automatic_entry();

/// Returns the entry of a class `A` that is made of its settings alone.
template <typename A>
AlgorithmEntry entry_of(const AlgorithmInfo& info) {
  return {info, [](const AllreduceSettings& settings) -> Result<std::unique_ptr<Allreduce>> {
            return std::make_unique<A>(settings);
          }};
}

}  // namespace millrace::peer
