#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "kernels/base/words.h"

/// The sentence about a wrong command line. Header only: a program links the parser.
namespace millrace::monitoring {

/// Returns the long flags of a command: "--seed".
inline std::vector<std::string> flag_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

/// Returns one line for an error of the parser. An unknown flag goes before everything else, with the nearest flag that
/// the command has.
///
/// command  the one that the line names.
inline std::string usage_sentence(const CLI::App& command, const CLI::ParseError& error) {
  const std::vector<std::string> rest = command.remaining();
  const auto is_flag = [](const std::string& word) { return word.size() > 2 && word.starts_with("--"); };
  if (const auto unknown = std::ranges::find_if(rest, is_flag); unknown != rest.end()) {
    const std::string flag = unknown->substr(0, unknown->find('='));
    return "there is no flag " + flag + did_you_mean(flag, flag_names(command));
  }
  std::string sentence = error.what();
  std::ranges::replace(sentence, '\n', ' ');
  return sentence;
}

/// Returns the subcommand that a line names; of a line without one, `root`.
inline const CLI::App& named_command(const CLI::App& root) {
  const CLI::App* command = &root;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

}  // namespace millrace::monitoring
