#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <string>
#include <system_error>
#include <vector>

#include "kernels/base/words.h"

/// Checks of flags by their texts. The parser puts the flag's name before their sentences.
namespace millrace::monitoring {

/// Returns a check for a flag that takes a number from `least` to `most`. Stricter than the parser's own: NaN is in no
/// range, and a negative number does not wrap round to an unsigned one. The sentence shows small bounds as they are.
template <typename Number>
CLI::Validator in_range(Number least, Number most) {
  const auto check = [least, most](std::string& text) {
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool number = error == std::errc() && end == text.data() + text.size();
    if (number && value >= least && value <= most) return std::string();
    return fmt::format("'{}' is not a number from {} to {}", text, least, most);
  };
  return CLI::Validator(check, fmt::format("{}..{}", least, most), "range");
}

/// Returns a check for a flag that takes one of a few words.
inline CLI::Validator one_of(const std::vector<std::string>& words) {
  const auto check = [words](std::string& text) {
    if (std::ranges::find(words, text) != words.end()) return std::string();
    return fmt::format("'{}' is not one of {}{}", text, fmt::join(words, ", "), did_you_mean(text, words));
  };
  return CLI::Validator(check, fmt::format("{{{}}}", fmt::join(words, ",")), "words");
}

/// Returns a check that refuses a text for which parse(text), a Result or a Status, is an error, with its sentence.
template <typename Parse>
CLI::Validator checked(Parse parse) {
  return CLI::Validator(
      [parse](std::string& text) {
        const auto parsed = parse(text);
        return parsed ? std::string() : parsed.error().message;
      },
      "");
}

/// Returns a check for a flag that names a file, a folder or an address: an empty one would mean as much as none.
inline CLI::Validator not_empty() {
  return CLI::Validator([](std::string& text) { return text.empty() ? std::string("it is empty") : std::string(); },
                        "");
}

}  // namespace millrace::monitoring
