#pragma once

#include <CLI/CLI.hpp>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "monitoring/command_line/text_check.h"

namespace millrace::program {

using monitoring::checked;
using monitoring::in_range;
using monitoring::not_empty;
using monitoring::one_of;

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

}  // namespace millrace::program
