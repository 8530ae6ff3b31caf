#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/bytes.h"

namespace millrace::protocol {

/// The same memory, as bytes or as characters.
ByteSpan bytes_of(std::string_view text);
std::string_view text_of(ByteSpan bytes);

/// Valid UTF-8 without control characters: what names, addresses and software strings must be, since they are printed in
/// logs, metric labels and pages.
bool is_plain_text(std::string_view text);

/// `text` cut to at most `bytes_max` bytes, everything that is not plain text replaced by '?': for sentences, which are
/// worth reading even when the peer wrote them badly.
std::string plain_text_of(std::string_view text, size_t bytes_max);

/// u16 length, bytes. REQUIRES: text.size() <= 65535.
void put_text(ByteWriter& writer, std::string_view text);

/// Reads what put_text() wrote. Empty: bytes run out, the text is longer than `bytes_max` or not plain.
std::optional<std::string> get_text(ByteReader& reader, size_t bytes_max);

}  // namespace millrace::protocol
