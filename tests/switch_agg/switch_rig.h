#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "switch_agg/aggregator/aggregator.h"
#include "tests/switch_agg/made_up_worker.h"

namespace millrace::testing {

/// An aggregator with one job, and its workers, one packet at a time. Time passes only where a test moves it.
class SwitchRig {
 public:
  static constexpr uint32_t kJob = 7;

  struct Shape {
    uint32_t workers = 3;
    uint32_t slots = 2;
    uint32_t window_indices = 256;
    uint64_t reselect_k = 0;
    uint32_t packet_bytes_max = 1472;
    uint32_t slots_max = 8;
    uint32_t job_packet_bytes = 0;  ///< 0: packet_bytes_max
  };
  explicit SwitchRig(const Shape& shape);
  SwitchRig() : SwitchRig(Shape{}) {}

  switch_agg::Aggregator& aggregator() { return aggregator_; }
  MadeUpWorker& worker(uint32_t at) { return workers_[at]; }
  uint64_t live() const { return (uint64_t{1} << workers_.size()) - 1; }
  switch_agg::SwitchJob job() const { return job_; }

  /// Hands in a packet as from that worker; sent() then has the answers.
  void give(uint32_t from, ByteSpan packet, protocol::Ecn ecn = protocol::Ecn::kEct0);
  void tick();
  /// Returns the packets that the last give() or tick() sent.
  const std::vector<Sent>& sent() const { return sink_.sent; }
  KeepingSink& sink() { return sink_; }

  /// How often the event happened since the rig was made or since() was called last.
  uint64_t counted(switch_agg::AggregatorEvent event) const { return aggregator_.counters()[event] - before_[event]; }
  void since_now() { before_ = aggregator_.counters(); }

  /// CHALREQ and CHALLENGE of one worker, or of all.
  void shake_hands(uint32_t at);
  void shake_hands();
  /// HELLOs of all live workers with these positions (all slots alike, by worker).
  void greet(uint32_t epoch, const std::vector<uint64_t>& positions);
  /// Handshake, HELLO of epoch 1 at turn 1: the job is open.
  void open();

  /// Returns the packets of the last give() that this worker would have accepted: authentic ones to its address.
  std::vector<protocol::Datagram> heard(uint32_t at) const;
  /// The one of them; a failure of the test where there is not exactly one.
  protocol::Datagram only(uint32_t at) const;
  /// All entries of RESULT fragments to that worker, together.
  Entries result(uint32_t at) const;

  /// The workers contribute these to a turn, a packet each, in order.
  void turn(MadeUpWorker::ContributionFields fields, const std::vector<Entries>& by_worker);

  TimeNs now = 1'000'000'000;
  AroundCall around = kNothingAround;

 private:
  switch_agg::SwitchJob job_;
  switch_agg::Aggregator aggregator_;
  std::deque<MadeUpWorker> workers_;
  KeepingSink sink_;
  switch_agg::AggregatorCounters before_;
};

protocol::JobKey job_key(uint8_t seed);

}  // namespace millrace::testing
