#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::monitoring {

/// Allows only the page's own scripts and styles, and connections only to its own port.
inline constexpr const char* kStatusPagePolicy =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'";

/// The files of page/ as one text, with {{title}} and {{of}} in place of these texts.
extern const std::string_view kPage;

/// The object of a page: the cluster of /cluster and its jobs, or the object of /status.
enum class PageOf : uint8_t { kCluster, kProcess };

/// Returns a self-contained HTML page, which polls the port. Of an object, plain values appear as numbers with their
/// names, arrays of objects as tables, objects as sections. Names ending in _bytes, _ms, _seconds are shown with units.
///
/// title   any text; escaped. Content of other processes is only ever set as text, never as HTML.
std::string status_page(std::string_view title, PageOf of);

/// Returns `text` with the five characters that HTML gives a meaning replaced.
std::string escape_html(std::string_view text);

}  // namespace millrace::monitoring
