#include "protocol/table/etcd_address.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "kernels/base/plain_text.h"
#include "protocol/address/host_port.h"

namespace millrace::protocol {
namespace {

constexpr std::string_view kScheme = "etcd://";
constexpr size_t kPrefixBytesMax = 128;
constexpr size_t kEndpointsMax = 32;
constexpr size_t kPasswordBytesMax = 1'024;

std::unexpected<Error> no_address(std::string_view text, std::string_view fault) {
  return std::unexpected(not_an_address(text, "etcd://HOST:PORT,HOST:PORT or etcd://HOST:PORT/PREFIX", fault));
}

bool is_prefix_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
         c == '-' || c == '/';
}

}  // namespace

bool is_etcd_address(std::string_view text) { return text.starts_with(kScheme); }

Result<EtcdOptions> parse_etcd_address(std::string_view text) {
  if (!is_etcd_address(text)) return no_address(text, "it does not begin with etcd://");
  std::string_view rest = text.substr(kScheme.size());
  EtcdOptions options;
  if (const size_t slash = rest.find('/'); slash != std::string_view::npos) {
    const std::string_view prefix = rest.substr(slash);
    if (prefix.size() > kPrefixBytesMax || prefix.ends_with('/') || prefix.contains("//") ||
        !std::ranges::all_of(prefix, is_prefix_character))
      return no_address(text, "a prefix is letters, digits and ._- between single slashes, 128 bytes at most");
    options.prefix = prefix;
    rest = rest.substr(0, slash);
  }
  for (;;) {
    const size_t comma = rest.find(',');
    const auto endpoint = split_host_port(rest.substr(0, comma), PortZero::kRefused);
    if (!endpoint) return no_address(text, endpoint.error());
    if (is_every_host(endpoint->host)) return no_address(text, "an endpoint is one machine");
    std::string one = host_port_text(endpoint->host, endpoint->port);
    if (std::ranges::find(options.endpoints, one) != options.endpoints.end())
      return no_address(text, "two endpoints are equal");
    options.endpoints.push_back(std::move(one));
    if (comma == std::string_view::npos) break;
    rest = rest.substr(comma + 1);
  }
  if (options.endpoints.size() > kEndpointsMax) return no_address(text, "more than 32 endpoints");
  return options;
}

Result<std::string> read_password_file(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0)
    return fail(ErrorCode::kIo, fmt::format("password file {}: {}", path, std::strerror(errno)));
  if ((status.st_mode & S_IRWXO) != 0) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("password file {}: all users may read or write it; chmod 640 {}", path, path));
  }
  std::ifstream file(path);
  std::string line;
  if (!file) return fail(ErrorCode::kIo, fmt::format("password file {}: it cannot be read", path));
  if (!std::getline(file, line) || line.empty() || line.size() > kPasswordBytesMax || !is_plain_text(line)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("password file {}: its first line must be a password of 1 to {} bytes of plain text", path,
                            kPasswordBytesMax));
  }
  return line;
}

}  // namespace millrace::protocol
