#pragma once

#include <cstdint>
#include <span>

#include "switch_agg/window_sum.h"

namespace millrace::switch_agg {

/// Memory of one logged sum.
struct LoggedSumMemory {
  WindowMemory own;                    ///< for what outgrows the log
  std::span<uint64_t> shared_present;  ///< [window_indices / 64] zero between calls; of many sums
  std::span<uint16_t> shared_ranks;    ///< [window_indices / 64]
  std::span<uint16_t> log_indices;     ///< [log_values.size()]
  std::span<int32_t> log_values;
};

/// A WindowSum that puts off adding: entries are written one behind the other, and added up when the turn is taken.
///
/// A slot's sums are hundreds of KiB of which a packet touches hundreds of cache lines at random, and all slots together fit no
/// cache near the core: adding at once costs a miss an entry. The log is read and written in order, and its sums lie side by side
/// (kernels/window/entry_sum.h), so that all of a turn stays in the nearest cache. What does not fit into the log is added at
/// once, to memory of its own; runs too, which use their cache lines in full; and so is in the end a log of which a sum may
/// leave its range.
///
/// Where all name the same indices (a fixed mask, as pruned models are trained with; the same rows), values are added to those of
/// the first in the log, and the log is the sum.
///
/// Results  those of a WindowSum, to the bit.
/// Threads  all sums that share memory belong to one thread.
class LoggedSum {
 public:
  LoggedSum() = default;
  explicit LoggedSum(const LoggedSumMemory& memory) : memory_(memory), own_(memory.own) {}

  /// As WindowSum::add(). Entries of another headroom than those before them end the log.
  void add(const protocol::WindowEntries& entries, int32_t headroom);
  /// As WindowSum::take().
  WindowSum::Taken take(std::span<uint16_t> indices, std::span<int32_t> values);
  /// Throws away what was added.
  void clear();

 private:
  protocol::WindowEntries logged() const {
    return {memory_.log_indices.first(logged_), memory_.log_values.first(logged_)};
  }

  /// Where the log is one contribution, or several of one set of indices, and these entries are of that set: adds them there.
  bool add_in_place(const protocol::WindowEntries& entries, uint32_t largest);
  void flush_log();
  void forget_log() {
    logged_ = 0;
    first_ = 0;
    bound_ = 0;
    in_place_ = false;
  }

  LoggedSumMemory memory_;
  WindowSum own_;
  size_t logged_ = 0;      ///< entries
  size_t first_ = 0;       ///< of them the first contribution's, indices increasing
  uint64_t bound_ = 0;     ///< no sum of what is logged has a larger magnitude
  int32_t headroom_ = 0;   ///< of those logged
  bool in_place_ = false;  ///< the first's values are sums of several, none over its headroom
  bool is_added_ = false;  ///< the turn's entries are in own_, and the log is empty
};

}  // namespace millrace::switch_agg
