#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "kernels/magnitude/magnitude_scan.h"

/// Shared steps of the exact selections: from a guess of the threshold of the k largest to the exact one, and to the
/// selected entries.
namespace millrace {

/// Holds the threshold of the k largest: everything above `key`, and the first `ties` of those equal to it.
struct TopKThreshold {
  MagnitudeKey key = 0;
  uint64_t ties = 0;
};

/// Guesses a key that the k-th largest most likely reaches, and the number of entries at or above it. Without a better
/// guess: all entries. A wrong guess costs a slower path, never a wrong answer.
struct ThresholdGuess {
  MagnitudeKey key = 0;
  uint64_t expected = 0;
};

/// Holds the cut of the k largest, with candidates that hold all of them unless `from_values`.
struct TopKSearch {
  TopKThreshold threshold;
  Candidates candidates;
  bool from_values = false;
};

/// Returns the cut of `keys` (1 <= k <= keys.size()), by radix select.
TopKThreshold threshold_at(std::span<const MagnitudeKey> keys, uint64_t k);

/// Returns the threshold of the k largest (1 <= k <= n): by radix select among the entries that reach the guess. It
/// searches among all entries where too many reach it, or too few.
///
/// Cost     one memory pass with a good guess; with a bad one also those of kth_largest_key_of_values and one more.
///          Scratch of O(guess.expected).
/// Errors   NaN or infinity: non_finite.
Result<TopKSearch> search_top_k(std::span<const float> values, uint64_t k, ThresholdGuess guess);

/// Returns the same by radix select over the values themselves, without a guess.
Result<TopKSearch> search_top_k_by_radix(std::span<const float> values, uint64_t k);

/// Writes the positions of the k largest of `candidates`, increasing; ties: lower index first.
/// REQUIRES: 1 <= k <= candidates.keys.size().
void emit_largest(const Candidates& candidates, uint64_t k, IndexBuffer& positions);

enum class Zeros : uint8_t { kSelected, kSkipped };

/// Writes the positions of the selected entries, at most k.
///
/// Errors   the search's; nothing is written then.
Status emit_top_k(std::span<const float> values, uint64_t k, Zeros zeros, const Result<TopKSearch>& search,
                  IndexBuffer& positions);

}  // namespace millrace
