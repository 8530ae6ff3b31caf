#pragma once

#include <CLI/CLI.hpp>

#include "worker/program/command.h"

namespace millrace::cli {

/// Adds the subcommands of `millrace-peer`. One file each, cmd_NAME.cc.
program::Command add_peer_train_command(CLI::App& root);

}  // namespace millrace::cli
