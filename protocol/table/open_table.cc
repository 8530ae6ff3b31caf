#include "protocol/table/open_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "protocol/address/host_port.h"
#include "protocol/table/etcd_address.h"
#include "protocol/table/etcd_table.h"

namespace millrace::protocol {
namespace {

bool is_loopback(const std::string& endpoint) {
  const auto at = parse_host_port(endpoint);
  return at && is_loopback_host(at->host);
}

bool any_of_etcd(const TableFlags& flags) {
  return !flags.ca_file.empty() || !flags.cert_file.empty() || !flags.key_file.empty() || !flags.user.empty() ||
         !flags.password_file.empty();
}

}  // namespace

std::string refuse_table(const TableFlags& flags) {
  if (flags.location.empty()) return "--table: it is empty";
  if (flags.location == ":memory:")
    return fmt::format("--table: '{}' is not the name of a file that all shards can share", flags.location);
  if (!is_etcd_address(flags.location)) {
    if (flags.location.contains("://"))
      return fmt::format("--table: '{}' is neither a file nor etcd://HOST:PORT", flags.location);
    return any_of_etcd(flags) ? "--table-ca, --table-cert, --table-key, --table-user and --table-password-file are for "
                                "--table etcd://HOST:PORT"
                              : "";
  }
  const Result<EtcdOptions> options = parse_etcd_address(flags.location);
  if (!options) return fmt::format("--table: {}", options.error().message);
  if (flags.cert_file.empty() != flags.key_file.empty()) return "--table-cert and --table-key go together";
  if (!flags.cert_file.empty() && flags.ca_file.empty()) return "--table-cert: give --table-ca too, which means TLS";
  if (flags.user.empty() != flags.password_file.empty()) return "--table-user and --table-password-file go together";
  if (!flags.user.empty() && flags.ca_file.empty() && !std::ranges::all_of(options->endpoints, is_loopback))
    return "--table-user: without --table-ca the password would cross the network in plain text";
  return {};
}

Result<std::unique_ptr<MembershipTable>> open_table(const TableFlags& flags, uint32_t sqlite_wait_ms) {
  if (std::string refusal = refuse_table(flags); !refusal.empty())
    return fail(ErrorCode::kInvalidArgument, std::move(refusal));
  if (!is_etcd_address(flags.location)) return open_sqlite_table(flags.location, sqlite_wait_ms);
  EtcdOptions options = parse_etcd_address(flags.location).value();
  options.ca_file = flags.ca_file;
  options.cert_file = flags.cert_file;
  options.key_file = flags.key_file;
  options.user = flags.user;
  options.wait_ms = flags.etcd_wait_ms;
  if (!flags.password_file.empty()) {
    Result<std::string> password = read_password_file(flags.password_file);
    if (!password) return std::unexpected(password.error());
    options.password = std::move(*password);
  }
  return open_etcd_table(options);
}

}  // namespace millrace::protocol
