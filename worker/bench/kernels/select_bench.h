#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/base/result.h"

namespace millrace::bench {

struct SelectBenchOptions {
  uint64_t n = uint64_t{1} << 24;
  double density = 0.01;
  uint32_t repeats = 9;
  uint64_t seed = 1;
  std::string trace = {};  ///< a gradient trace's file; empty: Gaussian values
  uint32_t worker = 0;     ///< of the trace
};

/// Measures every selection of the registry but none on n f32 values, on one thread. Each is measured against one read
/// pass (max|x|) over the same array taken right before it. Of a trace of m entries, value i is its entry i mod m:
/// truncated, or repeated.
///
/// REQUIRES n in [1, 2^32], density in (0, 1], repeats >= 1.
/// Returns  {"bench":"select","n":..,"density":..,"k":..,"seed":..,"repeats":..,"threads":1,"rows":[...]}, of a trace
///          with "trace","worker","trace_n". A row is
///          {"algorithm":..,"ms":..,"ratio_to_read_pass":..,"selected_over_k":..}. Rows: read_pass (its selected_over_k
///          is null), then the selections under their names, or their other word ("exact"). Those with a period come
///          last. Times are medians; a ratio is the median of the repeats' ratios. Unbiased selections draw; fixed has
///          the exact threshold; a variance parameter is set so that about k entries come. Selections with a period
///          (that of the text without one) run over steps of data that drifts. They have also "steps", "exact_steps"
///          (how many begin a period), "selected_over_k_min" and "selected_over_k_max" (over all steps), and
///          "ratio_mean".
/// Errors   as read_trace(); non_finite: the trace holds NaN or infinity.
Result<nlohmann::json> bench_select(const SelectBenchOptions& options);

}  // namespace millrace::bench
