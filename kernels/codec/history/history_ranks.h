#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/buffer.h"
#include "kernels/codec/history/index_history.h"

namespace millrace {

// Orders the entries of a part by their classes, lowest first, and within a class by their indices. An entry's rank is
// its place in this order.

/// Entries behind its results that history_indices() may overwrite.
inline constexpr size_t kHistorySlack = 16;

/// Computes the ranks of `indices`, increasing. [indices.size()]
///
/// indices  strictly increasing, below the dimension.
/// Cost     one look at each entry's block of 64 bytes. Where indices lie within 4096 of each other, also a word for
///          every 64 entries of the dimension.
void history_ranks(const HistoryView& history, IndexSpan indices, uint32_t* ranks);

/// Computes the indices of ranks.
///
/// ranks    [count + 1] strictly increasing and below the dimension; behind them 2^32 - 1.
/// indices  [count + kHistorySlack], increasing.
void history_indices(const HistoryView& history, const uint32_t* ranks, size_t count, uint32_t* indices);

}  // namespace millrace
