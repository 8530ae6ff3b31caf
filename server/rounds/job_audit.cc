#include "server/rounds/job_audit.h"

#include <fmt/format.h>

#include <cmath>

namespace millrace::server {

void JobAudit::decided(const PartRound& part, double imbalance, Actions& actions) {
  const uint32_t number = part.layout().part;
  if (imbalance != 0) {
    updates_ += std::abs(imbalance);
    actions.metrics.push_back({Metric::kAuditImbalance, job_, "", std::abs(imbalance)});
    if (++wrong_updates_[number] == 1) {
      actions.log.push_back(
          {Severity::kError,
           fmt::format("job '{}': audit: mismatch of the update of part {}, step {}: it differs from the "
                       "sum that it carries by {:.9g}: please report it as a bug",
                       job_, number, part.decided(), imbalance)});
    }
  }
  for (const auto& [worker, said] : part.reported_imbalances()) {
    if (said == 0) {
      by_workers_.erase({worker, number});
      continue;
    }
    by_workers_[{worker, number}] = said;
    if (std::exchange(said_[worker], true)) continue;
    actions.log.push_back(
        {Severity::kError,
         fmt::format("job '{}': audit: mismatch of the account of worker {}: in part {}, step {}, {:.9g} "
                     "is {}: please report it as a bug",
                     job_, worker, number, part.decided(), std::abs(said), said > 0 ? "missing" : "too much")});
  }
}

AuditStatus JobAudit::status(const std::vector<PartRound>& parts) const {
  AuditStatus status;
  std::map<uint32_t, AuditStatus::Worker> workers;
  for (const PartRound& part : parts) {
    for (const protocol::SummaryEntry& entry : part.summary().workers) {
      AuditStatus::Worker& worker = workers[entry.worker];
      worker.entered += entry.entered;
      worker.carried += entry.carried;
      worker.lost += entry.lost;
    }
  }
  for (const auto& [where, imbalance] : by_workers_) workers[where.first].imbalance += std::abs(imbalance);
  status.updates_imbalance = updates_;
  for (auto& [number, worker] : workers) {
    worker.worker = number;
    worker.in_residual = worker.entered - worker.carried - worker.lost;
    status.entered += worker.entered;
    status.carried += worker.carried;
    status.lost += worker.lost;
    status.in_residual += worker.in_residual;
    status.workers.push_back(worker);
  }
  return status;
}

}  // namespace millrace::server
