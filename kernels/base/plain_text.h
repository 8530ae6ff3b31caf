#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace millrace {

/// Returns whether a text is valid UTF-8 without control characters. Names, addresses and software strings must be,
/// since they are printed in logs, metric labels and pages.
bool is_plain_text(std::string_view text);

/// Returns `text` truncated to at most `bytes_max` bytes, between characters, with '?' in place of everything that is
/// not plain text. For sentences, which are worth reading even when the peer wrote them badly.
std::string plain_text_of(std::string_view text, size_t bytes_max);

}  // namespace millrace
