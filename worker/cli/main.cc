#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "kernels/base/version.h"
#include "monitoring/program.h"
#include "worker/cli/commands.h"
#include "worker/program/outcome.h"
#include "worker/program/program.h"

int main(int argc, char** argv) {
  namespace cli = millrace::cli;
  namespace program = millrace::program;
  millrace::monitoring::begin_program();
  CLI::App root("Millrace: training over sharded servers with sparse, compressed gradients");
  root.name("millrace");
  program::shape_help(root);
  root.set_version_flag("--version", "millrace " + std::string(millrace::project_version()));
  root.footer("Each command has its own help: millrace train --help\n\n" + program::exit_code_table());
  const std::vector<program::Command> commands = {
      cli::add_train_command(root),  cli::add_eval_command(root),  cli::add_data_command(root),
      cli::add_status_command(root), cli::add_trace_command(root), cli::add_cluster_command(root),
      cli::add_doctor_command(root), cli::add_serve_command(root), cli::add_demo_command(root),
      cli::add_advise_command(root), cli::add_keys_command(root),  cli::add_completion_command(root)};
  return program::parse_and_run(root, commands, argc, argv);
}
