#pragma once

#include <string>
#include <string_view>

namespace millrace::monitoring {

/// Only what the page itself holds may run in it, and it may talk to its own port only.
inline constexpr const char* kStatusPagePolicy =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'";

/// A self-contained HTML page (no other files) that polls /status and shows whatever JSON object comes: plain values as
/// numbers with their names, arrays of objects as tables, objects as sections. Names ending in _bytes, _ms, _seconds
/// are shown with units.
///
/// title   any text; escaped. What /status says is only ever set as text, never as HTML.
std::string status_page(std::string_view title);

/// `text` with the five characters that HTML gives a meaning replaced.
std::string escape_html(std::string_view text);

}  // namespace millrace::monitoring
