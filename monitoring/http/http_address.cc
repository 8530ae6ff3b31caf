#include "monitoring/http/http_address.h"

#include <string>
#include <utility>

namespace millrace::monitoring {

Result<HttpAddress> parse_http_address(std::string_view text) {
  if (std::optional<HostPort> address = split_host_port(text)) return std::move(*address);
  return fail(ErrorCode::kInvalidArgument,
              "'" + std::string(text) + "' is not an address: give HOST:PORT, as 127.0.0.1:9100 or [::1]:9100");
}

}  // namespace millrace::monitoring
