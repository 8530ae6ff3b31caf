#include "protocol/base/text.h"

#include "kernels/base/check.h"

namespace millrace::protocol {

ByteSpan bytes_of(std::string_view text) {
  // NOLINTNEXTLINE(bugprone-casting-through-void): bytes of text, as they are
  return {static_cast<const uint8_t*>(static_cast<const void*>(text.data())), text.size()};
}

std::string_view text_of(ByteSpan bytes) {
  // NOLINTNEXTLINE(bugprone-casting-through-void)
  return {static_cast<const char*>(static_cast<const void*>(bytes.data())), bytes.size()};
}

void put_text(ByteWriter& writer, std::string_view text) {
  MILLRACE_CHECK(text.size() <= 65'535, text.size());
  writer.put(static_cast<uint16_t>(text.size()));
  writer.put_bytes(bytes_of(text));
}

std::optional<std::string> get_text(ByteReader& reader, size_t bytes_max) {
  const std::optional<uint16_t> length = reader.get<uint16_t>();
  if (!length || *length > bytes_max) return std::nullopt;
  const std::optional<ByteSpan> bytes = reader.get_bytes(*length);
  if (!bytes) return std::nullopt;
  std::string text(text_of(*bytes));
  if (!is_plain_text(text)) return std::nullopt;
  return text;
}

}  // namespace millrace::protocol
