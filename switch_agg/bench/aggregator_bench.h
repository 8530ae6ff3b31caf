#pragma once

#include <string>

#include "kernels/base/result.h"
#include "switch_agg/bench/bench_options.h"

namespace millrace::switch_agg {

/// Reports on one core with a port and an aggregator, fed with prepared contributions. Rates are of the input, UDP
/// payload, by the thread's processor time. Each round has one; the report has the median. With several lcores, each is
/// a thread with all of that of its own. Rates are their sums, counts are of all, and `one_lcore_gbit_s` is the first
/// one's when it ran alone.
struct BenchReport {
  std::string pmd;
  double one_lcore_gbit_s = 0;  ///< of one lcore: gbit_s
  uint32_t window_indices = 0;
  uint32_t entries_each = 0;  ///< of a contribution
  uint64_t packets = 0;       ///< of all rounds
  uint64_t results = 0;       ///< datagrams sent, to all workers
  uint64_t turns_checked = 0;
  double packet_bytes_mean = 0;
  double mentries_s = 0;
  double mpackets_s = 0;
  double gbit_s = 0;
  double gbit_s_best = 0;
  double results_gbit_s = 0;  ///< sent in the same time
  double read_gbit_s = 0;     ///< the loop that takes the same packets off the same port and only reads their bytes
  double read_ratio = 0;      ///< gbit_s / read_gbit_s
};

/// Runs the benchmark. After each round it compares every result with the sum of the drawn values, and every worker's
/// copies with each other.
/// Errors   unsupported: no DPDK; io: DPDK did not start; internal: a sum was wrong, or did not come.
Result<BenchReport> run_bench(const BenchOptions& options);

std::string bench_json(const BenchOptions& options, const BenchReport& report);
std::string bench_text(const BenchOptions& options, const BenchReport& report);

}  // namespace millrace::switch_agg
