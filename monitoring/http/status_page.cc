#include "monitoring/http/status_page.h"

namespace millrace::monitoring {

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string status_page(std::string_view title, PageOf of) {
  constexpr std::string_view kTitle = "{{title}}";
  constexpr std::string_view kOf = "{{of}}";
  const std::string escaped = escape_html(title);
  std::string page;
  std::string_view rest = kPage;
  for (size_t at = rest.find("{{"); at != std::string_view::npos; at = rest.find("{{")) {
    page.append(rest.substr(0, at));
    rest.remove_prefix(at);
    if (rest.starts_with(kTitle)) {
      page.append(escaped);
      rest.remove_prefix(kTitle.size());
    } else if (rest.starts_with(kOf)) {
      page.append(of == PageOf::kCluster ? "cluster" : "process");
      rest.remove_prefix(kOf.size());
    } else {
      page.append("{{");
      rest.remove_prefix(2);
    }
  }
  return page.append(rest);
}

}  // namespace millrace::monitoring
