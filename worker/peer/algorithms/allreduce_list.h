#pragma once

#include "worker/peer/algorithms/registry.h"

/// The allreduces of this build, in the order in which lists show them. NAME is worker/peer/algorithms/NAME.cc, which
/// defines NAME_entry(). CMakeLists.txt compiles the files of this list.
#define MILLRACE_ALLREDUCES(ALLREDUCE) \
  ALLREDUCE(dense_ring)                \
  ALLREDUCE(dense_recursive_doubling)  \
  ALLREDUCE(dense_rabenseifner)        \
  ALLREDUCE(ssar_recursive_doubling)   \
  ALLREDUCE(ssar_split_allgather)      \
  ALLREDUCE(dsar_split_allgather)      \
  ALLREDUCE(sparse_ring)               \
  ALLREDUCE(topk_a)                    \
  ALLREDUCE(gtopk)                     \
  ALLREDUCE(gaussian_k)                \
  ALLREDUCE(oktopk)                    \
  ALLREDUCE(redsync_allgather)         \
  ALLREDUCE(automatic)

namespace millrace::peer {

#define MILLRACE_DECLARE_ALLREDUCE(word) AlgorithmEntry word##_entry();
MILLRACE_ALLREDUCES(MILLRACE_DECLARE_ALLREDUCE)
#undef MILLRACE_DECLARE_ALLREDUCE

}  // namespace millrace::peer
