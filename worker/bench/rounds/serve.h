#pragma once

#include <cstdint>
#include <expected>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "millrace/options.h"
#include "worker/program/outcome.h"

namespace millrace::bench {

/// Says whether the job is audited. Both: rows are measured in turn without, with, with and without it, and compared.
enum class ServeAudit : uint8_t { kOff = 1, kOn = 2, kBoth = 3 };

enum class ServePath : uint8_t { kServer = 1, kSwitch = 2, kBoth = 3 };

/// Returns the job of the benchmark by default. A row by servers ignores its path.
inline JobConfig serve_bench_job() {
  return {.workers = 4, .path = SwitchPath{.address = "", .slots = 64, .codec = SwitchCodec{}}};
}

struct ServeBenchOptions {
  /// Rows read workers, seed, apply_after_acks, parts_per_shard and grid, and of path switch slots, lanes and codec.
  /// They set the other options. parts_per_shard 0: 3; behind a rate 9, and 3 where values are quantized. Without a
  /// grid: 32768:-12, with an MTU of 4,096 and more 65536:-12; values are normal, and fit 16 bits on it.
  JobConfig job = serve_bench_job();
  uint32_t shards = 2;
  uint64_t n = uint64_t{1} << 24;
  double density = 0.01;
  uint32_t rounds = 50;
  uint32_t warmup_rounds = 5;
  std::string rate;  ///< "1gbit": every process in a network namespace behind it; empty: loopback.
  /// Behind a rate: the chance that a packet is lost on its way to a host. Bare ZeroMQ has none of it.
  double loss = 0;
  uint32_t threshold_period = 32;
  std::vector<std::string> rows = {"lossless", "qsgd4"};
  ServeAudit audit = ServeAudit::kOff;
  /// The processes that add up: the shards, or a millrace-switch, or both, one after the other. The switch is on a host
  /// of its own whose link has no limit.
  ServePath path = ServePath::kServer;
  /// By path switch: number of racks. The racks' switches, on hosts of their own whose links have no limit, add up in
  /// front of shard 0, which decides. Three rows: without them, with their whole sums, with each cutting its sums to
  /// its share of k. 0: none.
  uint32_t racks = 0;
  uint32_t mtu = 1500;  ///< of the links behind a rate, whichever the path: 1500 to 9000
  /// Rows are measured without and with keys, in turns, and compared. Shards and workers with keys encrypt every
  /// message; bare ZeroMQ has no keys.
  bool secure = false;
  std::string lossless_codec;  ///< empty: "raw+raw" on loopback (costs least), "gap+raw" behind a rate (smallest)
};

/// Measures whole rounds of real processes. Every worker draws k = density * n new uniform indices with normal values,
/// and all start together. A round lasts until the update, re-selected to k, is applied on every worker. Bare ZeroMQ
/// carrying the same entries as 8-byte pairs is measured in the same run, before and after. One round, chosen at
/// random, is checked against the oracle (serve_oracle.h). Memory: each process's peak. On path switch (row "switch"),
/// the threshold of the step before selects the update, so that it has about k entries. Values are on a grid of 16
/// bits; serve_switch.h judges them. With racks: measures the bytes of datagrams into shard 0 a round, as it counts
/// them. It compares them with those of the row without racks, and with the coded union of each rack's contributions
/// (serve_racks.h).
///
/// progress  called with one line at a time.
/// Errors    a flag, or a process that cannot be started. Of a process that ended, the error names it and its message:
///           its session's error; job_ended where it was killed or the time ran out. internal: the update differs from
///           the oracle's.
std::expected<nlohmann::json, program::Failure> bench_serve(const ServeBenchOptions& options,
                                                            const std::function<void(const std::string&)>& progress);

}  // namespace millrace::bench
