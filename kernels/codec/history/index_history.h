#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/base/buffer.h"
#include "kernels/stream/stream.h"

namespace millrace {

// What sender and receiver of a part have both seen of it: which entries its updates changed, and how lately. Codes of
// indices against it are in history_code.h; the numbers that both sides must agree on are in protocol/wire/history.md.

inline constexpr uint64_t kHistoryDimensionMax = uint64_t{1} << 28;
inline constexpr uint64_t kHistoryPeriod = 32;  ///< updates; an entry is forgotten by one class a period
inline constexpr size_t kHistoryClasses = 8;
inline constexpr size_t kHistoryPeriodsPast =
    kHistoryClasses - 2;                       ///< before the present one, of which anything is left
inline constexpr uint64_t kHistoryBlock = 64;  ///< entries
inline constexpr uint64_t kHistoryGroupBlocks = 64;

/// An entry's class in the highest 4 bits: 7 where updates have it often, 0 where none of late had it. In the lowest,
/// how many updates of the present period had it, 8 at most.
using HistoryMark = uint8_t;

/// How many entries of each class a block has: byte c of the word.
using HistoryCounts = uint64_t;
using HistoryGroup = std::array<uint16_t, kHistoryClasses>;  ///< the same of kHistoryGroupBlocks blocks

/// Holds sums of such words, each class's below 2^16: of the classes 0, 2, 4, 6 and 1, 3, 5, 7.
struct HistoryLanes {
  static constexpr uint64_t kBytes = 0x00ff00ff00ff00ff;
  std::array<uint64_t, 2> pair{};

  void add(HistoryCounts word) {
    pair[0] += word & kBytes;
    pair[1] += word >> 8 & kBytes;
  }
  uint32_t of(uint32_t c) const { return static_cast<uint32_t>(pair[c % 2] >> 16 * (c / 2)) & 0xffffu; }
};

/// Returns the indices that an update changes: those of its values that are not 0, in either form. A view of it, or of
/// `storage`.
IndexSpan changed_indices(const StreamView& update, IndexBuffer& storage);

/// Holds the parts of a history that its code reads.
struct HistoryView {
  uint64_t dimension = 0;
  const HistoryMark* marks = nullptr;     ///< [blocks * kHistoryBlock]; behind the dimension of no class
  const HistoryCounts* counts = nullptr;  ///< [blocks]
  const HistoryGroup* groups = nullptr;   ///< [groups]
  size_t blocks = 0;
  size_t group_count = 0;
};

/// Keeps the classes of a part's entries, from the updates of the part's log in their order. They depend only on the
/// last 224 updates at most. A later joiner that has seen 6 whole periods has the same classes as an older member.
///
/// Memory   1.13 bytes an entry, for any updates.
/// Cost     advance(): 2 to 4 ns an index of the update; every 32nd one pass over the marks. name(): nothing.
/// Threads  none of its own; const methods are reentrant.
class IndexHistory {
 public:
  /// dimension  of the part, 1 to kHistoryDimensionMax.
  /// position   steps of the log that were applied before: 0 where this side sees all of it.
  explicit IndexHistory(uint64_t dimension, uint64_t position = 0);

  /// Forgets everything: steps were missed, and the next update is that of step `position`.
  void restart(uint64_t position);

  /// Adds the update of step position(), as it is decoded: the indices of the values that are not 0
  /// (changed_indices()).
  ///
  /// indices  strictly increasing, below dimension().
  void advance(IndexSpan indices);

  uint64_t dimension() const { return dimension_; }
  uint64_t position() const { return position_; }

  /// Returns whether nothing is missing that another side may have: codes can be made and read against it.
  bool complete() const { return from_start_ || position_ / kHistoryPeriod >= whole_from_ + kHistoryPeriodsPast; }

  /// Names the state: dimension, position and all updates that it depends on. Equal (up to 2^-64) only where the states
  /// are.
  /// REQUIRES: complete().
  uint64_t name() const;

  HistoryView view() const;

 private:
  void count_group(uint64_t group);
  void end_period();

  uint64_t dimension_ = 0;
  uint64_t position_ = 0;
  bool from_start_ = true;
  uint64_t whole_from_ = 0;                                   ///< the first period of which every update was seen
  uint64_t digest_ = 0;                                       ///< of the updates of the present period
  std::array<uint64_t, kHistoryPeriodsPast> digests_past_{};  ///< the last one first
  Buffer<HistoryMark> marks_;
  Buffer<HistoryCounts> counts_;
  Buffer<HistoryGroup> groups_;
};

}  // namespace millrace
