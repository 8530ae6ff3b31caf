#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <expected>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "worker/program/outcome.h"

namespace millrace::bench {

/// Holds the flags that every benchmark of processes has: the number of processes of each kind, and the row's
/// parameters.
struct ClusterFlags {
  uint32_t& workers;
  uint32_t workers_min = 1;
  uint32_t workers_max = 1;
  uint32_t& shards;
};
void add_cluster_flags(CLI::App& app, const ClusterFlags& flags);

/// Adds the flags of the seed and of JSON output; `what` names the object of the seed for --help.
void add_seed_and_json(CLI::App& app, uint64_t& seed, const std::string& what, bool& json);

/// A benchmark's output: one line of JSON for programs, or text for people.
struct OutputForm {
  bool json = false;
};
/// Prints a benchmark's result as JSON, or by `print_rows`.
void print_result(const nlohmann::json& result, OutputForm form,
                  const std::function<void(const nlohmann::json&)>& print_rows);
/// Prints a result with rows as JSON, or as a table.
void print_result(const nlohmann::json& result, OutputForm form);

using SayLine = std::function<void(const std::string&)>;

/// Runs a benchmark of processes; prints its progress to stderr, a line each.
/// Errors   the benchmark's own; interrupted, regardless of the benchmark's reaction to the signal.
std::expected<nlohmann::json, program::Failure> run_cluster_bench(
    const std::string& name,
    const std::function<std::expected<nlohmann::json, program::Failure>(const SayLine&)>& bench);

}  // namespace millrace::bench
