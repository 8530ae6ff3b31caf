#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "protocol/datagram/extensions.h"
#include "protocol/datagram/header.h"
#include "protocol/datagram/packet_sink.h"
#include "switch_agg/aggregator.h"
#include "switch_agg/outbox.h"
#include "kernels/grid/step_cut.h"
#include "switch_agg/slot.h"
#include "switch_agg/worker_sessions.h"

namespace millrace::switch_agg {

/// Room that all jobs of an aggregator share: used within one call.
struct Scratch {
  explicit Scratch(uint32_t window_indices_max);

  std::vector<uint16_t> entry_indices;  ///< [kFragmentEntriesMax] of the packet at hand
  std::vector<int32_t> entry_values;
  std::vector<uint16_t> indices;  ///< [window_indices_max] of the turn that closes
  std::vector<int32_t> values;
  std::vector<int32_t> decoded;
};

/// One job in role `reduce`: sessions, the epoch procedure, slots. One concern a file: reduce_job.cc is the door (who
/// is it, is it
/// authentic, which life), reduce_epoch.cc section 6, reduce_contribution.cc section 4, reduce_result.cc what goes out.
///
/// Threads  one at a time, the aggregator's.
class ReduceJob {
 public:
  using Phase = SwitchPhase;

  /// options, pool, scratch  outlive this.
  ReduceJob(const SwitchJob& job, const AggregatorOptions& options, SlotPool& pool, Scratch& scratch);
  ~ReduceJob();
  ReduceJob(const ReduceJob&) = delete;
  ReduceJob& operator=(const ReduceJob&) = delete;

  const SwitchJob& job() const { return job_; }
  bool has_slots() const { return !slots_.empty(); }
  /// False: the pool has not so many.
  bool reserve_slots();
  uint64_t life() const { return sessions_.life(); }
  uint32_t epoch() const { return epoch_; }
  Phase phase() const { return phase_; }
  uint64_t live() const { return live_; }

  /// Everything of the life before is forgotten; slots stay reserved.
  void begin_life(uint64_t life, TimeNs now);
  /// Slots go back to the pool.
  void free_slots();
  /// It has slots, and no authentic packet came for the lease's time.
  bool lease_is_over(TimeNs now) const;

  void receive(const protocol::Datagram& datagram, const protocol::Endpoint& from, const Outbox& out);
  void tick(const Outbox& out);

 private:
  // The door.
  void challenge(const protocol::Datagram& datagram, const protocol::Endpoint& from, const Outbox& out);
  bool admit(const protocol::Datagram& datagram, const Outbox& out);
  void note(WorkerSessions::Verdict verdict, const Outbox& out) const;
  void notice(uint16_t worker, protocol::NoticeCode code, const Outbox& out);
  void notice_stranger(const protocol::Datagram& datagram, protocol::NoticeCode code, const protocol::Nonce& nonce,
                       const protocol::Endpoint& from, const Outbox& out);
  protocol::DatagramHeader header_of(protocol::DatagramType type) const;

  // Section 6.
  void hello(const protocol::Datagram& datagram, const protocol::Endpoint& from, const Outbox& out);
  void begin_collecting(uint32_t epoch, const protocol::HelloTerms& hello);
  void collect(uint16_t worker, const protocol::HelloTerms& hello, const Outbox& out);
  void all_collected(const Outbox& out);
  void fetch(const Outbox& out);
  void kept(const protocol::Datagram& datagram, const Outbox& out);
  void open(const Outbox& out);
  void welcome(uint16_t worker, const Outbox& out);

  // Section 4.
  void contribution(const protocol::Datagram& datagram, const Outbox& out);
  void current(Slot& slot, const protocol::Datagram& datagram, const Outbox& out);
  void claim(Slot& slot, const protocol::Datagram& datagram, const Outbox& out);
  bool decode(const protocol::Datagram& datagram, protocol::WindowEntries& entries, const Outbox& out) const;
  void add(Slot& slot, const protocol::Datagram& datagram, const protocol::WindowEntries& entries, const Outbox& out);

  // Results.
  void close(Slot& slot, uint16_t number, const Outbox& out);
  void send_to_all(KeptResult& result, const Outbox& out);
  void send_kept(Slot& slot, uint64_t turn, uint16_t worker, const Outbox& out);

  Slot& slot(uint32_t number) { return (*pool_)[slots_[number]]; }

  SwitchJob job_;
  const AggregatorOptions* options_;
  SlotPool* pool_;
  Scratch* scratch_;
  int32_t headroom_;
  WorkerSessions sessions_;
  Reselection reselection_;
  std::vector<uint16_t> slots_;  ///< of the pool, by the job's own number; empty: none reserved
  TimeNs heard_ = 0;             ///< the last authentic packet

  Phase phase_ = Phase::kClosed;
  uint32_t epoch_ = 0;
  uint64_t live_ = 0;
  uint64_t membership_ = 0;
  uint64_t greeted_ = 0;  ///< workers whose HELLO is in
  /// By slot, over the HELLOs that are in.
  struct Position {
    uint64_t least = 0;
    uint64_t most = 0;
    uint64_t at_most = 0;  ///< workers, a bit each: they have the result of turn most - 1
  };
  std::array<Position, protocol::kSlotsMax> positions_{};
  uint32_t fetches_left_ = 0;
  uint32_t fetch_tries_ = 0;
  TimeNs fetch_after_ = 0;
  std::array<uint8_t, protocol::kSlotsMax>
      fetched_from_{};  ///< worker asked for the slot's result; kNobody: not to be fetched
  static constexpr uint8_t kNobody = 255;
};

}  // namespace millrace::switch_agg
