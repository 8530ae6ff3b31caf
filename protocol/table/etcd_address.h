#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/result.h"

namespace millrace::protocol {

/// Says where etcd is and how to reach it.
struct EtcdOptions {
  std::vector<std::string> endpoints;  ///< "host:port" of the members' client ports; tried in turn
  std::string prefix = "/millrace";    ///< of all keys
  std::string ca_file;                 ///< PEM; TLS where it is set
  std::string cert_file;               ///< PEM, of this client; empty: none
  std::string key_file;                ///< PEM, of the certificate
  std::string user;                    ///< empty: etcd has no users
  std::string password;
  /// Longest time that a call may take; the caller waits for it. Opening and start_shard() may take kTableOpenWaitMs.
  uint32_t wait_ms = 250;
};

/// Returns whether the text names etcd, and not a file: it begins with "etcd://".
bool is_etcd_address(std::string_view text);

/// Reads "etcd://HOST:PORT,HOST:PORT[/PREFIX]".
///
/// Errors   invalid_argument: no such address; two endpoints are equal; a wrong prefix. It has letters, digits and
///          "._-/", no empty segment, and 128 bytes at most.
Result<EtcdOptions> parse_etcd_address(std::string_view text);

/// Reads the password in the first line of a file.
///
/// Errors   io: it cannot be read. invalid_argument: others than owner and group may read it; the line is empty or
///          longer than 1,024 bytes.
Result<std::string> read_password_file(const std::string& path);

}  // namespace millrace::protocol
