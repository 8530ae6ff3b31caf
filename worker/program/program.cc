#include "worker/program/program.h"

#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <iostream>
#include <new>
#include <string>

#include "kernels/base/words.h"
#include "monitoring/command_line/completion.h"
#include "monitoring/command_line/config_flag.h"
#include "monitoring/command_line/usage_sentence.h"
#include "monitoring/standard_streams.h"
#include "worker/program/interruption.h"
#include "worker/program/outcome.h"

namespace millrace::program {
namespace {

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

int report(const CLI::App& root, const CLI::App& command, const Failure& failure) {
  // Without a sentence: another process of the job has said it.
  if (!failure.message.empty()) {
    monitoring::say(fmt::format("{} {}: {}", root.get_name(), command.get_name(), failure.message));
  }
  return static_cast<int>(failure.code);
}

/// Prints one line, as every other failure: the command, the wrong flag and the error, and where to read more.
int report_usage(const CLI::App& root, const CLI::ParseError& error) {
  const CLI::App& command = monitoring::named_command(root);
  std::string path;
  for (const CLI::App* app = &command; app != nullptr; app = app->get_parent()) {
    path.insert(0, path.empty() ? app->get_name() : app->get_name() + " ");
  }
  const std::vector<std::string> rest = command.remaining();
  const bool no_command = error.get_name() == "RequiredError" && command.get_require_subcommand_min() > 0;
  std::string sentence = monitoring::usage_sentence(command, error);
  if (no_command && rest.empty()) sentence = "which command?";
  if (no_command && !rest.empty()) {
    sentence = fmt::format("there is no '{}' here{}", rest.front(), did_you_mean(rest.front(), command_names(command)));
  }
  monitoring::say(fmt::format("{}: {}; see {} --help", path, sentence, path));
  return static_cast<int>(ExitCode::kUsage);
}

std::string name_of(const Command& command) { return command.app->get_name(); }

int run(const CLI::App& root, const std::vector<Command>& commands) {
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    end_at_interruption();
    try {
      Outcome outcome = command.run();
      if (const Status written = monitoring::flush_output(); outcome && !written) outcome = fail_with(written.error());
      return outcome ? static_cast<int>(ExitCode::kOk) : report(root, *command.app, outcome.error());
    } catch (const std::bad_alloc&) {
      return report(root, *command.app,
                    {ExitCode::kInternal,
                     "out of memory: end other programs, or raise the limit on memory (ulimit "
                     "-v, or memory.max of the control group)"});
    } catch (const std::exception& exception) {
      // Output in the middle of a command is written at intervals, and then fails with an exception.
      if (const Status written = monitoring::flush_output(); !written)
        return report(root, *command.app, failure_of(written.error()));
      return report(root, *command.app, {ExitCode::kInternal, exception.what()});
    }
  }
  return static_cast<int>(ExitCode::kUsage);
}

}  // namespace

CLI::App* add_command(CLI::App& root, const std::string& name, const std::string& description) {
  CLI::App* command = root.add_subcommand(name, description);
  monitoring::add_config_flag(*command);
  return command;
}

void shape_help(CLI::App& root) {
  monitoring::shape_command_line(root);
  root.require_subcommand(1);
}

int parse_and_run(CLI::App& root, const std::vector<Command>& commands, int argc, char** argv) {
  if (argc > 1 && argv[1][0] != '-' && std::ranges::find(commands, argv[1], name_of) == commands.end()) {
    const std::string hint = did_you_mean(argv[1], command_names(root));
    monitoring::say(
        fmt::format("{}: there is no command '{}'{}; see {} --help", root.get_name(), argv[1], hint, root.get_name()));
    return static_cast<int>(ExitCode::kUsage);
  }
  try {
    root.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // --help and --version arrive here too, with code 0.
    if (error.get_exit_code() == 0) {
      root.exit(error);
      if (std::cout.flush()) return static_cast<int>(ExitCode::kOk);
      monitoring::say(root.get_name() + ": standard output could not be written");
      return static_cast<int>(ExitCode::kIo);
    }
    return report_usage(root, error);
  }
  return run(root, commands);
}

}  // namespace millrace::program
