#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/result.h"
#include "kernels/magnitude/magnitude_scan.h"

/// What the exact selections share: from a guess at where the k largest end to where they do end, and to what is in.
namespace millrace {

/// Where the k largest end: everything above `key`, and the first `ties` of those equal to it.
struct Cut {
  MagnitudeKey key = 0;
  uint64_t ties = 0;
};

/// A key that the k-th largest most likely reaches, and how many entries are expected at or above it: all of them where
/// nothing better is known. A wrong guess costs a slower path, never a wrong answer.
struct CutGuess {
  MagnitudeKey key = 0;
  uint64_t expected = 0;
};

/// The cut of the k largest, with candidates that hold all of them unless `from_values`.
struct CutSearch {
  Cut cut;
  Candidates candidates;
  bool from_values = false;
};

/// The cut of `keys` (1 <= k <= keys.size()), by radix select.
Cut cut_at(std::span<const MagnitudeKey> keys, uint64_t k);

/// The cut of the k largest (1 <= k <= n): radix select among the entries that reach the guess, or among all where too
/// many of them do, or too few.
///
/// Cost     one memory pass with a good guess; with a bad one also those of kth_largest_key_of_values and one more.
///          Scratch of O(guess.expected).
/// Errors   NaN or infinity: non_finite.
Result<CutSearch> search_cut(std::span<const float> values, uint64_t k, CutGuess guess);

/// The same by radix select over the values themselves, whatever they are.
Result<CutSearch> search_cut_by_radix(std::span<const float> values, uint64_t k);

enum class Zeros : uint8_t { kSelected, kSkipped };

/// Writes the positions of what is in, at most k.
///
/// Errors   the search's; nothing is written then.
Status emit_cut(std::span<const float> values, uint64_t k, Zeros zeros, const Result<CutSearch>& search,
                IndexBuffer& positions);

}  // namespace millrace
