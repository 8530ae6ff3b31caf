#pragma once

#include <cstdint>
#include <expected>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "millrace/options.h"
#include "worker/program/outcome.h"

namespace millrace::bench {

struct RecoverOptions {
  /// The benchmark reads workers, seed, parts_per_shard and heartbeat. The seed is of the moments of the kills, and of
  /// the killed shards.
  JobConfig job = {.workers = 4, .layout = {.parts_per_shard = 4}};
  uint32_t shards = 2;
  uint64_t n = uint64_t{1} << 24;
  double density = 0.01;
  uint32_t kills = 5;    ///< of shards, one after the other
  bool spare = false;    ///< a spare takes the killed shard's number; otherwise the shard is started again
  bool stop = false;     ///< with spare and a table in etcd: SIGSTOP in place of SIGKILL, as a host that is down
  std::string table;     ///< the shards' membership table, as millrace-server --table has it; empty: a new file
  uint32_t joins = 3;    ///< of a worker whose place was given up before
  uint32_t rounds = 40;  ///< before the first, between any two, and after the last
  std::string codec = "raw+raw";
};

/// Kills shards of a running job with SIGKILL at random moments, or stops them. Each is started again at once,
/// empty, or a spare that waits takes its number. Then a worker leaves, and a new process joins in its place. Each push
/// leaves its own mark in the weights at the end (recover_marks.h), and every weight is checked.
///
/// progress  called with one line at a time.
/// Errors    as bench_serve(). A push that was lost or counted twice is no error: it is in the result.
std::expected<nlohmann::json, program::Failure> bench_recover(const RecoverOptions& options,
                                                              const std::function<void(const std::string&)>& progress);

}  // namespace millrace::bench
