#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "kernels/magnitude/magnitude_scan.h"
#include "kernels/magnitude/top_k_search.h"

namespace millrace {

/// Returns a key from 1 up that at least `least` and at most `most` of the keys reach. Where ties leave none, it is the
/// highest one that more reach; 1 if too few are not zero.
MagnitudeKey bisect_keys(std::span<const MagnitudeKey> keys, double least, double most);

/// Returns a threshold for n entries that a little over k reach, by a sample of their keys. Empty sample: 1.
ThresholdGuess guess_k_to_2k(std::span<const MagnitudeKey> sample, uint64_t n, uint64_t k);

/// Returns the most candidates at or above the guess that select_k_to_2k() searches. Of more it takes the exact top-k.
uint64_t k_to_2k_limit(const ThresholdGuess& guess, uint64_t k);

/// Selects every entry at or above a threshold that between k and 2k entries reach. Zeros are never selected: where at
/// most k entries are not zero, all of these. Where equal magnitudes leave no such threshold, exactly the k largest.
///
/// values     [n], any alignment; k in [1, n].
/// positions  out: strictly increasing; empty on error.
/// Returns    the key of the threshold; 0 where the selected entries are not those over a threshold.
/// Cost       one memory pass and a sample on ordinary data; never more than select_top_k_nonzero and one pass.
/// Errors     NaN or infinity: non_finite.
/// Source     [RedSync19, 2.1, algorithm 3].
Result<MagnitudeKey> select_k_to_2k(std::span<const float> values, uint64_t k, IndexBuffer& positions);

}  // namespace millrace
