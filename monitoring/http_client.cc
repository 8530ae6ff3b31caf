#include "monitoring/http_client.h"

#include <httplib.h>

#include "monitoring/http_address.h"

namespace millrace::monitoring {

Result<HttpReply> http_get(std::string_view address, const std::string& path, int timeout_ms) {
  const auto parsed = parse_http_address(address);
  if (!parsed) return std::unexpected(parsed.error());
  httplib::Client client(parsed->host, parsed->port);
  const time_t seconds = timeout_ms / 1000;
  const time_t microseconds = timeout_ms % 1000 * 1000;
  client.set_connection_timeout(seconds, microseconds);
  client.set_read_timeout(seconds, microseconds);
  HttpReply reply;
  bool too_long = false;
  const auto result = client.Get(path, [&](const char* data, size_t size) {
    too_long = reply.body.size() + size > kHttpReplyBytesMax;
    if (!too_long) reply.body.append(data, size);
    return !too_long;
  });
  if (too_long) {
    return fail(ErrorCode::kLimitExceeded,
                std::string(address) + path + " is longer than 16 MiB: it is no status of Millrace");
  }
  if (!result) {
    const bool connected = result.error() == httplib::Error::Read || result.error() == httplib::Error::Write;
    return fail(ErrorCode::kUnavailable,
                std::string(address) + " does not answer" +
                    (connected ? " as HTTP does: is it the port of --http?" : ": does a process listen there?"));
  }
  reply.status = result->status;
  return reply;
}

}  // namespace millrace::monitoring
