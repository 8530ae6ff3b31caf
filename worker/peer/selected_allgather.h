#pragma once

#include "worker/peer/local_selection.h"

namespace millrace::peer {

/// Every rank's contribution, gathered by all and put together there in the order of the ranks.
///
/// own     of the settings' dimension.
/// Bytes   a rank sends P - 1 contributions: its own, and others' that it passes on.
/// Errors  malformed: what a peer sent. non_finite: the sum overflowed. The codec's.
/// Source  redsync.txt, section 2.3; oktopk.txt, section 2 (TopkA)
template <typename T>
Task<Result<Reduced<T>>> allgather_and_combine(Channel& channel, const AllreduceSettings<T>& settings,
                                               HeldStream<T> own);

/// The same of what each rank selects of its own.
template <typename T>
class SelectedAllgather : public Allreduce<T> {
 public:
  SelectedAllgather(AlgorithmId id, Selection selection, const AllreduceSettings<T>& settings)
      : id_(id), settings_(settings), selection_(selection, settings) {}

  const AlgorithmInfo& info() const override { return algorithm_info(id_); }
  Task<Result<Reduced<T>>> run(Channel& channel, HeldStream<T> own) override;

 private:
  AlgorithmId id_;
  AllreduceSettings<T> settings_;
  LocalSelection<T> selection_;
};

}  // namespace millrace::peer
