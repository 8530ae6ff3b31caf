#pragma once

#include <cstdint>
#include <expected>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "worker/program/outcome.h"

namespace millrace::bench {

struct CrowdOptions {
  std::vector<uint32_t> workers = {4, 16, 64, 256};  ///< one row each, ascending
  uint32_t processes = 4;                            ///< that the workers are threads of
  uint32_t shards = 2;
  uint64_t n = uint64_t{1} << 20;
  double density = 0.01;
  uint32_t rounds = 20;
  uint32_t warmup_rounds = 3;
  uint32_t parts_per_shard = 1;
  std::string codec = "raw+raw";
  uint64_t seed = 1;
};

/// Holds the results of a row, before it is compared with the others.
struct CrowdRow {
  uint32_t workers = 0;
  double round_ms = 0;            ///< median
  double bytes_up = 0;            ///< of a worker and round
  double bytes_down = 0;          ///< the same
  double shard_memory_bytes = 0;  ///< the largest resident set of the shards
};

/// Returns {time_per_byte_over_first, memory_a_worker_bytes, memory_over_stream, memory_over_stream_here}. The first
/// compares the time of `row` for each byte with that of the first row. The second is a shard's memory for each worker
/// beyond the first row's. The others divide it by the worker's bytes in a round: all of them, and those to that shard.
/// The first row has the first figure only.
nlohmann::json compare_crowd(const CrowdRow& row, const CrowdRow& first, uint32_t shards);

/// Measures whole rounds with ever more workers, threads of a few processes, each with a session and connections of its
/// own. A round and its contributions are as in bench_serve(); one round of each row is checked against the oracle.
///
/// progress  called with one line at a time.
/// Errors    as bench_serve().
std::expected<nlohmann::json, program::Failure> bench_crowd(const CrowdOptions& options,
                                                            const std::function<void(const std::string&)>& progress);

}  // namespace millrace::bench
