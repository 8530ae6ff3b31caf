#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/base/clock.h"
#include "protocol/table/membership_table.h"

namespace millrace::server {

/// Decides which shard number a spare takes over: one whose last start holds no lease.
///
/// - A number whose lease the spare has seen held is free once it has not been held for kFreeAfter. A process that
///   starts again holds its lease within that time. So is a number that its process leaves at an operator's request.
/// - Another one is free after kFreeUnseenAfter: the processes of a cluster may start in any order.
/// - A number that never started is not free.
class SpareWatch {
 public:
  static constexpr TimeNs kFreeAfter = 300 * kNsPerMs;
  static constexpr TimeNs kFreeUnseenAfter = 10 * kNsPerS;

  struct Vacancy {
    uint32_t shard = 0;
    uint64_t incarnation = 0;  ///< of its last start
  };

  /// Takes the state of the table now; `now` never goes back. Returns the lowest free number.
  std::optional<Vacancy> look(const std::vector<protocol::ClusterView::Shard>& shards, TimeNs now);

 private:
  struct Seen {
    uint64_t incarnation = 0;
    TimeNs without_since = 0;  ///< when it was first seen without a lease
    bool was_held = false;
    bool is_held = true;
  };
  std::vector<Seen> seen_;
};

}  // namespace millrace::server
