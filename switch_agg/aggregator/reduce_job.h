#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <memory>

#include "kernels/grid/reselect_sums.h"
#include "switch_agg/aggregator/job_machine.h"
#include "switch_agg/aggregator/rack_groups.h"

namespace millrace::switch_agg {

/// Runs one job in role `reduce`: sessions, the epoch procedure, slots. One concern a file. job_machine.cc: the checks
/// of incoming packets. reduce_job_epoch.cc: S6. reduce_job_contribution.cc: S4. reduce_job_partial.cc: racks' sums
/// (S7). reduce_job_result.cc: results.
///
/// Threads  one at a time, the aggregator's.
class ReduceJob : public JobMachine {
 public:
  /// options, pool, scratch  outlive this.
  ReduceJob(const SwitchJob& job, const AggregatorOptions& options, SlotPool& pool, Scratch& scratch);

  void receive(const protocol::Datagram& datagram, const protocol::Endpoint& from, const Outbox& out) override;
  void tick(const Outbox& out) override;
  SwitchWaiting waiting() const override;

 private:
  void forget() override;
  bool fits(const protocol::DatagramHeader& header, const protocol::HelloTerms& hello) const override;
  bool has_ended(TimeNs now) const override;

  // S6.
  void hello(const protocol::Datagram& datagram, const protocol::Endpoint& from, const Outbox& out);
  bool has_the_shape(const protocol::Datagram& datagram, const protocol::HelloTerms& hello, const Outbox& out);
  void rack_hello(const protocol::Datagram& datagram, const protocol::Endpoint& from, const Outbox& out);
  void begin_collecting(uint32_t epoch, const protocol::HelloTerms& hello);
  void collect(uint16_t worker, const protocol::HelloTerms& hello, const Outbox& out);
  void all_collected(const Outbox& out);
  void fetch(const Outbox& out);
  void on_kept(const protocol::Datagram& datagram, const Outbox& out);
  void open(const Outbox& out);
  void welcome(uint16_t worker, const Outbox& out);

  // S4.
  void contribution(const protocol::Datagram& datagram, const Outbox& out);
  void unit(const protocol::Datagram& datagram, const Outbox& out);
  void current(Slot& slot, const protocol::Datagram& datagram, const Outbox& out);
  void claim(Slot& slot, const protocol::Datagram& datagram, const Outbox& out);
  void claim_turn(Slot& slot, const protocol::DatagramHeader& header, const Outbox& out);
  void add(Slot& slot, const protocol::Datagram& datagram, const protocol::WindowEntries& entries, const Outbox& out);
  void close_if_whole(Slot& slot, uint16_t number, const Outbox& out);

  // Racks.
  void partial(const protocol::Datagram& datagram, const Outbox& out);
  void group_part(uint32_t rack, const protocol::Datagram& datagram, const protocol::PartialTerms& terms,
                  const Outbox& out);
  bool is_group_right(uint32_t rack, uint32_t number, uint64_t workers, const Outbox& out);
  void add_group(uint32_t rack, uint32_t number, uint64_t workers, const Outbox& out);

  // Results.
  void close(Slot& slot, uint16_t number, const Outbox& out);
  void send_to_all(KeptResult& result, const Outbox& out);
  void send_kept(Slot& slot, uint64_t turn, uint16_t worker, const Outbox& out);

  Reselection reselection_;
  std::unique_ptr<RackGroups> groups_;  ///< of a job with racks

  /// Holds a slot's positions, over the received HELLOs.
  struct Position {
    uint64_t least = 0;
    uint64_t most = 0;
    uint64_t at_most = 0;  ///< workers, a bit each: they have the result of turn most - 1
  };
  std::array<Position, protocol::kSlotsMax> positions_{};
  uint32_t epoch_slots_ = 0;  ///< slots of the epoch's job: at most as many as are reserved; 0: no epoch yet
  uint32_t open_turns_ = 0;   ///< of all slots
  uint32_t fetches_left_ = 0;
  uint32_t fetch_tries_ = 0;
  TimeNs fetch_after_ = 0;
  std::array<uint8_t, protocol::kSlotsMax>
      fetched_from_{};  ///< worker asked for the slot's result; kNobody: not to be fetched
  static constexpr uint8_t kNobody = 255;
  /// Workers that contributed in this epoch and incarnation themselves. A rack may forward contributions of an earlier
  /// incarnation.
  uint64_t contributed_ = 0;
  std::bitset<protocol::kSlotsMax> ended_{};  ///< slots whose last turn was a closing one (FIN)
};

}  // namespace millrace::switch_agg
