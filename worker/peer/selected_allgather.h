#pragma once

#include "worker/peer/allreduce.h"

namespace millrace::peer {

/// What every rank selected, gathered by all and put together there in the order of the ranks.
///
/// mine    sparse, of the settings' dimension.
/// Bytes   a rank sends P - 1 contributions: its own, and others' that it passes on.
/// Errors  malformed: what a peer sent. non_finite: the sum overflowed. The codec's.
/// Source  oktopk.txt, section 2 (TopkA)
template <typename T>
Task<Result<Reduced<T>>> allgather_selected(Channel& channel, const AllreduceSettings<T>& settings, Stream<T> mine);

}  // namespace millrace::peer
