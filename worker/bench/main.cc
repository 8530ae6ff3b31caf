#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "kernels/base/version.h"
#include "worker/bench/commands.h"
#include "worker/program/outcome.h"
#include "worker/program/program.h"

int main(int argc, char** argv) {
  namespace cli = millrace::cli;
  cli::begin_program();
  CLI::App root("Millrace's benchmarks: kernels, codecs, whole rounds, recovery, convergence and allreduces");
  root.name("millrace-bench");
  cli::shape_help(root);
  root.set_version_flag("--version", "millrace-bench " + std::string(millrace::project_version()));
  root.footer("Each benchmark has its own help: millrace-bench codec --help\n\n" + cli::exit_code_table());
  std::vector<cli::Command> commands = cli::add_kernel_benches(root);
  for (const auto add : {cli::add_serve_bench, cli::add_crowd_bench, cli::add_recover_bench, cli::add_converge_bench,
                         cli::add_peers_bench, cli::add_simulate}) {
    commands.push_back(add(root));
  }
  return cli::parse_and_run(root, commands, argc, argv);
}
