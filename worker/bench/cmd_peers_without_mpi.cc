#include "worker/bench/commands.h"

namespace millrace::bench {

program::Command add_peers_bench(CLI::App& root) {
  CLI::App* app = root.add_subcommand("peers", "(not in this build: it was made without MPI)");
  app->allow_extras();
  return {app, []() -> Outcome {
            return program::fail_with(program::ExitCode::kUsage,
                             "this build has no MPI: install it (deploy/setup.sh), configure and build again");
          }};
}

}  // namespace millrace::bench
