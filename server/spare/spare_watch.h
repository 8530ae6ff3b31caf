#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/clock.h"
#include "protocol/table/membership_table.h"

namespace millrace::server {

/// Decides which shard number a spare takes over: one whose last start holds no lease.
///
/// - A number is free after kFreeAfter without a lease, if the spare has seen the lease of its last start.
/// - A number that its process leaves, at an operator's request or at its end, is free after the same time.
/// - Where a process starts again at the same address, a lease counts from kOldLeaseAfter on. Before, it may be that of
///   the killed process.
/// - Another one is free after kFreeUnseenAfter. Processes of a cluster may start in any order, and three writes of a
///   slow etcd pass before a new start holds its lease.
/// - A number that never started is not free.
class SpareWatch {
 public:
  static constexpr TimeNs kFreeAfter = 300 * kNsPerMs;
  static constexpr TimeNs kFreeUnseenAfter = 10 * kNsPerS;
  static constexpr TimeNs kOldLeaseAfter = (protocol::kEtcdLeaseSeconds + 1) * kNsPerS;

  struct Vacancy {
    uint32_t shard = 0;
    uint64_t incarnation = 0;  ///< of its last start
  };

  /// Takes the state of the table now; `now` never goes back. Returns the lowest free number.
  std::optional<Vacancy> look(const std::vector<protocol::ClusterView::Shard>& shards, TimeNs now);

 private:
  struct Seen {
    uint64_t incarnation = 0;
    std::string address = {};
    TimeNs counts_from = 0;    ///< a lease is this start's from this time on
    TimeNs without_since = 0;  ///< when it was first seen without a lease
    bool was_held = false;     ///< by this start
    bool is_held = true;
  };
  std::vector<Seen> seen_;
};

}  // namespace millrace::server
