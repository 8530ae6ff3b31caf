#include "worker/program/mpi/without_mpi.h"

namespace millrace::program {

Command add_command_without_mpi(CLI::App& root, const std::string& name) {
  CLI::App* app = root.add_subcommand(name, "(not in this build: it was made without MPI)");
  app->allow_extras();
  return {app, []() -> Outcome {
            return fail_with(ExitCode::kUsage,
                             "this build has no MPI: install it (deploy/setup.sh), configure and build again");
          }};
}

}  // namespace millrace::program
