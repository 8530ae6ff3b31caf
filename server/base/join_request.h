#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "kernels/base/clock.h"
#include "kernels/base/result.h"
#include "protocol/messages/peer_id.h"

namespace millrace::server {

/// A Hello's request to take part in a job, as rights and quotas judge it.
struct JoinRequest {
  std::string job = {};
  uint32_t worker = 0;
  bool creates = false;  ///< no key has opened a job of that name
  uint64_t entries = 0;  ///< of all tensors
};

/// Holds the rights of the keys of connections. Empty functions: every right.
struct Rights {
  /// Errors  unauthenticated: which right the key lacks; limit_exceeded: which quota.
  std::function<Status(const protocol::PeerId&, const JoinRequest&)> judge = {};
  /// Judges whether a Hello may read the table now, and counts it. Errors  unavailable: its sender has sent too many.
  std::function<Status(const protocol::PeerId&, TimeNs now)> admit_to_table = {};
  /// Counts that such a Hello was refused.
  std::function<void(const protocol::PeerId&, TimeNs now)> refused_by_table = {};
  /// Returns the name of the connection's key; empty: it has none here.
  std::function<std::string(const protocol::PeerId&)> name_of = {};
  /// Judges whether this shard may open another job of the key that created it.
  ///
  /// open    the number of its jobs that are open here.
  /// Errors  limit_exceeded: its quota.
  std::function<Status(const std::string& key_name, const std::string& job, uint32_t open)> judge_opening = {};
  /// Returns the memory of a job that this key created.
  std::function<uint64_t(const std::string& key_name, const std::string& job)> job_memory_bytes_max = {};
};

}  // namespace millrace::server
