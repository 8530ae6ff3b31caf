#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/base/result.h"

namespace millrace::monitoring {

struct HttpAddress {
  std::string host;  ///< without brackets
  uint16_t port = 0;
};

/// Reads "HOST:PORT" or "[HOST]:PORT"; an IPv6 host needs its brackets.
///
/// Errors   invalid_argument, with what is expected.
Result<HttpAddress> parse_http_address(std::string_view text);

}  // namespace millrace::monitoring
