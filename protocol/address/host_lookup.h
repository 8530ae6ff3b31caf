#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/result.h"

/// Looks up host names for ZeroMQ, UDP and HTTP. ZeroMQ would try only a name's first address.
namespace millrace::protocol {

/// One address of a host.
struct HostAddress {
  std::array<uint8_t, 16> bytes{};  ///< of an IPv6 address; IPv4 mapped, "::ffff:192.0.2.1"
  uint32_t scope = 0;               ///< the interface's number, of a link-local one
  std::string text;                 ///< the number as text: "192.0.2.1", "2001:db8::1", "fe80::1%eth0"
  bool is_ipv6() const { return text.find(':') != std::string::npos; }
  bool operator==(const HostAddress&) const = default;
};

using HostResolver = std::function<Result<std::vector<HostAddress>>(const std::string& host)>;

/// Returns every address of `host`, IPv4 and IPv6, each once, in the order of the system's preference [RFC6724].
/// Addresses of a family that this machine does not have are left out, unless there are no others.
///
/// host     a name, or a number without brackets.
/// Cost     a number: nothing. A name: the system's resolver, which may take seconds.
/// Errors   unavailable: the name is not known, with the resolver's words.
/// Threads  reentrant.
Result<std::vector<HostAddress>> look_up_host(const std::string& host);

/// Returns the first address of a name that has addresses of loopback alone here, as Debian's installer writes them
/// into /etc/hosts. A listener at that name is unreachable for other hosts. Empty: the name has another address or is
/// not known; or the user asked for it, by a number or by "localhost…" or "ip6-…".
///
/// Cost     as look_up_host().
std::string loopback_of_name(const std::string& host, const HostResolver& resolver = look_up_host);

/// One lookup on a thread of its own, so that the caller's thread can answer messages.
///
/// Threads  one at a time. The destructor does not wait: the thread ends by itself, with the lookup.
class HostLookup {
 public:
  /// Errors  io: no thread, or no descriptor, for it.
  static Result<std::unique_ptr<HostLookup>> start(HostResolver resolver, std::string host);
  ~HostLookup();
  HostLookup(const HostLookup&) = delete;
  HostLookup& operator=(const HostLookup&) = delete;

  /// Returns a descriptor that is readable once the answer is there.
  int descriptor() const;
  /// Returns the answer, once; nothing while there is none.
  std::optional<Result<std::vector<HostAddress>>> take();

 private:
  struct State;
  explicit HostLookup(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace millrace::protocol
