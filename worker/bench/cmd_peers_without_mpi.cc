#include "worker/bench/commands.h"
#include "worker/program/mpi/without_mpi.h"

namespace millrace::bench {

program::Command add_peers_bench(CLI::App& root) { return program::add_command_without_mpi(root, "peers"); }

}  // namespace millrace::bench
