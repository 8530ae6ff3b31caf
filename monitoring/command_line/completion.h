#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace millrace::monitoring {

enum class CompletionShell : uint8_t { kBash = 1, kZsh };

/// Returns the shell of a name, "bash" or "zsh".
std::optional<CompletionShell> completion_shell(std::string_view name);

/// Returns the script that completes the program's commands, flags, and the words, files and folders that flags take:
/// all of them as the parser has them. A flag's words are those of its type, as {a,b} or a|b.
///
/// root   the program's parser with all its commands; its name is the program's.
std::string completion_script(const CLI::App& root, CompletionShell shell);

/// Gives a program the layout of help that all programs have, and --print-completion bash|zsh, which prints the script.
/// The flag is not in help: `millrace completion` and the installation use it.
void shape_command_line(CLI::App& root);

}  // namespace millrace::monitoring
