#include <algorithm>

#include "server/shard/shard_core.h"

/// A shard's reports about itself to its users.
namespace millrace::server {
namespace {

int64_t age_ms(TimeNs now, TimeNs then) { return (now - then) / kNsPerMs; }

}  // namespace

StatusReport ShardCore::status(TimeNs now) const {
  StatusReport report;
  report.shard = config_.shard;
  report.shard_count = config_.shard_count;
  report.incarnation = config_.incarnation;
  report.address = neighbours_[config_.shard].entry.address;
  report.software = config_.software;
  report.shutting_down = departing_until_ || draining_until_;
  report.leaving = is_leaving_number();
  report.memory_bytes = memory_.used_bytes();
  report.memory_bytes_max = config_.limits.shard_memory_bytes_max;
  for (const auto& [number, job] : jobs_) report.jobs.push_back(job->status(now));
  for (uint32_t shard = 0; shard < config_.shard_count; ++shard) {
    if (shard == config_.shard) continue;
    const Neighbour& neighbour = neighbours_[shard];
    report.peers.push_back({shard, neighbour.entry.address, neighbour.entry.incarnation, neighbour.peer.has_value()});
  }
  for (const Refusal& one : refusals_.all()) {
    report.refusals.push_back({std::string(refused_name(one.of)), one.job, one.number, one.software,
                               std::string(error_code_name(one.code)), one.sentence, one.count, age_ms(now, one.first),
                               age_ms(now, one.last)});
  }
  for (auto one = ended_.rbegin(); one != ended_.rend(); ++one) {
    report.ended.push_back({one->name, one->job, one->how, one->sentence, age_ms(now, one->at)});
  }
  if (table_trouble_ && now - table_trouble_->last < kTroubleOver) {
    const TableTrouble& trouble = *table_trouble_;
    report.table_error = trouble.error.message;
    report.table_failures = {std::string(error_code_name(trouble.error.code)), trouble.count,
                             age_ms(now, trouble.first), age_ms(now, trouble.last)};
  }
  return report;
}

}  // namespace millrace::server
