#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

#include "kernels/base/result.h"

/// Functions that the command lines of `millrace-switch` and `millrace-switch-bench` share.
namespace millrace::switch_agg {

/// Returns a validator that refuses a text for which parse(text), a Result, is an error; the error's message says why.
template <typename Parse>
CLI::Validator checked(Parse parse) {
  return CLI::Validator(
      [parse](std::string& text) {
        const auto parsed = parse(text);
        return parsed ? std::string() : parsed.error().message;
      },
      "");
}

/// Writes one line on stderr: the program, the sentence, and where to read on. Returns the exit code of wrong usage.
int report_usage(std::string_view program, std::string_view sentence);

/// Returns the program's version, and those of DPDK and of the library that computes MACs.
std::string version_text(std::string_view program);

/// Writes "PROGRAM: SENTENCE" on stderr.
void say(std::string_view program, std::string_view sentence);

/// Flushes stdout. If that fails, say() tells why.
void flush(std::string_view program);

/// Returns the exit code of an error that this process met (deploy/OPERATING.md).
int exit_code_of(ErrorCode code);

}  // namespace millrace::switch_agg
