#include "monitoring/http_address.h"

#include <charconv>

namespace millrace::monitoring {

Result<HttpAddress> parse_http_address(std::string_view text) {
  const auto refused = [&] {
    return fail(ErrorCode::kInvalidArgument,
                "'" + std::string(text) + "' is not an address: give HOST:PORT, as 127.0.0.1:9100 or [::1]:9100");
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return refused();
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find_first_of(":[]") != std::string_view::npos) {
    return refused();
  }
  HttpAddress address;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), address.port);
  const bool blank = host.find_first_of(" \t\r\n\v\f/") != std::string_view::npos;
  if (blank || host.empty() || digits.empty() || error != std::errc() || end != digits.data() + digits.size())
    return refused();
  address.host = host;
  return address;
}

}  // namespace millrace::monitoring
