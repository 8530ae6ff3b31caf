#pragma once

#include <CLI/CLI.hpp>

#include "worker/cli/commands.h"

namespace millrace::cli {

/// The subcommands of `millrace-peer`. One file each, cmd_NAME.cc.
Command add_peer_bench_command(CLI::App& root);
Command add_peer_simulate_command(CLI::App& root);
Command add_peer_train_command(CLI::App& root);

}  // namespace millrace::cli
