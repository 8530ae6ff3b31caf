#pragma once

#include <cstdint>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/history/index_history.h"

namespace millrace {

/// The number of the code below in containers. It is no IndexCodec and in no registry: its bytes say nothing without a
/// history.
inline constexpr IndexCodecId kHistoryIndexCodec{23};

/// Bytes before the ranks: the history's name.
inline constexpr uint64_t kHistoryNameBytes = 8;

/// Appends the code of `indices` against `history`: its name, and the indices' ranks in the order of classes
/// (history_ranks.h) as `adaptive` codes them. Indices with a similar history of updates have neighbouring ranks. So
/// the gaps before an index predict its gap as the history does.
///
/// indices  strictly increasing, below history.dimension().
/// REQUIRES history.complete()
void history_encode(const IndexHistory& history, IndexSpan indices, ByteBuffer& out);

/// Decodes exactly `count` indices. The bytes are hostile: any input gives a strictly increasing set of `count` indices
/// below the history's dimension, or an error.
///
/// Memory   twice the indices, and the bytes once more.
/// Cost     a word for every 64 entries of the dimension at most, beside the cost of the count.
/// Errors   stale: the code is against another history, or this one is not complete; nothing is decoded. malformed.
/// Threads  reentrant.
Status history_decode(ByteSpan bytes, const IndexHistory& history, uint64_t count, IndexBuffer& indices);

}  // namespace millrace
