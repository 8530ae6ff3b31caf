#pragma once

#include <cstdint>
#include <span>

#include "protocol/datagram/window/window_code.h"

namespace millrace::switch_agg {

/// Holds the memory of one sum, all of it zero at the start.
struct WindowMemory {
  std::span<int32_t> sums;      ///< [window_indices]
  std::span<uint64_t> present;  ///< [window_indices / 64] which indices were sent
  std::span<uint64_t> omitted;  ///< [window_indices / 64] which of them have left the range
};

/// Holds the sum of one open turn, on the slot's grid.
///
/// Invariant  without an open turn all memory is zero: take() and clear() write zeros where add() wrote, and nowhere
///            else. So the first contribution writes, later ones add, by the same plain addition, and no pass over the
///            window clears it.
/// Overflow   S4.17: an index is omitted from the result in two cases, and its values return to the residuals. One
///            value is over the headroom (2^31 - 1) / workers, in any order of arrival. Or the sum leaves i32, possible
///            only where a worker sends an index in several fragments.
/// Threads    one at a time.
class WindowSum {
 public:
  WindowSum() = default;
  explicit WindowSum(const WindowMemory& memory) : memory_(memory) {}

  /// Adds entries that decode_window() has validated for a window of at most this memory's indices.
  ///
  /// headroom  (2^31 - 1) / workers of the job.
  void add(const protocol::WindowEntries& entries, int32_t headroom);
  /// Does the same for entries that need not increase, and may name an index several times: of several contributions.
  void add_in_any_order(const protocol::WindowEntries& entries, int32_t headroom);

  struct Taken {
    uint32_t count = 0;
    uint32_t omitted = 0;       ///< indices
    uint32_t magnitude_or = 0;  ///< all magnitudes or-ed: its bit width is that of the largest
  };
  /// Moves the sum out, indices increasing, and leaves zeros.
  /// indices, values  [window_indices].
  Taken take(std::span<uint16_t> indices, std::span<int32_t> values);

  /// Discards the added values.
  void clear();

 private:
  /// Both return non-0 where a value is over the headroom.
  uint32_t add_run(uint32_t first, std::span<const int32_t> values, int32_t headroom);
  uint32_t add_scattered(const protocol::WindowEntries& entries, int32_t headroom);
  void omit_over(const protocol::WindowEntries& entries, int32_t headroom);
  void omit(uint32_t index);
  uint32_t take_omitted();

  WindowMemory memory_;
  bool omits_ = false;  ///< any bit of `omitted` is set
};

}  // namespace millrace::switch_agg
