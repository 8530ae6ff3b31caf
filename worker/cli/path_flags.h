#pragma once

#include <CLI/CLI.hpp>

#include "worker/training/path_options.h"

namespace millrace::cli {

/// --path, --switch-job, --switch-key and what else belongs to them. `options` outlives the parsing.
void add_path_flags(CLI::App& app, PathOptions& options);

}  // namespace millrace::cli
