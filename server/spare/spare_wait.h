#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "kernels/base/clock.h"
#include "kernels/base/log_line.h"
#include "kernels/base/result.h"
#include "protocol/table/membership_table.h"

namespace millrace::server {

/// The number that a spare has taken.
struct TakenNumber {
  uint32_t shard = 0;
  uint32_t shards = 0;  ///< of the cluster
  uint64_t incarnation = 0;
};

/// Calls back from a spare that waits.
struct SpareCallbacks {
  std::function<void()> on_waiting;                       ///< called once the table was read
  std::function<void(TimeNs)> on_look;                    ///< called after each look at the table
  std::function<void(Severity, const std::string&)> say;  ///< writes a line to the log
  std::function<bool()> is_over;                          ///< whether the spare is asked to end
  /// Returns whether this process can serve a number now, in a cluster of `shards`. Called before it takes one, and
  /// again a second after it returned false. Errors end the wait.
  std::function<Result<bool>(uint32_t shards)> may_take = [](uint32_t) { return true; };
};

/// Blocks until a shard is without a process, and takes its number. A table that fails is asked again.
///
/// address, datagrams  of this process.
/// Returns             empty: the wait was ended.
/// Errors              of may_take. Of the table: those after which asking again is in vain, so not timeout, io and
///                     malformed.
Result<std::optional<TakenNumber>> wait_for_number(protocol::MembershipTable& table, const std::string& address,
                                                   const std::string& datagrams, const SpareCallbacks& callbacks);

}  // namespace millrace::server
