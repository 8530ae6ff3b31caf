#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/result.h"

/// Reads and writes the texts of addresses. One grammar for flags, files, and messages.
///
/// address  host ":" port, or "[" ipv6 "]" ":" port.
/// host     a name, an IPv4 number, or "*". At most 253 bytes; no space, no control character, none of "/:[]".
/// ipv6     a number as inet_pton(3) reads it. "%" and an interface may follow.
/// port     decimal, 0 to 65535.
namespace millrace::protocol {

struct HostPort {
  std::string host;  ///< without brackets
  uint16_t port = 0;
  bool operator==(const HostPort&) const = default;
};

/// Says whether port 0 is an address: for a listener it means any free port; others cannot reach it.
enum class PortZero : uint8_t { kAllowed, kRefused };

/// Reads "HOST:PORT".
///
/// Errors   invalid_argument: the text is no address. The sentence names the text, the form and the fault.
Result<HostPort> parse_host_port(std::string_view text, PortZero port_zero = PortZero::kAllowed);

/// Reads "tcp://HOST:PORT". Errors  as parse_host_port().
Result<HostPort> parse_tcp_address(std::string_view text, PortZero port_zero = PortZero::kAllowed);

/// Reads a list of servers: "a:1,tcp://b:2" is {"tcp://a:1", "tcp://b:2"}.
///
/// Errors   as parse_host_port(), of the first wrong one; two servers have one address.
Result<std::vector<std::string>> parse_server_addresses(std::string_view text);
/// Reads the elements of such a list. Errors  as above, also of an empty text.
Result<std::vector<std::string>> parse_server_addresses(std::span<const std::string> texts);

/// Removes the "tcp://" with which an address may begin.
std::string_view without_tcp(std::string_view address);

/// Returns "192.0.2.1:7600", "[2001:db8::1]:7600".
std::string host_port_text(std::string_view host, uint16_t port);
/// Returns "tcp://192.0.2.1:7600", "tcp://[2001:db8::1]:7600".
std::string tcp_address(std::string_view host, uint16_t port);

/// Returns whether `host` is the number of an address, in any spelling: it needs no lookup.
bool is_numeric_host(std::string_view host);

/// Returns whether a listener at `host` accepts on every address of its machine: "*", and 0.0.0.0 and :: in any
/// spelling ("0", "::0", "::ffff:0.0.0.0").
bool is_every_host(std::string_view host);

/// Returns whether only this machine reaches a listener at `host`: 127.0.0.0/8 and ::1 in any spelling, and the name
/// "localhost". Other names are not looked up.
bool is_loopback_host(std::string_view host);

/// Returns whether `http` is a loopback address beside an `address` for workers that other hosts reach. On another host
/// it names that host's own port.
bool is_for_own_host(std::string_view http, std::string_view address);

/// Returns the error of a text that is no address: "'TEXT' is not an address: give FORM; FAULT". A long text is
/// truncated in it.
Error not_an_address(std::string_view text, std::string_view form, std::string_view fault);

/// Reads "HOST:PORT" for a caller with a form of its own. Errors  the fault alone, for not_an_address().
std::expected<HostPort, std::string_view> split_host_port(std::string_view text, PortZero port_zero);

}  // namespace millrace::protocol
