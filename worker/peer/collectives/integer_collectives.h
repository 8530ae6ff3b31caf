#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/result.h"
#include "worker/peer/channel/channel.h"
#include "worker/peer/channel/coroutine_task.h"

/// Whole numbers of all ranks: counts, histograms, boundaries. Parts of other collectives; exact, so that all ranks
/// decide alike.
namespace millrace::peer {

/// Tags that each of these takes from first_tag on.
inline constexpr uint32_t kNumberTags = 128;

/// Sums the numbers of all ranks, element by element, modulo 2^64.
///
/// own     as many on every rank.
/// Bytes   a rank: 2 (P - 1) / P of the numbers in 2 log2 P messages. Where P is no power of two, ranks that also act
///         for another rank send the numbers once or twice more.
/// Errors  malformed: a peer sent another count.
/// Source  [Rabenseifner04]: recursive halving, recursive doubling.
Task<Result<std::vector<uint64_t>>> sum_numbers(Channel& channel, std::vector<uint64_t> own, uint32_t first_tag);

/// Gathers the numbers of all ranks, by rank, one after the other.
///
/// own     as many on every rank.
/// Bytes   a rank: P - 1 times its own, in ceil(log2 P) messages.
/// Errors  malformed: a peer sent another count.
/// Source  [Bruck97]: recursive doubling for any P.
Task<Result<std::vector<uint32_t>>> gather_numbers(Channel& channel, std::vector<uint32_t> own, uint32_t first_tag);

}  // namespace millrace::peer
