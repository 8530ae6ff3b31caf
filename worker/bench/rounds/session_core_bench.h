#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

namespace millrace::bench {

struct WorkerBenchOptions {
  uint64_t n = uint64_t{1} << 24;  ///< dimension
  double density = 0.01;           ///< of the sent entries in a round
  uint32_t parts = 32;             ///< of the tensor, on one shard
  uint32_t repeats = 25;
  uint64_t seed = 1;
};

/// Measures whole rounds of one worker's core (worker/core/: push, select and code, updates, settling), without
/// sockets: the updates are made beforehand. Codec raw+raw both ways.
///
/// REQUIRES n in [64, 2^32], density in (0, 0.25], parts in [1, 64], repeats >= 1.
/// Returns  {"bench":"worker","n":..,"density":..,"parts":..,"repeats":..,"seed":..,"rows":[...]}. A row is
///          {"algorithm":..,"entries_pushed":..,"entries_sent":..,"round_ms":..,"push_ms":..,"code_ms":..,
///          "update_ms":..,"settle_ms":..,"ratio_to_memory_pass":..}. Rows of sparse pushes with selection none and one
///          thread: all_carried (every update carries all sent entries), half_carried (every second entry). In the
///          latter, the other entries are returned and sent again, so that twice as many are sent. Rows of dense
///          pushes, of which top-k selects the density: dense_1_thread and dense_2_threads, in turns. These two have
///          "addition_ms" as well: a plain addition of the gradient to an array, by as many threads. Times are
///          medians of the rounds. The ratio is a round's to a pass over the pushed values (and indices), taken right
///          before it.
nlohmann::json bench_worker(const WorkerBenchOptions& options);

}  // namespace millrace::bench
