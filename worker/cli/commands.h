#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "worker/program/command.h"

namespace millrace::cli {

/// Adds its subcommand with its flags and help to `root`; each function does. One file each, cmd_NAME.cc.
program::Command add_train_command(CLI::App& root);
/// Refuses what `millrace train` would refuse of these arguments before it reads data.
program::Outcome check_train_arguments(std::vector<std::string> arguments);
program::Command add_demo_command(CLI::App& root);
program::Command add_eval_command(CLI::App& root);
program::Command add_data_command(CLI::App& root);
program::Command add_cluster_command(CLI::App& root);
program::Command add_status_command(CLI::App& root);
program::Command add_trace_command(CLI::App& root);
program::Command add_doctor_command(CLI::App& root);
program::Command add_serve_command(CLI::App& root);
program::Command add_advise_command(CLI::App& root);
program::Command add_keys_command(CLI::App& root);
program::Command add_completion_command(CLI::App& root);

}  // namespace millrace::cli
