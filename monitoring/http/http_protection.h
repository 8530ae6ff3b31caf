#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/descriptor.h"
#include "kernels/base/result.h"
#include "monitoring/http/byte_channel.h"

namespace millrace::monitoring {

/// Protects an HTTP port: tokens, one of which clients must send, and TLS. secure/http_security.h makes one of files.
///
/// Threads  any.
class HttpProtection {
 public:
  virtual ~HttpProtection() = default;
  virtual bool uses_tls() const = 0;
  virtual bool asks_for_token() const = 0;
  /// Returns the name of the named token; empty: it is the port's own token; nothing: the port has no such token.
  /// Compares in a time that does not depend on the port's tokens.
  virtual std::optional<std::string> reader_of(std::string_view token) const = 0;
  /// Returns the names of the named tokens.
  virtual std::vector<std::string> reader_names() const = 0;
  /// Returns the channel of a connection that a client has opened; nullptr: no memory is left.
  virtual std::unique_ptr<ByteChannel> open(const Descriptor& socket) const = 0;
  /// Returns when the first of the port's certificates ends, in Unix seconds; nothing: the port has none.
  virtual std::optional<int64_t> certificate_end() const = 0;
  /// Reads the files again. Error: they stay as they were.
  virtual Status reload() = 0;
};

/// Says how a client reaches protected ports.
///
/// Threads  any.
class HttpCaller {
 public:
  virtual ~HttpCaller() = default;
  virtual bool uses_tls() const = 0;
  /// Returns the token to send; empty: none.
  virtual const std::string& token() const = 0;
  /// Returns whether the user named this address: the token may go there without TLS if it is loopback. Any process can
  /// listen where a table or another process says.
  virtual bool is_named(std::string_view address) const = 0;
  /// Returns when the first of the trusted certificates ends, in Unix seconds; nothing: there are none.
  virtual std::optional<int64_t> certificate_end() const = 0;
  /// Returns the channel to the server that must prove to be `host`; nullptr: no certificate can prove that name.
  virtual std::unique_ptr<ByteChannel> open(const Descriptor& socket, const std::string& host) const = 0;
};

}  // namespace millrace::monitoring
