#pragma once

#include <string>
#include <string_view>

namespace millrace::monitoring {

/// Allows only the page's own scripts and styles, and connections only to its own port.
inline constexpr const char* kStatusPagePolicy =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'";

/// Returns a self-contained HTML page (no other files) that polls /status and shows its JSON object. Plain values
/// appear as numbers with their names, arrays of objects as tables, objects as sections. Names ending in _bytes, _ms,
/// _seconds are shown with units.
///
/// title   any text; escaped. The content of /status is only ever set as text, never as HTML.
std::string status_page(std::string_view title);

/// Returns `text` with the five characters that HTML gives a meaning replaced.
std::string escape_html(std::string_view text);

}  // namespace millrace::monitoring
