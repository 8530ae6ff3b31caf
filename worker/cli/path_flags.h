#pragma once

#include <CLI/CLI.hpp>

#include "worker/training/path_options.h"

namespace millrace::cli {

/// Adds --path, --switch-job, --switch-key and the other flags of the paths. `options` outlives the parsing.
void add_path_flags(CLI::App& app, training::PathOptions& options);

}  // namespace millrace::cli
