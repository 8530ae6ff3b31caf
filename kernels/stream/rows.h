#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"

namespace millrace {

/// Accepts rows of a tensor: row r has its entries [r * width, (r + 1) * width). With a width of 1 rows are indices.
///
/// rows     any order.
/// count    values of all rows.
/// Errors   invalid_argument: a width of 0, another count, a row that does not lie in the dimension.
/// Threads  reentrant.
Status check_rows(uint32_t width, std::span<const uint32_t> rows, uint64_t count, uint64_t dimension);

/// Writes the index of each entry of the rows, in their order.
///
/// out      [rows.size() * width], not overlapping `rows`.
/// Cost     one pass over `out`.
/// REQUIRES: check_rows() accepts the rows.
void indices_of_rows(uint32_t width, std::span<const uint32_t> rows, std::span<uint32_t> out);

}  // namespace millrace
