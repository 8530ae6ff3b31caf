#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <exception>
#include <string>
#include <vector>

#include "monitoring/standard_streams.h"
#include "worker/cli/interruption.h"
#include "worker/cli/peer/peer_commands.h"

namespace millrace::cli {
namespace {

int run(const Command& command) {
  end_at_interruption();
  Failure failure;
  try {
    Outcome outcome = command.run();
    if (const Status written = monitoring::flush_output(); outcome && !written) {
      outcome = fail_with(written.error());
    }
    if (outcome) return static_cast<int>(ExitCode::kOk);
    failure = outcome.error();
  } catch (const std::exception& exception) {
    failure = {ExitCode::kInternal, exception.what()};
  }
  monitoring::say(fmt::format("millrace-peer {}: {}", command.app->get_name(), failure.message));
  return static_cast<int>(failure.code);
}

int parse_and_run(int argc, char** argv) {
  CLI::App root("Millrace peers: collectives among workers, without servers");
  root.name("millrace-peer");
  root.require_subcommand(1);
  root.set_version_flag("--version", MILLRACE_VERSION);
  const std::vector<Command> commands = {add_peer_simulate_command(root)};
  try {
    root.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return root.exit(error);
    std::string sentence = error.what();
    std::ranges::replace(sentence, '\n', ' ');
    monitoring::say(fmt::format("millrace-peer: {}; see millrace-peer --help", sentence));
    return static_cast<int>(ExitCode::kUsage);
  }
  const auto parsed = std::ranges::find_if(commands, [](const Command& one) { return one.app->parsed(); });
  return parsed == commands.end() ? static_cast<int>(ExitCode::kUsage) : run(*parsed);
}

}  // namespace
}  // namespace millrace::cli

int main(int argc, char** argv) {
  millrace::monitoring::hold_standard_streams();
  std::signal(SIGPIPE, SIG_IGN);
  return millrace::cli::parse_and_run(argc, argv);
}
