#include <fmt/core.h>

#include <array>
#include <memory>
#include <string>

#include "monitoring/command_line/completion.h"
#include "monitoring/standard_streams.h"
#include "worker/cli/commands.h"
#include "worker/launch/child_process.h"
#include "worker/program/flag_range.h"
#include "worker/program/program.h"

namespace millrace::cli {
namespace {

constexpr int kScriptTimeoutMs = 30'000;
/// The other programs; a build without MPI or DPDK, or an installation, may lack some.
constexpr std::array kOtherPrograms = {"millrace-server", "millrace-switch", "millrace-peer", "millrace-bench",
                                       "millrace-switch-bench"};

/// Returns the script that another program prints.
Result<std::string> script_of(const std::string& program, const std::string& shell) {
  auto child = launch::ChildProcess::spawn({.argv = {launch::sibling_program(program), "--print-completion", shell},
                                            .network_namespace = {},
                                            .stdout_path = {},
                                            .stderr_path = "/dev/null"});
  if (!child) return std::unexpected(child.error());
  std::string script;
  auto line = child->read_line(kScriptTimeoutMs);
  for (; line; line = child->read_line(kScriptTimeoutMs)) script += *line + "\n";
  const auto report = child->wait(kScriptTimeoutMs);
  if (!report) return std::unexpected(report.error());
  if (report->exit_code != 0) return fail(ErrorCode::kUnavailable, fmt::format("exit code {}", report->exit_code));
  return script;
}

program::Outcome run_completion(const CLI::App& root, const std::string& shell) {
  fmt::print("{}", monitoring::completion_script(root, monitoring::completion_shell(shell).value()));
  for (const std::string program : kOtherPrograms) {
    if (const auto script = script_of(program, shell)) {
      fmt::print("{}", *script);
    } else {
      monitoring::say(fmt::format("millrace completion: {} is left out: it does not print its script here ({})",
                                  program, script.error().message));
    }
  }
  return {};
}

}  // namespace

program::Command add_completion_command(CLI::App& root) {
  auto shell = std::make_shared<std::string>();
  CLI::App* app = program::add_command(root, "completion",
                                       "prints the script that completes all programs' command lines in a shell");
  app->add_option("shell", *shell, "of the script")->required()->check(program::one_of({"bash", "zsh"}));
  app->footer(
      "The script has every program that lies beside this one. An installation has the scripts in its "
      "share/bash-completion\n"
      "and share/zsh already.\n\n"
      "Examples:\n"
      "  source <(millrace completion bash)\n"
      "  source <(millrace completion zsh)");
  return {app, [&root, shell] { return run_completion(root, *shell); }};
}

}  // namespace millrace::cli
