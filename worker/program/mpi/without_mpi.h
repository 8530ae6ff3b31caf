#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "worker/program/command.h"

namespace millrace::program {

/// Adds a subcommand to a build that was made without MPI. It takes all arguments, and ends with a sentence and exit
/// code 2.
Command add_command_without_mpi(CLI::App& root, const std::string& name);

}  // namespace millrace::program
