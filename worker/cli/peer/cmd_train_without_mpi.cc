#include "worker/cli/peer/peer_commands.h"

namespace millrace::cli {

program::Command add_peer_train_command(CLI::App& root) {
  CLI::App* app = root.add_subcommand("train", "(not in this build: it was made without MPI)");
  app->allow_extras();
  return {app, []() -> Outcome {
            return program::fail_with(program::ExitCode::kUsage,
                             "this build has no MPI: install it (deploy/setup.sh), configure and build again");
          }};
}

}  // namespace millrace::cli
