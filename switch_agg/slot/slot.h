#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/clock.h"
#include "protocol/datagram/header.h"
#include "switch_agg/slot/kept_result.h"
#include "switch_agg/slot/logged_sum.h"
#include "switch_agg/slot/pool_memory.h"

namespace millrace::switch_agg {

/// Holds one slot of a job: a turn that is open or closed, and the results of the last two (S3).
///
/// Invariants  turn cur - 1 is closed, always: only cur may be open. So one sum a slot is enough, and two kept results.
///             Where cur is closed the sum is all zero. have[f] names workers of `begun` only; `whole` is a subset of
///             `begun`.
struct Slot {
  static constexpr uint8_t kUnknown = 255;

  /// Holds one worker's part of the open turn, as its packets report it. Valid for workers in `begun` only; for others
  /// it is old.
  struct Part {
    uint32_t next = protocol::kNoWindow;
    uint8_t fragments = 0;  ///< number of received fragments
    uint8_t top = 0;        ///< the highest of them
    uint8_t last = kUnknown;
  };

  uint64_t cur = 0;
  bool open = false;
  /// Of a closed cur: what turn cur + 1 is about, where its result is known here. After an opening with equal positions
  /// it is not: all workers know it, and the first says it.
  bool successor_known = false;
  uint32_t successor_step = 0;
  uint32_t successor_window = 0;

  // The open turn.
  uint32_t step = 0;
  uint32_t window = 0;
  uint32_t next = protocol::kNoWindow;  ///< the least so far
  int8_t exponent = 0;
  bool all_fin = true;
  uint64_t begun = 0;
  uint64_t whole = 0;
  uint64_t grouped = 0;  ///< in by their rack's group: no unit of theirs is taken any more
  std::array<uint64_t, protocol::kFragmentsMax> have{};
  std::array<Part, protocol::kSwitchWorkersMax> parts{};
  LoggedSum sum;

  std::array<KeptResult, 2> kept;  ///< of turn t at t & 1
  std::array<TimeNs, protocol::kSwitchWorkersMax> answer_after{};

  KeptResult& kept_of(uint64_t turn) { return kept[turn & 1]; }
  /// Begins turn cur + 1.
  void claim(const protocol::DatagramHeader& header);
  /// Notes a unit that is in the sum: its worker, and whether the worker's contribution is complete.
  void take_unit(const protocol::DatagramHeader& header);
  /// Takes a group of these workers, none of which had begun.
  void take_group(uint64_t workers, const protocol::DatagramHeader& header);
  /// Sets cur to `turn`, closed, without a result; open sums are discarded.
  void set_closed(uint64_t turn);
  /// Sets the turn that follows cur's result.
  void set_successor(uint32_t own, uint32_t step_now, uint32_t next_window);
};

/// Says how much of a slot's memory a job uses.
struct SlotShape {
  uint32_t window_indices = 0;
  uint32_t packet_bytes = 0;  ///< of a result's fragment
};

/// Owns the slots of all jobs, and their memory: made once.
///
/// Memory  slots_max x (window_indices_max x (5.5 B + 2 bit) + 2 x 16 x packet_bytes_max + about 3 KiB).
class SlotPool {
 public:
  SlotPool(uint32_t slots_max, uint32_t window_indices_max, uint32_t packet_bytes_max);

  uint32_t free_slots() const { return static_cast<uint32_t>(free_.size()); }
  /// Returns the numbers of this many slots in `out`, with sums and results of this shape in the first part of their
  /// memory. Returns false where fewer are free; then nothing changes.
  bool reserve(uint32_t slots, const SlotShape& shape, std::vector<uint16_t>& out);
  /// Frees the slots. REQUIRES: they have no open sum (set_closed()).
  void give_back(std::vector<uint16_t>& slots);
  Slot& operator[](uint16_t at) { return slots_[at]; }
  const Slot& operator[](uint16_t at) const { return slots_[at]; }

 private:
  uint32_t window_indices_max_;
  uint32_t packet_bytes_max_;
  PoolMemory<int32_t> sums_;
  PoolMemory<uint64_t> bits_;
  PoolMemory<int32_t> log_values_;
  PoolMemory<uint16_t> log_indices_;
  PoolMemory<uint64_t> shared_present_;  ///< of one window: LoggedSumMemory
  PoolMemory<uint16_t> shared_ranks_;
  PoolMemory<uint8_t> results_;
  std::vector<Slot> slots_;
  std::vector<uint16_t> free_;
};

}  // namespace millrace::switch_agg
