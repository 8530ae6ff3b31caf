#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <expected>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "worker/program/outcome.h"

namespace millrace::cli {

/// The flags that every benchmark of processes has: how many of either, and what the row is a function of.
struct ClusterFlags {
  uint32_t& workers;
  uint32_t workers_min = 1;
  uint32_t workers_max = 1;
  uint32_t& shards;
};
void add_cluster_flags(CLI::App& app, const ClusterFlags& flags);

/// what  the seed is of
void add_seed_and_json(CLI::App& app, uint64_t& seed, const std::string& what, bool& json);

using SayLine = std::function<void(const std::string&)>;

/// Runs a benchmark of processes; what it says on its way goes to stderr, a line each.
/// Errors  the benchmark's own; interrupted, whatever it made of the signal.
std::expected<nlohmann::json, Failure> run_cluster_bench(
    const std::string& name, const std::function<std::expected<nlohmann::json, Failure>(const SayLine&)>& bench);

}  // namespace millrace::cli
