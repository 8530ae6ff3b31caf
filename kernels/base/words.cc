#include "kernels/base/words.h"

#include <algorithm>
#include <array>

namespace millrace {
namespace {

/// Returns the optimal string alignment distance: single changes, and exchanges of neighbours.
size_t typing_errors(std::string_view one, std::string_view other) {
  // errors[r][j]: of the first i - r letters of `one` against the first j of `other`; r counts rows back.
  std::array<std::vector<size_t>, 3> errors;
  errors.fill(std::vector<size_t>(other.size() + 1));
  for (size_t j = 0; j <= other.size(); ++j) errors[0][j] = j;
  for (size_t i = 1; i <= one.size(); ++i) {
    std::ranges::rotate(errors, errors.end() - 1);
    errors[0][0] = i;
    for (size_t j = 1; j <= other.size(); ++j) {
      const size_t changed = errors[1][j - 1] + (one[i - 1] == other[j - 1] ? 0 : 1);
      errors[0][j] = std::min({errors[1][j] + 1, errors[0][j - 1] + 1, changed});
      const bool exchanged = i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1];
      if (exchanged) errors[0][j] = std::min(errors[0][j], errors[2][j - 2] + 1);
    }
  }
  return errors[0][other.size()];
}

}  // namespace

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known) {
  constexpr size_t kComparedMax = 64;  // letters: the cost is their product
  if (word.size() > kComparedMax) return {};
  const std::string* nearest = nullptr;
  size_t least = kComparedMax;
  for (const std::string& one : known) {
    if (one.size() > kComparedMax) continue;
    const size_t errors = typing_errors(word, one);
    if (errors == 0) return {};  // the word is right, and something else is wrong
    if (errors > (one.size() + 2) / 3 || errors >= word.size() || errors >= least) continue;
    nearest = &one;
    least = errors;
  }
  return nearest == nullptr ? std::string() : "; did you mean '" + *nearest + "'?";
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> words;
  for (;;) {
    const size_t at = text.find(separator);
    words.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return words;
    text.remove_prefix(at + 1);
  }
}

}  // namespace millrace
