#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "kernels/base/words.h"

namespace millrace::program {

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

/// Holds the words of a flag, each with its value.
template <typename Value>
using Choices = std::vector<std::pair<std::string, Value>>;

/// Returns the words that `word_of` has for some values.
template <typename Value>
Choices<Value> choices_of(std::initializer_list<Value> values, std::string_view (*word_of)(Value)) {
  Choices<Value> choices;
  for (const Value value : values) choices.emplace_back(word_of(value), value);
  return choices;
}

/// Adds a flag that takes one of a few words. The variable's value is the default that help shows.
///
/// REQUIRES  the variable outlives the parsing.
template <typename Value>
CLI::Option* add_choice(CLI::App& app, const std::string& flag, Value& value, const Choices<Value>& choices,
                        const std::string& description) {
  std::vector<std::string> words;
  std::string shown;
  for (const auto& [word, meant] : choices) {
    words.push_back(word);
    if (meant == value) shown = word;
  }
  const auto set = [&value, choices](const std::string& text) {
    for (const auto& [word, meant] : choices) {
      if (word == text) value = meant;
    }
  };
  return app.add_option_function<std::string>(flag, set, description)->default_str(shown)->check(one_of(words));
}

/// Returns a check for a flag that names a file, a folder or an address: an empty one would mean as much as none.
inline CLI::Validator not_empty() {
  return CLI::Validator([](std::string& text) { return text.empty() ? std::string("it is empty") : std::string(); },
                        "");
}

}  // namespace millrace::program
