#pragma once

#include <string>
#include <string_view>

#include "kernels/base/result.h"
#include "monitoring/http/http_protection.h"

namespace millrace::monitoring {

struct HttpReply {
  int status = 0;
  std::string body;
};

/// Longest body that is read.
inline constexpr size_t kHttpReplyBytesMax = size_t{16} << 20;

/// Sends GET http://ADDRESS/PATH to an HttpPort and returns its reply.
///
/// address  "127.0.0.1:9100", "[::1]:9100", "shard0.example:9100": the addresses of the name in turn, until one
///          accepts.
/// Cost     a name: the system's resolver besides, which may take seconds.
/// Errors   invalid_argument: not an address. unavailable: no process answers there, or not within timeout_ms for
///          connecting, and as much for all of the rest. limit_exceeded: a longer body.
/// Threads  reentrant; blocks.
/// caller  nullptr: without TLS and without a token. Its token goes to the server only after TLS has proved its name.
///         A server whose certificate does not: unavailable.
Result<HttpReply> http_get(std::string_view address, const std::string& path, int timeout_ms,
                           const HttpCaller* caller = nullptr);

/// Sends POST with a body, and else as http_get(). unavailable: the port may have carried out the request.
Result<HttpReply> http_post(std::string_view address, const std::string& path, std::string_view body, int timeout_ms,
                            const HttpCaller* caller);

}  // namespace millrace::monitoring
