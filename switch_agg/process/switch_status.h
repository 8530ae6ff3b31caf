#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "switch_agg/process/packet_loop.h"

namespace millrace::switch_agg {

/// Holds the switch's status: the source of /metrics and /status.
struct SwitchStatus {
  struct LaneStatus {
    std::string address;
    LaneReport report;
    TimeNs age_ns = 0;  ///< time since the loop's last report
  };
  struct JobStatus {
    std::string name;
    uint32_t job = 0;
    uint32_t lanes = 1;  ///< of the job: numbers from `job` on
    std::string role;
    uint32_t workers = 0;
    uint32_t window_indices = 0;
    uint32_t slots = 0;  ///< that it asks for
    uint64_t reselect_k = 0;
    uint32_t slots_reserved = 0;  ///< that it has
    uint32_t slots_in_use = 0;    ///< with an open turn
    SwitchPhase farthest_behind = SwitchPhase::kClosed;
    std::string phase{};                                     ///< of the lane of the job that is farthest behind
    uint32_t epoch = 0;                                      ///< of the same
    AggregatorCounters counters{};                           ///< of all its lanes
    std::map<uint32_t, AggregatorCounters> lane_counters{};  ///< by number
    SwitchJobStatus now{};                                   ///< live, waiting and doors of all lanes together
    std::vector<uint64_t> racks{};                           ///< role reduce: workers of each rack in front of it.
    /// Role combine: which rack it is, and how it fares.
    struct Rack {
      uint16_t number = 0;
      uint64_t workers = 0;
      std::string shard;
      RackStatus now{};  ///< of all its lanes; uplink: of the one that is farthest behind
    };
    std::optional<Rack> rack{};
  };
  std::string pmd;
  std::string dpdk;  ///< its version; empty: built without
  uint32_t slots_max = 0;
  TimeNs now = 0;  ///< of the lanes' clock
  std::vector<LaneStatus> lanes;
  std::vector<JobStatus> jobs;
};

/// Sets the lanes' reports of the jobs in `status.jobs`, and overwrites the present ones.
void add_job_reports(SwitchStatus& status);

std::string_view phase_name(SwitchPhase phase);
std::string_view uplink_name(RackUplink uplink);

/// Holds a drop's reason and its count; the port's and the aggregator's, in the order of their declarations.
struct ReasonCount {
  std::string_view reason;
  uint64_t count = 0;
};
std::vector<ReasonCount> port_drops(const PortCounters& port);

/// Returns the number of repeated packets: of those lost on the way, or believed lost.
uint64_t retransmissions(const AggregatorCounters& counters);

}  // namespace millrace::switch_agg
