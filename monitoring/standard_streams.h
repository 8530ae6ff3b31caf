#pragma once

#include <string_view>

#include "kernels/base/result.h"

/// Standard input, output and error of a program. A failure to write a log ends nothing, and no output lands in another
/// open file.
namespace millrace::monitoring {

/// Opens /dev/null for each of the three that is closed. The next file or socket would get the number, and with it all
/// that is printed. Makes standard output line-buffered: the reader of a pipe gets each line when it is printed. Called
/// first in main().
void hold_standard_streams();

/// Writes to standard error, at once and in one piece; say() adds a newline. Text that cannot be written is lost: a
/// full disk, a pipe without a reader.
///
/// Threads  any.
void write_error(std::string_view text) noexcept;
void say(std::string_view line) noexcept;

/// Writes all buffered text to standard output. Errors  io: not all of it could be written, now or before.
Status flush_output();

}  // namespace millrace::monitoring
