#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/base/clock.h"

namespace millrace::peer {

/// Wakes ranks that sleep on the same machine, which MPI does not: a word of shared memory for each rank, and a futex on it. Who
/// sends to a rank rings its bell.
///
/// Hostile  what another rank writes there wakes this one too early or too late, and no more: who sleeps sets a time.
/// Threads  rest(): one; all others: any.
class MpiBells {
 public:
  /// Of the ranks of `comm` that share memory with this one. Collective. Null: none does, or there is no shared memory.
  static std::unique_ptr<MpiBells> over(MPI_Comm comm);
  MpiBells(const MpiBells&) = delete;
  MpiBells& operator=(const MpiBells&) = delete;
  /// The memory is not given back: that is collective, and would wait for a rank that is stuck.
  ~MpiBells() = default;

  /// Nothing happens where that rank is on another machine.
  void ring(uint32_t rank);
  /// How often this rank's bell has rung, modulo 2^32; to be asked before looking for messages.
  uint32_t rung() const { return own_->rung.load(std::memory_order_seq_cst); }
  /// Until the bell has rung more often than `seen`. False: the time is over.
  bool rest(uint32_t seen, TimeNs at_most);
  /// Ranks of `comm` on this machine share its cores, and there are more of them.
  bool is_crowded() const { return is_crowded_; }

 private:
  struct alignas(64) Bell {
    std::atomic<uint32_t> rung = 0;
    std::atomic<uint32_t> sleeps = 0;
  };
  static_assert(std::atomic<uint32_t>::is_always_lock_free);

  MpiBells() = default;

  Bell* own_ = nullptr;
  std::vector<Bell*> bells_;  ///< by rank; null: on another machine
  bool is_crowded_ = false;
};

}  // namespace millrace::peer
