#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/bytes.h"
#include "kernels/base/plain_text.h"

namespace millrace::protocol {

/// Returns the same memory, as bytes or as characters.
ByteSpan bytes_of(std::string_view text);
std::string_view text_of(ByteSpan bytes);

/// Writes a u16 length and the bytes. REQUIRES: text.size() <= 65535.
void put_text(ByteWriter& writer, std::string_view text);

/// Reads what put_text() wrote. Empty: bytes run out, the text is longer than `bytes_max` or not plain.
std::optional<std::string> get_text(ByteReader& reader, size_t bytes_max);

}  // namespace millrace::protocol
