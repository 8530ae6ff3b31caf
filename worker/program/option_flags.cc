#include "worker/program/option_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

namespace millrace::worker {
namespace {

/// Sets an option by a flag's text, or refuses the flag.
void set_by_flag(const Option& option, const std::string& text, GivenTexts& given) {
  if (const Status done = option.set(text); !done) {
    std::string_view sentence = done.error().message;
    const std::string name = option.name + ": ";
    if (sentence.starts_with(name)) sentence.remove_prefix(name.size());  // the flag says it
    throw CLI::ValidationError("--" + option.flag, std::string(sentence));
  }
  given[option.name] = text;
}

void add_option_flag(CLI::App& app, const Option& option, GivenTexts& given) {
  const std::string group(heading_of(option.info.group));
  const std::string name = "--" + option.flag;
  const std::string help =
      option.forms.empty() ? std::string(option.info.help) : fmt::format("{}: {}", option.info.help, option.forms);
  if (option.is_switch) {
    // add_flag_function() would read the text as a number, and ends the process where it is none.
    const auto set = [&option, &given](const CLI::results_t& texts) {
      set_by_flag(option, texts.back(), given);
      return true;
    };
    app.add_option(name, set, help)->expected(0)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)->group(group);
    return;
  }
  const auto set = [&option, &given](const std::string& text) { set_by_flag(option, text, given); };
  CLI::Option* flag = app.add_option_function<std::string>(name, set, help)->type_name(option.form)->group(group);
  if (const std::string text = option.text(); !text.empty()) flag->default_str(text);
}

}  // namespace

void add_option_flags(CLI::App& app, std::vector<Option>& options, std::span<const std::string_view> left_out,
                      GivenTexts& given) {
  check_option_names(options, left_out);
  for (const Option& option : options) {
    if (std::ranges::find(left_out, option.name) != left_out.end()) continue;
    add_option_flag(app, option, given);
  }
}

JobFlags::JobFlags(const JobConfig& job, std::span<const std::string_view> names)
    : draft(draft_of(job)), options(options_of(draft)) {
  keep_options(options, names);
}

void JobFlags::limit(std::string_view name, double least, double most) {
  Option& option = option_named(options, name);
  option.info.least = least;
  option.info.most = most;
}

}  // namespace millrace::worker
