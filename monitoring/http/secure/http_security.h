#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/result.h"
#include "monitoring/http/http_protection.h"

namespace millrace::monitoring {

/// The options --http-tls, --http-token-file, --http-ca and --http-insecure; empty texts: none.
struct HttpSecurityOptions {
  std::string tls = {};         ///< "CERT,KEY": a certificate chain and its key (PEM)
  std::string token_file = {};  ///< the token in its first line; HttpTokens has the others
  std::string ca_file = {};     ///< of a client: certificates that it trusts (PEM)
  bool insecure = false;        ///< the port may be open to other machines without TLS or without a token
  bool operator==(const HttpSecurityOptions&) const = default;
};

/// Selects the names of the options in sentences.
enum class HttpOptionNames : uint8_t {
  kFlags,   ///< "--http-tls"
  kFields,  ///< "http_tls", of WorkerConfig
};

/// Says which lines of a port's token file are tokens.
enum class HttpTokens : uint8_t {
  kFirstLine,  ///< the first one alone; further lines are not read
  kNamed,      ///< the first one, and NAME TOKEN in further ones
};

/// Returns why a port may not listen as these options say; empty: it may. Other machines may reach a port with TLS
/// and a token, or with `insecure`. A token without TLS is for loopback alone.
///
/// http  "HOST:PORT"; empty: there is no port.
std::string refuse_http(const std::string& http, const HttpSecurityOptions& options,
                        HttpOptionNames names = HttpOptionNames::kFlags);

/// Reads the files of a port.
///
/// Returns  nullptr: the options ask for neither TLS nor a token.
/// Errors   invalid_argument: refuse_http(); a file of another form, the key is not the certificate's, or all users may
///          read a secret. io. The sentence names the option and the file, and no part of a secret.
Result<std::shared_ptr<HttpProtection>> open_http_protection(const std::string& http,
                                                             const HttpSecurityOptions& options,
                                                             HttpOptionNames names = HttpOptionNames::kFlags,
                                                             HttpTokens tokens = HttpTokens::kFirstLine);

/// Reads the files of a client: token_file and ca_file.
///
/// named    addresses that the user gave: without ca_file the token goes to those of loopback alone.
/// Returns and errors  as open_http_protection().
Result<std::shared_ptr<const HttpCaller>> open_http_caller(const HttpSecurityOptions& options,
                                                           std::vector<std::string> named = {});

}  // namespace millrace::monitoring
