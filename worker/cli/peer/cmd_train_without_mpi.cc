#include "worker/cli/peer/peer_commands.h"
#include "worker/program/mpi/without_mpi.h"

namespace millrace::cli {

program::Command add_peer_train_command(CLI::App& root) { return program::add_command_without_mpi(root, "train"); }

}  // namespace millrace::cli
