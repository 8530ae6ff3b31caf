#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "worker/program/command.h"

/// Shared parts of the programs with subcommands: their start, their help, and their end by errors.
namespace millrace::program {

/// Begins a program; called first in main().
void begin_program();

/// Adds a subcommand, with --config.
CLI::App* add_command(CLI::App& root, const std::string& name, const std::string& description);

/// Makes help keep the texts' own line breaks; a subcommand is needed.
void shape_help(CLI::App& root);

/// Parses the command line, runs the subcommand that it names, and returns the exit code. Every failure is one line on
/// stderr.
/// root   its name is the program's.
int parse_and_run(CLI::App& root, const std::vector<Command>& commands, int argc, char** argv);

}  // namespace millrace::program
