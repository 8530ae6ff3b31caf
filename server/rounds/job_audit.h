#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "monitoring/status/shard_status.h"
#include "server/base/actions.h"
#include "server/part/part_round.h"

namespace millrace::server {

/// Holds the findings of a job's audit at this shard. They are updates that are not the sum of their carried values,
/// and workers that report an imbalance. Logged once for each part, and each worker; sums are in the status as long as
/// the job is open.
class JobAudit {
 public:
  explicit JobAudit(std::string job) : job_(std::move(job)) {}

  /// Adds a decided step, before it is retained. imbalance: of its update.
  void decided(const PartRound& part, double imbalance, Actions& actions);
  AuditStatus status(const std::vector<PartRound>& parts) const;

 private:
  std::string job_;
  double updates_ = 0;                                          ///< sum of |imbalance|
  std::map<uint32_t, uint64_t> wrong_updates_;                  ///< by part: how many
  std::map<std::pair<uint32_t, uint32_t>, double> by_workers_;  ///< (worker, part): as last reported, where it is not 0
  std::map<uint32_t, bool> said_;                               ///< by worker
};

}  // namespace millrace::server
