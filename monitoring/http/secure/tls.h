#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/base/descriptor.h"
#include "kernels/base/result.h"
#include "monitoring/http/byte_channel.h"

namespace millrace::monitoring {

/// Holds certificates and keys for TLS 1.2 and later, by OpenSSL. Its channels stay valid after it.
///
/// Threads  any; a channel belongs to one thread at a time.
class TlsContext {
 public:
  /// Makes a server with a certificate chain and its key, both PEM. The key has no passphrase.
  ///
  /// Errors  io. invalid_argument: a file of another form; the key is not the certificate's, or of RSA with more than
  ///         4096 bits. invalid_argument, too: all users may read the key or write the certificate. unavailable:
  ///         OpenSSL cannot begin.
  static Result<std::shared_ptr<const TlsContext>> server(const std::string& certificate_file,
                                                          const std::string& key_file);
  /// Makes a client that trusts these certificates alone (PEM): authorities, or the servers' own.
  ///
  /// Errors  io. invalid_argument: the file has no certificate, or all users may write it. unavailable: as server().
  static Result<std::shared_ptr<const TlsContext>> client(const std::string& ca_file);

  /// Returns when the first of its certificates ends, in Unix seconds.
  int64_t certificate_end() const;

  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  /// Returns the channel of a connection. Its first reads and writes shake hands. nullptr: no memory is left, or `host`
  /// is no name.
  ///
  /// host      the name or number that the server must have in its certificate; empty: this side is the server.
  /// REQUIRES  the socket outlives the channel.
  std::unique_ptr<ByteChannel> open(const Descriptor& socket, const std::string& host) const;

 private:
  struct Impl;
  explicit TlsContext(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Returns when the first certificate of a file (PEM) ends, in Unix seconds.
///
/// Errors  as TlsContext::client().
Result<int64_t> read_certificate_end(const std::string& file);

}  // namespace millrace::monitoring
