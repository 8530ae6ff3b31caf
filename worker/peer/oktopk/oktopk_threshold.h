#pragma once

#include <cstdint>
#include <span>

#include "kernels/magnitude/magnitude_scan.h"
#include "worker/peer/channel/channel.h"
#include "worker/peer/channel/coroutine_task.h"

namespace millrace::peer {

/// Tags that it takes from first_tag on.
inline constexpr uint32_t kThresholdTags = 4096;

/// Bits of a magnitude's key, and how many of them a round of kth_largest_of_all() finds.
inline constexpr int kThresholdBits = 8 * static_cast<int>(sizeof(float)) - 1;
int threshold_digit_bits(uint64_t k);

/// Returns the k-th largest magnitude of all ranks' values together, as a key. It is 1, which every value but 0
/// reaches, where no more than k are not 0. The same as sorting all of them gathered [OkTopk22, algorithm 1, lines 10
/// and 11]. Found by counting: a digit of the key a round, its histogram summed over the ranks.
///
/// values  finite; kept alive by the caller.
/// k       > 0, the same on all ranks.
/// Bytes   a round: sum_numbers() of 2^b numbers, b = log2 k - 3 or so, 4 to 11; 31 / b rounds. Gathering
///         all values would be up to P k entries.
/// Errors  malformed: as sum_numbers(); histograms that do not add up.
Task<Result<MagnitudeKey>> kth_largest_of_all(Channel& channel, std::span<const float> values, uint64_t k,
                                              uint32_t first_tag);

}  // namespace millrace::peer
