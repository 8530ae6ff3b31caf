#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "switch_agg/aggregator/aggregator.h"
#include "tests/switch_agg/made_up_worker.h"

namespace millrace::testing {

/// A shard, a rack's switch in front of it, workers 0 and 1 in the rack and worker 2 beside it. Packets between the two
/// machines are delivered unless `lost` selects them; packets to workers are kept.
class RackRig {
 public:
  static constexpr uint32_t kJob = 7;
  using Fields = MadeUpWorker::ContributionFields;

  struct Shape {
    uint32_t window_indices = 256;
    uint64_t rack_reselect_k = 0;
    uint32_t packet_bytes_max = 1472;
    uint32_t rack_packet_bytes_max = 1472;
    uint32_t rack_slots_max = 4;
  };
  explicit RackRig(const Shape& shape);
  RackRig() : RackRig(Shape{}) {}

  /// Handshakes and HELLOs of all with both: everything is open.
  void open();
  void greet_shard(uint32_t epoch, uint64_t live, uint64_t position);
  void shake_hands_with_shard();
  void shake_hands_with_rack();
  void greet_rack(uint32_t epoch, uint64_t live, uint64_t membership_hash = 77);
  void restart_shard();

  /// One contribution of a worker, to its rack or past it.
  void to_rack(uint32_t worker, const Fields& fields, const Entries& entries);
  void to_shard(uint32_t worker, const Fields& fields, const Entries& entries);
  void give_rack(ByteSpan packet, protocol::Ecn ecn = protocol::Ecn::kEct0);
  void give_shard(ByteSpan packet);
  void tick_rack();
  void tick_shard();

  MadeUpWorker& at_rack(uint32_t worker) { return at_rack_[worker]; }
  MadeUpWorker& at_shard(uint32_t worker) { return at_shard_[worker]; }
  uint64_t counted_at_rack(switch_agg::AggregatorEvent event) const { return rack_.counters()[event]; }
  uint64_t counted_at_shard(switch_agg::AggregatorEvent event) const { return shard_->counters()[event]; }
  /// PARTIALs that the rack sent since the last call, lost ones too.
  std::vector<protocol::Datagram> partials();
  /// Returns the results to that worker since the last call of this or of told(): fragments, and their entries
  /// together.
  std::vector<ByteBuffer> results(uint32_t worker);
  /// Everything that workers were sent, and nothing of it was asked for yet.
  const std::vector<Sent>& to_workers() const { return to_workers_; }
  Entries told(uint32_t worker);
  switch_agg::Aggregator& shard() { return *shard_; }
  switch_agg::Aggregator& rack() { return rack_; }
  const switch_agg::SwitchJob& rack_job() const { return rack_job_; }

  TimeNs now = 1'000'000'000;
  AroundCall around = kNothingAround;
  /// Of packets between rack and shard.
  std::function<bool(const protocol::Datagram&)> lost = [](const protocol::Datagram&) { return false; };

 private:
  void carry(KeepingSink& from);
  void hand_to_rack(const protocol::ReceivedPacket& packet);
  void hand_to_shard(const protocol::ReceivedPacket& packet);

  switch_agg::SwitchJob shard_job_;
  switch_agg::SwitchJob rack_job_;
  switch_agg::AggregatorOptions options_;
  uint64_t lives_ = 1;
  std::unique_ptr<switch_agg::Aggregator> shard_;
  switch_agg::Aggregator rack_;
  std::deque<MadeUpWorker> at_shard_;
  std::deque<MadeUpWorker> at_rack_;
  KeepingSink shard_sink_;
  KeepingSink rack_sink_;
  std::deque<ByteBuffer> partials_;
  std::deque<ByteBuffer> given_;
  std::vector<Sent> to_workers_;
};

}  // namespace millrace::testing
