#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

namespace millrace::cli {

struct SelectBenchOptions {
  uint64_t n = uint64_t{1} << 24;
  double density = 0.01;
  uint32_t repeats = 9;
  uint64_t seed = 1;
};

/// Measures the selections on n Gaussian f32 values, on one thread, each against one read pass (max|x|) over the same array
/// taken right before it.
///
/// REQUIRES n in [1, 2^32], density in (0, 1], repeats >= 1.
/// Returns  {"bench":"select","n":..,"density":..,"k":..,"seed":..,"repeats":..,"threads":1,"rows":[...]}; a row is
///          {"algorithm":..,"ms":..,"ratio_to_read_pass":..,"selected_over_k":..}. Rows: read_pass (its selected_over_k is
///          null), exact, threshold, bucket_topk, threshold_reuse. Times are medians; a ratio is the median of the repeats'
///          ratios. threshold_reuse runs over steps of data that drifts and has besides "steps", "exact_steps" (the first),
///          "selected_over_k_min", "selected_over_k_max" (over the steps after it) and "ratio_mean" (exact ones included).
nlohmann::json bench_select(const SelectBenchOptions& options);

}  // namespace millrace::cli
