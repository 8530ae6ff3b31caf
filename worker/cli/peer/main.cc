#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "kernels/base/version.h"
#include "monitoring/program.h"
#include "worker/cli/peer/peer_commands.h"
#include "worker/program/outcome.h"
#include "worker/program/program.h"

int main(int argc, char** argv) {
  namespace cli = millrace::cli;
  namespace program = millrace::program;
  millrace::monitoring::begin_program();
  CLI::App root("Millrace's peer-to-peer mode: sparse allreduces among workers, without servers");
  root.name("millrace-peer");
  program::shape_help(root);
  root.set_version_flag("--version", "millrace-peer " + std::string(millrace::project_version()));
  root.footer("Each command has its own help: millrace-peer train --help\n\n" + program::exit_code_table());
  const std::vector<program::Command> commands = {
      cli::add_peer_train_command(root),
  };
  return program::parse_and_run(root, commands, argc, argv);
}
