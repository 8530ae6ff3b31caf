#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "worker/program/outcome.h"

namespace millrace::program {

/// Holds a subcommand: the parser's entry for it, and the function that runs it once its flags are parsed.
struct Command {
  CLI::App* app = nullptr;
  std::function<Outcome()> run;
};

}  // namespace millrace::program
