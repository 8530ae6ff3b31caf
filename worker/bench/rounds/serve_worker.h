#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/result.h"
#include "millrace/options.h"
#include "worker/bench/rounds/serve_oracle.h"
#include "worker/bench/rounds/serve_shared.h"

namespace millrace::bench {

struct ServeWorkerSetup {
  std::string job;
  uint32_t workers = 0;
  std::vector<std::string> shards;
  uint64_t n = 0;
  uint64_t k = 0;
  uint64_t seed = 0;
  uint32_t rounds = 0;          ///< all of them
  uint32_t first_measured = 0;  ///< rounds before are warm-up
  uint32_t checked_round = 0;
  uint32_t parts_per_shard = 0;
  uint32_t threshold_period = 1;
  uint32_t apply_after_acks = 0;
  std::string codec;     ///< both ways
  double error_max = 0;  ///< of an update, where the codec may change values; 0: it may not
  bool audit = false;
  Path path = ServerPath{};          ///< path switch: its update is judged by serve_switch.h
  std::optional<Grid> grid = {};     ///< path switch
  std::string switch_key_file = {};  ///< path switch
  std::string keys = {};             ///< folder of keys (serve_keys.h); empty: none
  std::string rack = {};             ///< path switch: address of the switch of this worker's rack
  /// HTTP address of shard 0 where it decides by datagrams: their bytes are asked there.
  std::string shard_status = {};
  std::vector<std::vector<uint32_t>> racks = {};  ///< workers of each
  uint64_t rack_share = 0;                        ///< entries that a rack keeps: judged by serve_racks.h; 0: all
};

/// Refuses a benchmark whose workers would refuse it: a codec that is none, parts over the limit, "lossless" with a
/// codec that is not.
///
/// Errors  invalid_argument.
Status check_serve_job(const ServeWorkerSetup& setup);

/// Runs the body of a worker process of the serve benchmark. It pushes serve_input() in every round and waits for its
/// update; worker 0 checks one round. Times and findings go into `shared`. Returns an ExitCode; the report has the
/// error, if any.
int run_serve_worker(const ServeWorkerSetup& setup, uint32_t worker, ServeShared& shared);

}  // namespace millrace::bench
