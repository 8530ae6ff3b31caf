#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/result.h"
#include "switch_agg/bench/bench_options.h"

namespace millrace::switch_agg {

struct LoadReport {
  double seconds = 0;
  uint64_t sent = 0;                  ///< contributions
  uint64_t received = 0;              ///< results, or the packets themselves
  uint64_t turns = 0;                 ///< of all slots
  uint64_t resent = 0;                ///< turns sent again, after kLoadTimeout without their results
  double packets_s = 0;               ///< received
  double contribution_packets_s = 0;  ///< sent of the turns whose results came whole, or once again
};

/// Keeps every slot of a job busy over kernel sockets: sends a turn's contributions of all workers, receives its
/// results, and begins the next turn. All workers draw the same indices, so that a result is as long as a contribution,
/// and as many packets return as were sent. So the same program can measure a packet forwarder (--echo). With --apart
/// each worker draws its own indices, the least that workers can have in common, and results are of several packets.
///
/// Made for ratios: this program takes a core of its own, and it measures the slower of the two.
/// Errors   io; unavailable: the switch does not answer, or does not know the job.
Result<LoadReport> run_load(const LoadOptions& options);

std::string load_json(const LoadOptions& options, const LoadReport& report);

}  // namespace millrace::switch_agg
