#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/bench/rounds/serve_shared.h"

namespace millrace::bench {

/// Describes the traffic of bare ZeroMQ in the serve benchmark. Per round and worker, `part_entries[p]` 8-byte pairs go
/// up to part p's shard and as many down; part p belongs to shard p % shards. Same sockets, parts, zero-copy and
/// pipelining as Millrace's own rounds, no other work: the floor under every figure.
struct RawPlan {
  uint32_t workers = 0;
  uint32_t shards = 0;
  uint32_t rounds = 0;  ///< all of them, warm-up included
  std::vector<uint64_t> part_entries;

  static constexpr uint64_t kPairBytes = 8;
};

/// Runs the body of a bare shard process. It prints its address as one line, and answers each part of each round to all
/// workers once all of them have sent it. Returns after the last round. 0: success; the error goes to stderr otherwise.
int run_raw_shard(const RawPlan& plan, uint32_t shard, const std::string& bind_address);

/// Runs the body of a bare worker process. Start and end times go into `shared`.
int run_raw_worker(const RawPlan& plan, uint32_t worker, const std::vector<std::string>& addresses,
                   ServeShared& shared);

/// Returns the rate of the busiest link, a shard's, over a round: `pairs` go up there, and as many down.
double raw_gbit_s(double pairs, double round_ms);

}  // namespace millrace::bench
