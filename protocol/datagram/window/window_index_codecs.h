#pragma once

#include <algorithm>
#include <cstdint>
#include <expected>
#include <span>

#include "kernels/base/buffer.h"
#include "protocol/datagram/window/window_code.h"
#include "protocol/datagram/window/window_value_codecs.h"

/// The index codecs of a window's fragment, one a file; window_code.cc's own. For each:
///
///     fit_X      how many indices off the front, with their values, take `capacity` bytes at most; 1 at least.
///     X_bytes    the number of bytes that put_X() will write.
///     put_X      writes `indices` (not empty); `out` has X_bytes.
///     read_X     reads hostile bytes to `out.size()` indices, which may be wrong in any way after a fault. Up to
///                kWindowSlack behind `out` are overwritten.
namespace millrace::protocol {

using IndexSpan16 = std::span<const uint16_t>;
using IndexFault = std::expected<void, WindowFault>;

inline constexpr uint32_t kFragmentEntriesTaken = kFragmentEntriesMax - kWindowSlack;

/// Returns the largest n in [1, count] with fits(n), which must hold up to some number and not above it. 1 where it
/// never holds.
template <typename Fits>
uint32_t largest_fitting(size_t count, Fits fits) {
  uint32_t low = 1;
  auto high = static_cast<uint32_t>(std::min<size_t>(count, kFragmentEntriesTaken));
  while (low < high) {
    const uint32_t middle = low + (high - low + 1) / 2;
    const bool is_low = fits(middle);  // not a branch: it would be unpredictable
    low = is_low ? middle : low;
    high = is_low ? high : middle - 1;
  }
  return low;
}

uint32_t fit_raw(IndexSpan16 indices, WindowValueCodec values, size_t capacity);
size_t raw_bytes(IndexSpan16 indices);
void put_raw(IndexSpan16 indices, std::span<uint8_t> out);
IndexFault read_raw(ByteSpan bytes, uint32_t window_indices, std::span<uint16_t> out);

/// The entries that fit, with the Rice parameter that is best for about as many.
struct GapFit {
  uint32_t taken = 0;
  uint32_t shift = 0;
  size_t bytes = 0;
};
GapFit fit_gap(IndexSpan16 indices, WindowValueCodec values, size_t capacity);
void put_gap(IndexSpan16 indices, uint32_t shift, std::span<uint8_t> out);
IndexFault read_gap(ByteSpan bytes, uint32_t window_indices, std::span<uint16_t> out);

uint32_t fit_bitmap(IndexSpan16 indices, WindowValueCodec values, size_t capacity);
size_t bitmap_bytes(IndexSpan16 indices);
void put_bitmap(IndexSpan16 indices, std::span<uint8_t> out);
IndexFault read_bitmap(ByteSpan bytes, uint32_t window_indices, std::span<uint16_t> out);

/// Fits a run. fit_dense() and dense_run() count the indices in it, put_dense() starts at its first.
uint32_t fit_dense(IndexSpan16 indices, WindowValueCodec values, size_t capacity);
/// Returns whether fit_dense() would take all of these.
bool fits_dense(IndexSpan16 indices, WindowValueCodec values, size_t capacity);
inline constexpr size_t kDenseBytes = 2;
/// Returns the length of the run from the first to the last of `indices`.
uint32_t dense_run(IndexSpan16 indices);
void put_dense(IndexSpan16 indices, std::span<uint8_t> out);
IndexFault read_dense(ByteSpan bytes, uint32_t window_indices, std::span<uint16_t> out);

/// Bloom, policy P0: the fit is found by building filters.
struct BloomTrim {
  uint32_t taken = 0;
  uint32_t positives = 0;  ///< indices of the range that the filter knows: those taken, and some
  size_t bytes = 0;        ///< of its code
};
/// Cuts a fragment of the Bloom codec.
///
/// known   [kFragmentEntriesMax] the positives. out [capacity]: the code, which put_bloom() would write.
BloomTrim trim_bloom(IndexSpan16 indices, WindowValueCodec values, size_t capacity, std::span<uint16_t> known,
                     std::span<uint8_t> out);
IndexFault read_bloom(ByteSpan bytes, uint32_t window_indices, std::span<uint16_t> out);

}  // namespace millrace::protocol
