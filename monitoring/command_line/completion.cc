#include "monitoring/command_line/completion.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <vector>

#include "kernels/base/words.h"

namespace millrace::monitoring {
namespace {

/// Keeps the line breaks of the texts under the flags.
class PlainFooter : public CLI::Formatter {
 public:
  std::string make_footer(const CLI::App* app) const override {
    return app->get_footer().empty() ? std::string() : "\n" + app->get_footer() + "\n";
  }
};

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) { return !command->get_name().empty(); });
}

std::vector<const CLI::Option*> shown_flags_of(const CLI::App& app) {
  return app.get_options(
      [](const CLI::Option* option) { return option->nonpositional() && !option->get_group().empty(); });
}

/// Returns a flag's names, "-o" and "--output".
std::vector<std::string> names_of(const CLI::Option& flag) {
  std::vector<std::string> names;
  for (const std::string& name : flag.get_snames()) names.push_back("-" + name);
  for (const std::string& name : flag.get_lnames()) names.push_back("--" + name);
  return names;
}

/// Returns the words of a type, "{a,b}" or "a|b", with blanks between; empty: it has none.
std::string words_of_type(std::string_view type) {
  const size_t open = type.find('{');
  const size_t close = type.find('}');
  const bool braces = open != std::string_view::npos && close != std::string_view::npos && open < close;
  if (!braces && type.find('|') == std::string_view::npos) return {};
  std::string words;
  for (const std::string_view word : braces ? split(type.substr(open + 1, close - open - 1), ',') : split(type, '|')) {
    words += (words.empty() ? "" : " ") + std::string(word.substr(0, word.find("->")));
  }
  return words;
}

/// Returns what completes the value of a flag: words, or ":file", ":folder" or ":none". Empty: the flag has no value.
std::string completed_values(const CLI::Option& flag) {
  if (flag.get_expected_max() == 0) return {};
  const std::string type = flag.get_type_name();
  if (type.starts_with("FILE")) return ":file";
  if (type.starts_with("FOLDER")) return ":folder";
  const std::string words = words_of_type(type);
  return words.empty() ? ":none" : words;
}

/// Adds a line of a shell's `case` for each command and each flag with a value.
void add_cases(const CLI::App& app, const std::string& path, std::string& cases) {
  std::string words;
  const auto add_word = [&words](const std::string& word) { words += (words.empty() ? "" : " ") + word; };
  for (const CLI::App* command : commands_of(app)) add_word(command->get_name());
  for (const CLI::Option* flag : shown_flags_of(app)) {
    const std::string values = completed_values(*flag);
    for (const std::string& name : names_of(*flag)) {
      add_word(name);
      if (!values.empty()) cases += fmt::format("    '{} {}') echo '{}' ;;\n", path, name, values);
    }
  }
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) continue;
    const std::string values = words_of_type(option->get_type_name());
    if (!values.empty()) add_word(values);
  }
  cases += fmt::format("    '{}') echo '{}' ;;\n", path, words);
  for (const CLI::App* command : commands_of(app)) add_cases(*command, path + " " + command->get_name(), cases);
}

// In the templates PROGRAM is the program's name, and CASES are the lines of add_cases().

constexpr std::string_view kBash = R"(# Completion of PROGRAM for bash, printed by PROGRAM --print-completion bash.
_PROGRAM_words() {
  case "$1" in
CASES    *) ;;
  esac
}
_PROGRAM() {
  local command='PROGRAM' current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD - 1]}" at found=''
  for ((at = 1; at < COMP_CWORD; ++at)); do
    [[ ${COMP_WORDS[at]} == -* || -z $(_PROGRAM_words "$command ${COMP_WORDS[at]}") ]] || command+=" ${COMP_WORDS[at]}"
  done
  # bash divides --flag=value at the sign.
  [[ $current != = ]] || current=''
  [[ $before != = ]] || before="${COMP_WORDS[COMP_CWORD - 2]}"
  [[ $before != -* ]] || found=$(_PROGRAM_words "$command $before")
  [[ -n $found ]] || found=$(_PROGRAM_words "$command")
  case "$found" in
    :file) mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
    :folder) mapfile -t COMPREPLY < <(compgen -d -- "$current") ;;
    :none) COMPREPLY=() ;;
    *) mapfile -t COMPREPLY < <(compgen -W "$found" -- "$current") ;;
  esac
}
complete -o filenames -F _PROGRAM PROGRAM
)";

constexpr std::string_view kZsh = R"(#compdef PROGRAM
# Completion of PROGRAM for zsh, printed by PROGRAM --print-completion zsh.
_PROGRAM_words() {
  case "$1" in
CASES    *) ;;
  esac
}
_PROGRAM() {
  local command='PROGRAM' before="${words[CURRENT-1]}" word found=''
  for word in "${(@)words[2,CURRENT-1]}"; do
    [[ $word == -* || -z $(_PROGRAM_words "$command $word") ]] || command+=" $word"
  done
  [[ $before != -* ]] || found=$(_PROGRAM_words "$command $before")
  [[ -n $found ]] || found=$(_PROGRAM_words "$command")
  case "$found" in
    :file) _files ;;
    :folder) _files -/ ;;
    :none) ;;
    *) compadd -- ${=found} ;;
  esac
}
if [[ $funcstack[1] == _PROGRAM ]]; then
  _PROGRAM "$@"
else
  compdef _PROGRAM PROGRAM
fi
)";

std::string replaced(std::string text, std::string_view what, std::string_view with) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size())) {
    text.replace(at, what.size(), with);
  }
  return text;
}

}  // namespace

std::optional<CompletionShell> completion_shell(std::string_view name) {
  if (name == "bash") return CompletionShell::kBash;
  if (name == "zsh") return CompletionShell::kZsh;
  return std::nullopt;
}

std::string completion_script(const CLI::App& root, CompletionShell shell) {
  std::string cases;
  add_cases(root, root.get_name(), cases);
  std::string script(shell == CompletionShell::kBash ? kBash : kZsh);
  script = replaced(std::move(script), "PROGRAM", root.get_name());
  return replaced(std::move(script), "CASES", cases);
}

void shape_command_line(CLI::App& root) {
  root.formatter(std::make_shared<PlainFooter>());
  root.get_formatter()->column_width(34);
  const auto print = [&root](const std::string& name) {
    const auto shell = completion_shell(name);
    if (!shell) throw CLI::ValidationError("--print-completion", "'" + name + "' is no shell: bash or zsh");
    throw CLI::CallForVersion(completion_script(root, *shell), static_cast<int>(CLI::ExitCodes::Success));
  };
  root.add_option_function<std::string>("--print-completion", print)->group("");
}

}  // namespace millrace::monitoring
