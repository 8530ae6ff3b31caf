#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "kernels/base/version.h"
#include "monitoring/program.h"
#include "worker/bench/commands.h"
#include "worker/program/outcome.h"
#include "worker/program/program.h"

int main(int argc, char** argv) {
  namespace bench = millrace::bench;
  namespace program = millrace::program;
  millrace::monitoring::begin_program();
  CLI::App root("Millrace's benchmarks: kernels, codecs, whole rounds, recovery, convergence and allreduces");
  root.name("millrace-bench");
  program::shape_help(root);
  root.set_version_flag("--version", "millrace-bench " + std::string(millrace::project_version()));
  root.footer("Each benchmark has its own help: millrace-bench codec --help\n\n" + program::exit_code_table());
  std::vector<program::Command> commands = bench::add_kernel_benches(root);
  for (const auto add : {bench::add_serve_bench, bench::add_crowd_bench, bench::add_recover_bench,
                         bench::add_converge_bench, bench::add_peers_bench, bench::add_simulate}) {
    commands.push_back(add(root));
  }
  return program::parse_and_run(root, commands, argc, argv);
}
