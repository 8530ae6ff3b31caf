#pragma once

#include "worker/peer/collectives/local_selection.h"

namespace millrace::peer {

/// Gathers every rank's contribution on all ranks and combines them there in the order of the ranks.
///
/// Bytes   a rank sends P - 1 contributions: its own, and others' that it passes on.
/// Errors  malformed: invalid bytes from a peer. non_finite: the sum overflowed. The codec's.
/// Source  [RedSync19, 2.2]; [OkTopk22, 2] (TopkA)
Task<Result<Reduced>> allgather_and_combine(Channel& channel, const AllreduceSettings& settings, Contribution given);

/// Does the same with the entries that each rank selects of its own.
class SelectedAllgather : public Allreduce {
 public:
  SelectedAllgather(AlgorithmId id, SelectionId selection, const AllreduceSettings& settings)
      : id_(id), settings_(settings), selection_(selection, settings) {}

  const AlgorithmInfo& info() const override { return algorithm_info(id_); }
  Task<Result<Reduced>> run(Channel& channel, Contribution given) override;

 private:
  AlgorithmId id_;
  AllreduceSettings settings_;
  LocalSelection selection_;
};

}  // namespace millrace::peer
