#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "switch_agg/slot/window_sum.h"

namespace millrace::switch_agg {

/// Holds the memory of one logged sum.
struct LoggedSumMemory {
  WindowMemory own;                    ///< for what outgrows the log
  std::span<uint64_t> shared_present;  ///< [window_indices / 64] zero between calls; of many sums
  std::span<uint16_t> shared_ranks;    ///< [window_indices / 64]
  std::span<uint16_t> log_indices;     ///< [log_values.size()]
  std::span<int32_t> log_values;
};

/// Sums as a WindowSum does, but postpones adding: entries are appended to a log, and added up when the turn is taken.
///
/// A slot's sums take hundreds of KiB, and a packet touches hundreds of their cache lines at random. All slots together
/// fit no cache near the core: adding at once costs a miss an entry. The log is read and written in order, and its sums
/// lie side by side (kernels/packet/entry_sum.h). So all of a turn stays in the nearest cache. Entries that do not fit
/// into the log are added at once, to separate memory. So are runs, which use their cache lines in full, and finally a
/// log of which a sum may leave its range.
///
/// Workers may name the same indices: a fixed mask, as for pruned models, or the same rows. Then values are added to
/// those in the log, and the log is the sum. That also holds for several packets a worker, where the first worker's
/// packets arrive in their order.
///
/// Results  those of a WindowSum, to the bit.
/// Threads  all sums that share memory belong to one thread.
class LoggedSum {
 public:
  LoggedSum() = default;
  explicit LoggedSum(const LoggedSumMemory& memory) : memory_(memory), own_(memory.own) {}

  /// As WindowSum::add(). Entries of another headroom than those before them end the log.
  ///
  /// REQUIRES: indices increase.
  void add(const protocol::WindowEntries& entries, int32_t headroom);
  /// As WindowSum::take().
  WindowSum::Taken take(std::span<uint16_t> indices, std::span<int32_t> values);
  /// Discards the added entries.
  void clear();

 private:
  protocol::WindowEntries logged() const {
    return {memory_.log_indices.first(logged_), memory_.log_values.first(logged_)};
  }

  /// Adds entries to the set in the log that has exactly their indices. False, and nothing has changed: there is none,
  /// or the bound of all sums would leave i32.
  ///
  /// largest  the largest magnitude of the entries, not over the headroom.
  bool add_in_place(const protocol::WindowEntries& entries, uint32_t largest);
  void flush_log();
  void forget_log() {
    logged_ = 0;
    ordered_ = 0;
    sets_ = 0;
    bound_ = 0;
  }

  /// Sets to look for a packet's indices in: a window has hardly more packets.
  static constexpr size_t kSetsMax = 8;

  LoggedSumMemory memory_;
  WindowSum own_;
  size_t logged_ = 0;  ///< entries.
  /// Of them the entries from the log's begin whose indices increase from set to set. Each is a value or a sum of
  /// values, and no value was over the headroom.
  size_t ordered_ = 0;
  size_t sets_ = 0;                          ///< in the ordered part
  std::array<size_t, kSetsMax> set_ends_{};  ///< [sets_]
  uint64_t bound_ = 0;                       ///< no sum of logged values has a larger magnitude
  int32_t headroom_ = 0;                     ///< of those logged
  bool is_added_ = false;                    ///< the turn's entries are in own_, and the log is empty
};

}  // namespace millrace::switch_agg
