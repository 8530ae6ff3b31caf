#include "monitoring/command_line/config_flag.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "kernels/base/words.h"
#include "monitoring/command_line/usage_sentence.h"

namespace millrace::monitoring {
namespace {

/// Gives a flag the value that a file has for it.
void set_by_file(CLI::App& app, const CLI::ConfigItem& item) {
  CLI::Option* flag = app.get_option_no_throw("--" + item.name);
  const bool of_lines_alone = item.name == "config" || item.name == "help" || item.name == "version";
  if (flag == nullptr || of_lines_alone || flag->get_group().empty()) {
    std::vector<std::string> known = flag_names(app);
    for (std::string& name : known) name.erase(0, 2);
    throw CLI::ConfigError(
        fmt::format("--config: '{}' is no flag of this command{}", item.name, did_you_mean(item.name, known)));
  }
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
    for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_file(path)) {
      if (item.name != "++" && item.name != "--") set_by_file(app, item);  // else: a part begins or ends
    }
  };
  app.add_option_function<std::string>("--config", read, "TOML file of flags; the command line wins over it")
      ->type_name("FILE")
      ->group("Options");
}

}  // namespace millrace::monitoring
