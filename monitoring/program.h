#pragma once

#include <string>
#include <string_view>

#include "kernels/base/result.h"
#include "monitoring/exit_code.h"

/// The start of every program, and the lines and exit codes of the server programs.
namespace millrace::monitoring {

/// Begins a program; called first in main(). Holds the standard streams and raises the limit of open files. Ignores
/// SIGPIPE and SIGXFSZ. A closed pipe is then an error of the call that meets it, and so is a file that may not grow
/// (ulimit -f).
void begin_program();

/// Sets the handlers of a server's signals: SIGTERM and SIGINT ask it to end, `other` asks for something else.
void take_server_signals(void (*on_end)(int), int other, void (*on_other)(int));

/// Describes a server program. Every failure is one line on stderr, "NAME: SENTENCE", and an exit code.
struct ServerProgram {
  std::string_view name;
  ErrorPlace place;

  void say(std::string_view sentence) const;
  /// Prints a line on stdout at once. If that fails, say() tells why.
  void print_line(std::string_view line) const;

  /// Says the fault of the command line, and where to read on. Returns the exit code.
  int report_usage(std::string_view sentence) const;
  /// Says why the program ends. Returns the exit code.
  int report_error(const Error& error) const;
  /// Prints why the start failed, for a program that started this one: a JSON line on stdout, where it expected the
  /// address. Returns the exit code.
  int report_failed_start_as_json(const Error& error) const;
};

}  // namespace millrace::monitoring
