#include "kernels/base/plain_text.h"

#include <cstdint>

namespace millrace {
namespace {

/// Bytes of the well-formed UTF-8 character at the start of `rest`; 0: none. [RFC3629]: no overlong forms, no
/// surrogates.
size_t character_bytes(std::string_view rest) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(rest[i]); };
  const auto continues = [&](size_t i, uint8_t low, uint8_t high) {
    return i < rest.size() && at(i) >= low && at(i) <= high;
  };
  const uint8_t first = at(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return continues(1, 0x80, 0xBF) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const uint8_t low = first == 0xE0 ? 0xA0 : 0x80;
    const uint8_t high = first == 0xED ? 0x9F : 0xBF;
    return continues(1, low, high) && continues(2, 0x80, 0xBF) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const uint8_t low = first == 0xF0 ? 0x90 : 0x80;
    const uint8_t high = first == 0xF4 ? 0x8F : 0xBF;
    return continues(1, low, high) && continues(2, 0x80, 0xBF) && continues(3, 0x80, 0xBF) ? 4 : 0;
  }
  return 0;
}

/// Bytes of the printable character at the start of `rest`; 0: a control character (C0, DEL, C1) or not UTF-8.
size_t plain_bytes(std::string_view rest) {
  const auto first = static_cast<uint8_t>(rest[0]);
  if (first < 0x20 || first == 0x7F) return 0;
  if (first == 0xC2 && rest.size() > 1 && static_cast<uint8_t>(rest[1]) < 0xA0) return 0;
  return character_bytes(rest);
}

}  // namespace

bool is_plain_text(std::string_view text) {
  while (!text.empty()) {
    const size_t bytes = plain_bytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

std::string plain_text_of(std::string_view text, size_t bytes_max) {
  std::string plain;
  while (!text.empty()) {
    const size_t bytes = plain_bytes(text);
    const std::string_view character = bytes == 0 ? std::string_view("?") : text.substr(0, bytes);
    if (plain.size() + character.size() > bytes_max) break;
    plain += character;
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return plain;
}

}  // namespace millrace
