#include "kernels/base/plain_text.h"

#include <utf8cpp/utf8.h>

#include <cstdint>

namespace millrace {
namespace {

/// Returns the bytes of the printable character at the start of `rest`; 0: a control character (C0, DEL, C1) or not
/// UTF-8 [RFC3629].
size_t plain_bytes(std::string_view rest) {
  constexpr size_t kCharacterBytesMax = 4;
  const std::string_view first = rest.substr(0, kCharacterBytesMax);
  if (utf8::find_invalid(first.begin(), first.end()) == first.begin()) return 0;
  const char* end = first.data();
  const uint32_t character = utf8::unchecked::next(end);
  const bool is_control = character < 0x20 || (character >= 0x7F && character < 0xA0);
  return is_control ? 0 : static_cast<size_t>(end - first.data());
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
