#pragma once

#include <CLI/CLI.hpp>
#include <vector>

#include "worker/program/command.h"

/// The subcommands of `millrace-bench`. One file each, cmd_NAME.cc.
namespace millrace::bench {

/// Adds select, codec, reduce and worker: benchmarks in one process.
std::vector<program::Command> add_kernel_benches(CLI::App& root);
program::Command add_converge_bench(CLI::App& root);
program::Command add_crowd_bench(CLI::App& root);
program::Command add_recover_bench(CLI::App& root);
program::Command add_serve_bench(CLI::App& root);
program::Command add_peers_bench(CLI::App& root);
program::Command add_simulate(CLI::App& root);

}  // namespace millrace::bench
