#pragma once

#include <string_view>

#include "kernels/base/host_port.h"
#include "kernels/base/result.h"

namespace millrace::monitoring {

using HttpAddress = HostPort;

/// Reads "HOST:PORT" or "[HOST]:PORT"; an IPv6 host needs its brackets.
///
/// Errors   invalid_argument, with the expected form.
Result<HttpAddress> parse_http_address(std::string_view text);

}  // namespace millrace::monitoring
