#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "worker/cli/outcome.h"

namespace millrace::cli {

/// A subcommand: where the parser put it, and what it does once its flags are parsed.
struct Command {
  CLI::App* app = nullptr;
  std::function<Outcome()> run;
};

/// Each adds its subcommand with its flags and help to `root`. One file each, cmd_NAME.cc.
Command add_train_command(CLI::App& root);
/// Refuses what `millrace train` would refuse of these arguments before it reads data.
Outcome check_train_arguments(std::vector<std::string> arguments);
Command add_demo_command(CLI::App& root);
Command add_eval_command(CLI::App& root);
Command add_data_command(CLI::App& root);
Command add_bench_command(CLI::App& root);
Command add_bench_converge(CLI::App& bench);  ///< below bench, as the next three
Command add_bench_crowd(CLI::App& bench);
Command add_bench_recover(CLI::App& bench);
Command add_bench_serve(CLI::App& bench);
Command add_status_command(CLI::App& root);
Command add_serve_command(CLI::App& root);
Command add_advise_command(CLI::App& root);

}  // namespace millrace::cli
