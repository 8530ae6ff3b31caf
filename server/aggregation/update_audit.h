#pragma once

#include <span>
#include <vector>

#include "kernels/stream/stream.h"

namespace millrace::server {

/// The entries of the contributions that an update represents.
enum class Extent : uint8_t {
  kEverything = 1,  ///< all of them: the sum was not cut
  kItsIndices = 2,  ///< those at its own indices
};

/// The values of each contribution that an update carries, and whether they sum up to the update.
struct UpdateAudit {
  std::vector<double> carried;  ///< by contribution: sum of its entries that the update stands for
  double imbalance = 0;         ///< sum of |sums - carried| over the blocks where that is more than rounding
};

/// Computes the values that an update carries of each contribution, and compares them with the sums.
///
/// carried        the update's indices (with Extent::kEverything: the sum's).
/// sums           the sum at each of them, before the way down changed values.
/// Sees           blocks of 2^17 indices are compared, each with the bound of its own roundings, m additions of half a
///                unit in the last place. A lost or doubled entry of typical size shows among m contributions up to m =
///                256 where all entries of a block are there. The size of the part does not matter.
/// Cost           one pass over all of them, and, where the sum was cut, a lookup an entry in 16 KiB of bits. That is a
///                third of the sum (sum_at_least) of four streams of 1 %.
UpdateAudit audit_update(const StreamView& carried, std::span<const float> sums,
                         std::span<const StreamView> contributions, Extent extent);

}  // namespace millrace::server
