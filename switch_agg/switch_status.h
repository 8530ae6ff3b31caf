#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "switch_agg/lane.h"

namespace millrace::switch_agg {

/// What the switch shows of itself: the source of /metrics and /status.
struct SwitchStatus {
  struct LaneStatus {
    std::string address;
    LaneReport report;
    TimeNs age_ns = 0;  ///< since the loop last came by
  };
  struct JobStatus {
    std::string name;
    uint32_t job = 0;
    std::string role;
    uint32_t workers = 0;
    uint32_t window_indices = 0;
    uint32_t slots = 0;  ///< on each lane
    uint64_t reselect_k = 0;
  };
  std::string pmd;
  std::string dpdk;  ///< its version; empty: built without
  uint32_t slots_max = 0;
  std::vector<LaneStatus> lanes;
  std::vector<JobStatus> jobs;
};

/// A drop's reason and how often; the port's and the aggregator's, in the order of their declarations.
struct ReasonCount {
  std::string_view reason;
  uint64_t count = 0;
};
std::vector<ReasonCount> port_drops(const PortCounters& port);

/// Packets that were sent before: what was lost on the way, or was thought to be.
uint64_t retransmissions(const AggregatorCounters& counters);

}  // namespace millrace::switch_agg
