#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "switch_agg/aggregator/aggregator.h"
#include "switch_agg/aggregator/aggregator_counters.h"
#include "switch_agg/aggregator/split_by_lanes.h"
#include "tests/sim/switch/switch_network.h"
#include "tests/sim/switch/switch_sim.h"

namespace millrace::testing {
namespace {

using switch_agg::AggregatorEvent;

constexpr uint32_t kNoRack = UINT32_MAX;

/// A decider, or the switch of a rack.
class Production : public SwitchDecider {
 public:
  Production(const SwitchScenario& scenario, uint32_t rack, uint32_t slots_short, uint64_t incarnation_seed, TimeNs now)
      : aggregator_(options(scenario, slots_short), incarnation_seed), is_rack_(rack != kNoRack) {
    for (const SwitchSimJob& job : scenario.jobs) {
      switch_agg::SwitchJob out;
      out.job = job.job;
      out.name = "job " + std::to_string(job.job);
      out.key = job.key;
      out.workers = job.workers + job.joiners;
      out.window_indices = job.window_indices;
      out.slots = job.slots + job.slots_spare;
      out.lanes = job.lanes;
      out.packet_bytes = scenario.packet_bytes;
      out.reselect_k = job.reselect_k;
      out.lease_ns = scenario.lease_ns;
      for (uint32_t at = 0; rack == kNoRack && at < scenario.racks; ++at) {
        if (rack_workers(scenario, job, at) != 0) out.racks.push_back(rack_workers(scenario, job, at));
      }
      if (rack != kNoRack) {
        out.role = switch_agg::Role::kCombine;
        out.reselect_k = job.rack_reselect_k;
        out.rack = rack_workers(scenario, job, rack);
        out.rack_number = static_cast<uint16_t>(rack);
        out.shard = sim_endpoint(scenario.switches);
        if (out.rack == 0) continue;
      }
      for (const switch_agg::SwitchJob& lane : switch_agg::split_by_lanes(out)) {
        const Status added = aggregator_.add_job(lane, now);
        MILLRACE_CHECK(added.has_value() || (slots_short > 0 && added.error().code == ErrorCode::kLimitExceeded));
      }
    }
  }
  void receive(const protocol::ReceivedPacket& packet, TimeNs now, protocol::PacketSink& sink) override {
    aggregator_.receive(packet, now, sink);
  }
  void tick(TimeNs now, protocol::PacketSink& sink) override { aggregator_.tick(now, sink); }
  std::string impossible() const override {
    std::string out;
    for (const AggregatorEvent event :
         {AggregatorEvent::kFuture, AggregatorEvent::kPositionsApart, AggregatorEvent::kWrongBinding,
          AggregatorEvent::kMalformedPayload, AggregatorEvent::kHelloRefused}) {
      const uint64_t times = aggregator_.counters()[event];
      if (times > 0) out += std::string(switch_agg::aggregator_event_name(event)) + " " + std::to_string(times) + " ";
    }
    return out;
  }
  RackCounts rack_counts() const override {
    const auto count = [this](AggregatorEvent event) { return aggregator_.counters()[event]; };
    return {.groups_added = count(AggregatorEvent::kGroupAdded),
            .group_overlaps = count(AggregatorEvent::kGroupOverlap),
            .groups_sent = count(AggregatorEvent::kGroupSent),
            .groups_cut = is_rack_ ? count(AggregatorEvent::kReselected) : 0,
            .groups_again = count(AggregatorEvent::kGroupAgain),
            .groups_too_long = count(AggregatorEvent::kGroupTooLong),
            .forwarded = count(AggregatorEvent::kForwarded),
            .flushed = count(AggregatorEvent::kFlushed),
            .no_slots = count(AggregatorEvent::kNoSlots)};
  }

 private:
  static switch_agg::AggregatorOptions options(const SwitchScenario& scenario, uint32_t slots_short) {
    switch_agg::AggregatorOptions out;
    out.slots_max = slots_wanted(scenario) - slots_short;
    out.window_indices_max = 64;
    for (const SwitchSimJob& job : scenario.jobs) {
      out.window_indices_max = std::max(out.window_indices_max, job.window_indices);
    }
    out.packet_bytes_max = scenario.packet_bytes;
    return out;
  }

  switch_agg::Aggregator aggregator_;
  bool is_rack_;
};

}  // namespace

MakeDecider production_decider() {
  return [](const SwitchScenario& scenario, uint32_t node, uint64_t incarnation_seed, TimeNs now) {
    const uint32_t slots_short = node == scenario.switches ? 0 : scenario.slots_short;
    return std::make_unique<Production>(scenario, kNoRack, slots_short, incarnation_seed, now);
  };
}

std::unique_ptr<SwitchDecider> make_rack(const SwitchScenario& scenario, uint32_t rack, uint64_t incarnation_seed,
                                         TimeNs now) {
  return std::make_unique<Production>(scenario, rack, scenario.slots_short, incarnation_seed, now);
}

uint32_t rack_of(const SwitchScenario& scenario, uint32_t worker) {
  if (scenario.racks == 0) return UINT32_MAX;
  return worker % (scenario.racks + (scenario.has_singles ? 1 : 0));
}

uint64_t rack_workers(const SwitchScenario& scenario, const SwitchSimJob& job, uint32_t rack) {
  uint64_t workers = 0;
  for (uint32_t worker = 0; worker < job.workers + job.joiners; ++worker) {
    if (rack_of(scenario, worker) == rack) workers |= uint64_t{1} << worker;
  }
  return workers;
}

MakeDecider mixed_decider() {
  return [](const SwitchScenario& scenario, uint32_t node, uint64_t incarnation_seed, TimeNs now) {
    return incarnation_seed % 2 == 0 ? production_decider()(scenario, node, incarnation_seed, now)
                                     : reference_decider()(scenario, node, incarnation_seed, now);
  };
}

}  // namespace millrace::testing
