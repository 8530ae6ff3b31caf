#pragma once

#include <optional>
#include <string>
#include <vector>

#include "protocol/address/host_lookup.h"
#include "protocol/transport/transport.h"
#include "worker/doctor/check.h"

namespace millrace::doctor {

/// Checks that this host can listen at an address, which no process holds. Listens there for a moment. A name that is
/// loopback alone is a problem, as it is for the server.
Check check_listen(const std::string& address, const protocol::HostResolver& resolver = protocol::look_up_host);

/// Checks a worker's key files: their text, owner and modes. Each path may be empty: not checked.
///
/// keys  [out] of both files, where both are right.
std::vector<Check> check_key_files(const std::string& secret, const std::string& server_public,
                                   std::optional<protocol::TransportKeys>& keys);

/// Checks the folder or list of keys that a server lets in. A server skips a wrong file of the folder; here each is a
/// warning. Like the server it does not count the cluster's own key in a folder.
///
/// server_public  file of that key. Empty: it is the one whose secret key is in the folder, where there is one alone.
std::vector<Check> check_allowed_keys(const std::string& path, const std::string& server_public);

/// Checks every NUMBER.key of a folder of job keys, of path switch.
std::vector<Check> check_job_keys(const std::string& folder);

}  // namespace millrace::doctor
