#include "worker/program/option_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

namespace millrace::worker {
namespace {

/// Sets an option by a flag's text, or refuses the flag.
void set_by_flag(const Option& option, const std::string& text, std::set<std::string>& given) {
  if (const Status done = option.set(text); !done) {
    std::string_view sentence = done.error().message;
    const std::string name = option.name + ": ";
    if (sentence.starts_with(name)) sentence.remove_prefix(name.size());  // the flag says it
    throw CLI::ValidationError("--" + option.flag, std::string(sentence));
  }
  given.insert(option.name);
}

void add_option_flag(CLI::App& app, const Option& option, std::set<std::string>& given) {
  const std::string group(heading_of(option.info.group));
  const std::string name = "--" + option.flag;
  const std::string help =
      option.forms.empty() ? std::string(option.info.help) : fmt::format("{}: {}", option.info.help, option.forms);
  if (option.is_switch) {
    const auto set = [&option, &given](int64_t count) { set_by_flag(option, count > 0 ? "on" : "off", given); };
    app.add_flag_function(name, set, help)->group(group);
    return;
  }
  const auto set = [&option, &given](const std::string& text) { set_by_flag(option, text, given); };
  CLI::Option* flag = app.add_option_function<std::string>(name, set, help)->type_name(option.form)->group(group);
  if (const std::string text = option.text(); !text.empty()) flag->default_str(text);
}

}  // namespace

void add_option_flags(CLI::App& app, std::vector<Option>& options, std::span<const std::string_view> left_out,
                      std::set<std::string>& given) {
  for (const Option& option : options) {
    if (std::ranges::find(left_out, option.name) != left_out.end()) continue;
    add_option_flag(app, option, given);
  }
}

JobFlags::JobFlags(const JobConfig& job, std::span<const std::string_view> names)
    : draft(draft_of(job)), options(options_of(draft)) {
  keep_options(options, names);
}

}  // namespace millrace::worker
