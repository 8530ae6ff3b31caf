#include "server/connections/descriptor_room.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "monitoring/http/http_port.h"
#include "monitoring/open_files.h"

namespace millrace::server {
namespace {

/// The table's journals, saves of stores, lookups of names.
constexpr uint64_t kForFiles = 16;
/// A connection of ZeroMQ's that is made again has two sockets for a moment, each with a monitor and their wake-ups.
constexpr uint64_t kForEachShard = 8;
/// Connections of workers that still have to receive the reason of their refusal.
constexpr uint64_t kForRefused = 32;
/// Counting takes time that grows with the count.
constexpr TimeNs kCountFilesEvery = 50 * kNsPerMs;

uint64_t minus(uint64_t from, uint64_t what) { return from > what ? from - what : 0; }

}  // namespace

DescriptorRoom::DescriptorRoom(Options options)
    : options_(std::move(options)),
      kept_(kForFiles + monitoring::HttpPort::kConnectionsMax + kForEachShard * (options_.shards - 1)) {}

uint64_t DescriptorRoom::accept_below() const { return minus(options_.limit, kept_); }

uint64_t DescriptorRoom::may_admit_until() const { return minus(options_.limit, kept_ + kForRefused); }

Status DescriptorRoom::judge_start() const {
  const std::optional<uint64_t> used = options_.count();
  if (!used || *used + 1 <= may_admit_until()) return {};
  return fail(
      ErrorCode::kLimitExceeded,
      fmt::format("this process may open {} files, and needs {} to serve one worker ({} are open, {} more are kept "
                  "for HTTP, the other shards, the table and refusals); {}",
                  options_.limit, *used + 1 + kept_ + kForRefused, *used, kept_ + kForRefused,
                  monitoring::kRaiseOpenFiles));
}

std::string DescriptorRoom::warning(const Limits& limits) const {
  const uint64_t used = options_.count().value_or(0);
  const uint64_t fit = minus(may_admit_until(), used);
  const uint64_t allowed = uint64_t{limits.jobs_max} * limits.workers_max;
  if (fit >= allowed) return {};
  return fmt::format(
      "this process may open {} files: enough for {} workers at a time, while --jobs-max {} and "
      "--workers-max {} allow {}; {}, or lower those",
      options_.limit, fit, limits.jobs_max, limits.workers_max, allowed, monitoring::kRaiseOpenFiles);
}

Status DescriptorRoom::judge_worker(TimeNs now) {
  const uint64_t accepted = options_.accepted();
  const bool may_be_over = used_ && *used_ <= may_admit_until() && *used_ + (accepted - accepted_) > may_admit_until();
  if (!used_ || may_be_over || now - counted_at_ >= kCountFilesEvery) {
    used_ = options_.count();
    accepted_ = accepted;
    counted_at_ = now;
  }
  if (!used_) return {};
  // The worker's own connection is among them.
  if (*used_ <= may_admit_until()) return {};
  return fail(
      ErrorCode::kLimitExceeded,
      fmt::format("this shard may open {} files, {} are open, and it keeps {} for itself: it takes no more workers; {}",
                  options_.limit, *used_, kept_ + kForRefused, monitoring::kRaiseOpenFiles));
}

}  // namespace millrace::server
