#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/grid/reselect_sums.h"
#include "protocol/datagram/sent_log.h"
#include "protocol/datagram/switch_link.h"
#include "switch_agg/aggregator/job_machine.h"

namespace millrace::switch_agg {

/// Runs one job in role `combine`: a rack's switch, which adds up its workers' contributions and sends the sum to the
/// shard that decides (S7). All of it is soft state: losing it costs speed only.
///
/// combine_job.cc has the packet checks, the epoch and the uplink; combine_job_sums.cc the handling of a unit.
///
/// Invariant  a slot's sum is sent up only when it holds all units of all the rack's live workers of its turn. Then it
///            is closed, and nothing is added to it again. A flushed sum stays flushed for its turn.
/// Threads    one at a time, the aggregator's.
class CombineJob : public JobMachine {
 public:
  /// options, pool, scratch  outlive this.
  /// nonce_seed              random: of the uplink.
  CombineJob(const SwitchJob& job, const AggregatorOptions& options, SlotPool& pool, Scratch& scratch,
             uint64_t nonce_seed);

  void receive(const protocol::Datagram& datagram, const protocol::Endpoint& from, const Outbox& out) override;
  void tick(const Outbox& out) override;
  uint32_t slots_in_use() const override;
  std::optional<RackStatus> rack_status() const override;
  /// Reports a wait for the decider only; the decider reports which workers have not contributed.
  SwitchWaiting waiting() const override;

 private:
  using Uplink = RackUplink;
  enum class CellState : uint8_t {
    kGathering,
    kSent,  ///< the group is in the slot's kept results
    kRaw,   ///< no sum of this turn: units go up as they come
  };
  /// Holds a slot's state beside the slot of the pool.
  struct Cell {
    CellState state = CellState::kGathering;
    uint64_t askers = 0;  ///< kSent: have sent units again since the group went up last
    TimeNs sent_at = 0;   ///< ... for the first time
    TimeNs again_after = 0;
    uint64_t hash = 0;
    /// Number of further turns that are sent raw at once.
    uint32_t raw_turns = 0;
  };

  void forget() override;
  bool fits(const protocol::DatagramHeader& header, const protocol::HelloTerms& hello) const override;
  /// Says whether the job has ended: a lost rack costs speed only, so silence is enough.
  bool has_ended(TimeNs now) const override { return is_quiet(now); }
  void forget_sums();

  // Workers.
  void hello(const protocol::Datagram& datagram, const protocol::Endpoint& from, const Outbox& out);
  void welcome(uint16_t worker, const Outbox& out);

  // The shard.
  void from_shard(const protocol::Datagram& datagram, const Outbox& out);
  void ask_shard(const Outbox& out);
  void greet_shard(const Outbox& out);
  void doubt_shard(const Outbox& out);
  void shard_lacks(const protocol::LostSequences& lost, const Outbox& out);

  // Units.
  void contribution(const protocol::Datagram& datagram, const Outbox& out);
  void unit(const protocol::Datagram& datagram, const Outbox& out);
  void gather(const protocol::Datagram& datagram, const Outbox& out);
  void sent_again(const protocol::Datagram& datagram, const Outbox& out);
  void claim(Slot& slot, Cell& cell, const protocol::DatagramHeader& header);
  void flush(Slot& slot, Cell& cell, CellState then, const Outbox& out);
  void forward(const protocol::Datagram& datagram, const Outbox& out);
  void complete(uint16_t number, const Outbox& out);
  bool encode_group(uint16_t number, std::span<const uint16_t> indices, std::span<const int32_t> values,
                    const protocol::WindowCodecs& codecs, uint8_t flags);
  void send_group(uint16_t number, const Outbox& out);
  void send_part(uint16_t number, uint32_t part, const Outbox& out);
  void send_part_again(protocol::SentLog::Packet packet, const Outbox& out);
  void send_group_again(uint16_t number, const Outbox& out);
  void send_groups_asked_for(const Outbox& out);
  TimeNs answer_takes() const;
  void record_turnaround(const Cell& cell, TimeNs now);
  uint64_t send_up(protocol::DatagramHeader header, const protocol::PartialTerms& terms, ByteSpan payload,
                   const Outbox& out);

  protocol::SwitchLink link_;
  protocol::SentLog sent_;  ///< parts of groups
  Uplink uplink_ = Uplink::kNone;
  TimeNs asked_at_ = 0;
  TimeNs ask_after_ = 0;
  uint32_t tries_ = 0;
  Reselection reselection_;
  std::vector<Cell> cells_;
  std::array<protocol::Nonce, protocol::kSwitchWorkersMax> met_{};  ///< of each worker's session
  TimeNs turnaround_ = 0;  ///< smoothed: from a group's sending to its slot's next turn here
};

}  // namespace millrace::switch_agg
