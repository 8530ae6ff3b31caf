#include "monitoring/command_line/config_flag.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "kernels/base/words.h"
#include "monitoring/command_line/usage_sentence.h"

namespace millrace::monitoring {
namespace {

/// Returns the flag of a key; null where the command has none that a file may set. A flag without a group is hidden.
CLI::Option* flag_of_key(CLI::App& app, const std::string& key) {
  if (key == "config" || key == "help" || key == "version") return nullptr;
  CLI::Option* flag = app.get_option_no_throw("--" + key);
  return flag == nullptr || flag->get_group().empty() ? nullptr : flag;
}

std::vector<std::string> keys_of(CLI::App& app) {
  std::vector<std::string> keys = flag_names(app);
  for (std::string& key : keys) key.erase(0, 2);
  std::erase_if(keys, [&app](const std::string& key) { return flag_of_key(app, key) == nullptr; });
  return keys;
}

/// Refuses a text with an opening quote alone: the parser ends every line at a '#', also between quotes.
void refuse_cut_text(const CLI::ConfigItem& item) {
  for (const std::string& text : item.inputs) {
    const bool is_quoted = text.starts_with('"') || text.starts_with('\'');
    if (is_quoted && (text.size() < 2 || text.back() != text.front())) {
      throw CLI::ConfigError(
          fmt::format("--config: {} has a text without its closing quote, or with '#' in it: give it as --{}",
                      item.name, item.name));
    }
  }
}

/// Gives a flag the value that a file has for it.
void set_by_file(CLI::App& app, const CLI::ConfigItem& item) {
  CLI::Option* flag = flag_of_key(app, item.name);
  if (flag == nullptr) {
    const bool is_known = app.get_option_no_throw("--" + item.name) != nullptr;
    throw CLI::ConfigError(fmt::format("--config: '{}' is {}{}", item.name,
                                       is_known ? "a flag of the command line alone" : "no flag of this command",
                                       is_known ? "" : did_you_mean(item.name, keys_of(app))));
  }
  refuse_cut_text(item);
  if (flag->count() > 0) return;  // the command line has it
  if (flag->get_expected_max() > 0) {
    flag->add_result(item.inputs);
    return;
  }
  const bool is_word = item.inputs.size() == 1 && (item.inputs[0] == "true" || item.inputs[0] == "false");
  if (!is_word) throw CLI::ConfigError(fmt::format("--config: {} is true or false", item.name));
  flag->add_result(item.inputs[0]);
}

}  // namespace

void add_config_flag(CLI::App& app) {
  const auto read = [&app](const std::string& path) {
    std::error_code ignored;  // a stream opens a folder, too, and reads nothing
    if (std::filesystem::is_directory(path, ignored)) throw CLI::FileError::Missing(path);
    std::set<std::string> seen;
    for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_file(path)) {
      if (item.name == "++" || item.name == "--") continue;  // a part begins or ends
      if (!seen.insert(item.name).second) {
        throw CLI::ConfigError(fmt::format("--config: '{}' is given twice", item.name));
      }
      set_by_file(app, item);
    }
  };
  app.add_option_function<std::string>("--config", read, "TOML file of flags; the command line wins over it")
      ->type_name("FILE")
      ->group("Options");
}

}  // namespace millrace::monitoring
