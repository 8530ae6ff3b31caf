#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

/// Returns the pieces of `text` between separators, at least one; empty ones stay. They point into `text`.
std::vector<std::string_view> split(std::string_view text, char separator);

/// Returns "; did you mean 'WORD'?" with the known word that has the fewest typing errors against `word`: wrong,
/// missing or surplus letters, and exchanged neighbours. Empty: every known word has more errors than a third of its
/// letters, or `word` is one of them. Ties: the first. It ends a sentence that refuses `word`.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

/// Returns the number that `text` consists of, and nothing else. Empty: it is none, or none of that type.
template <typename T>
std::optional<T> number_from_text(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Assigns the same to `value`, which does not change where `text` is no such number.
template <typename T>
bool assign_number(std::string_view text, T& value) {
  const std::optional<T> number = number_from_text<T>(text);
  value = number.value_or(value);
  return number.has_value();
}

}  // namespace millrace
