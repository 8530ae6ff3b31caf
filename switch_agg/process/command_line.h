#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

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

/// Returns the program's version, and those of DPDK and of the library that computes MACs.
std::string version_text(std::string_view program);

}  // namespace millrace::switch_agg
