#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "switch_agg/aggregator.h"
#include "switch_agg/aggregator_counters.h"
#include "tests/sim/switch_sim.h"

namespace millrace::testing {
namespace {

using switch_agg::AggregatorEvent;

class Production : public SwitchDecider {
 public:
  Production(const SwitchScenario& scenario, uint64_t life_seed, TimeNs now)
      : aggregator_(options(scenario), life_seed) {
    for (const SwitchSimJob& job : scenario.jobs) {
      switch_agg::SwitchJob out;
      out.job = job.job;
      out.name = "job " + std::to_string(job.job);
      out.key = job.key;
      out.workers = job.workers + job.joiners;
      out.window_indices = job.window_indices;
      out.slots = job.slots;
      out.reselect_k = job.reselect_k;
      out.lease_ns = scenario.lease_ns;
      MILLRACE_CHECK(aggregator_.add_job(out, now).has_value());
    }
  }
  void receive(const protocol::ReceivedPacket& packet, TimeNs now, protocol::PacketSink& sink) override {
    aggregator_.receive(packet, now, sink);
  }
  void tick(TimeNs now, protocol::PacketSink& sink) override { aggregator_.tick(now, sink); }
  std::string impossible() const override {
    std::string out;
    for (const AggregatorEvent event : {AggregatorEvent::kFuture, AggregatorEvent::kPositionsApart,
                                        AggregatorEvent::kWrongBinding, AggregatorEvent::kMalformedPayload}) {
      const uint64_t times = aggregator_.counters()[event];
      if (times > 0) out += std::string(switch_agg::aggregator_event_name(event)) + " " + std::to_string(times) + " ";
    }
    return out;
  }

 private:
  static switch_agg::AggregatorOptions options(const SwitchScenario& scenario) {
    switch_agg::AggregatorOptions out;
    out.slots_max = 0;
    out.window_indices_max = 64;
    for (const SwitchSimJob& job : scenario.jobs) {
      out.slots_max += job.slots;
      out.window_indices_max = std::max(out.window_indices_max, job.window_indices);
    }
    out.packet_bytes_max = scenario.packet_bytes;
    return out;
  }

  switch_agg::Aggregator aggregator_;
};

}  // namespace

MakeDecider production_decider() {
  return [](const SwitchScenario& scenario, uint64_t life_seed, TimeNs now) {
    return std::make_unique<Production>(scenario, life_seed, now);
  };
}

MakeDecider mixed_decider() {
  return [](const SwitchScenario& scenario, uint64_t life_seed, TimeNs now) {
    return life_seed % 2 == 0 ? production_decider()(scenario, life_seed, now)
                              : reference_decider()(scenario, life_seed, now);
  };
}

}  // namespace millrace::testing
