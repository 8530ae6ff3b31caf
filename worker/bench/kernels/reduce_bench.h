#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

namespace millrace::bench {

struct ReduceBenchOptions {
  uint64_t n = uint64_t{1} << 21;  ///< dimension
  double density = 0.01;           ///< of each worker's stream
  uint32_t workers = 4;
  uint32_t repeats = 9;
  uint64_t seed = 1;
};

/// Measures the sums of sparse f32 streams of uniformly drawn indices, and the work of a worker and a shard around
/// them. Each is measured on one thread, against one pass over the workers' indices and values taken right before it.
///
/// REQUIRES n in [1, 2^32], density in (0, 1], workers >= 1, repeats >= 1.
/// Returns  {"bench":"reduce","n":..,"density":..,"workers":..,"repeats":..,"seed":..,"threads":1,"rows":[...]}. A row
///          is {"algorithm":..,"entries":..,"mentries_s":..,"ns_per_entry":..,"ratio_to_memory_pass":..}. Rows:
///          memory_pass; sum_two (of the first two workers); sum_many; sum_at_least (with a quarter of the sum's
///          entries in the result). Also not_carried (one worker's stream against half of the sum) and add_scaled (the
///          sum into a dense array). Also accumulate (two workers' streams into an Accumulator, and half of the first
///          one's number out of it). Also histogram and select_by_histogram (of the sum's values, half of them kept).
///          "entries" are the input entries. Times are medians; the ratio is that of the times an entry, the median of
///          the repeats' ratios.
nlohmann::json bench_reduce(const ReduceBenchOptions& options);

}  // namespace millrace::bench
