#include "worker/cluster_status/cluster_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "kernels/base/plain_text.h"
#include "protocol/address/host_port.h"
#include "protocol/table/etcd_address.h"
#include "protocol/table/job_end.h"
#include "worker/program/table.h"

namespace millrace::cluster_status {

using program::ExitCode;
using program::fail_with;
using protocol::ClusterView;
using protocol::MembershipTable;

namespace {

using Rows = std::vector<std::vector<std::string>>;

/// The longest time that a call to etcd may take: nothing else waits for this process.
constexpr uint32_t kEtcdWaitMs = 5'000;

/// The longest time in which a process with a slow etcd takes its lease again: it reads its note and writes twice.
constexpr TimeNs kLeaseAgainMax = 2 * kNsPerS;
constexpr TimeNs kLeaseKept = kNsPerS / 2;

std::string cell(const std::string& text) { return text.empty() ? "-" : plain_text_of(text, text.size()); }

size_t count_of(const protocol::Membership& membership, protocol::MemberState state) {
  return static_cast<size_t>(std::ranges::count(membership.members, state, &protocol::Member::state));
}

std::string shards_in_table(const ClusterView& cluster) {
  Rows rows = {{"shard", "state", "address", "http", "start", "version"}};
  for (size_t shard = 0; shard < cluster.shards.size(); ++shard) {
    const ClusterView::Shard& one = cluster.shards[shard];
    rows.push_back({fmt::format("{}", shard), std::string(shard_state(one)),
                    cell(std::string(protocol::without_tcp(one.entry.address))), cell(one.process.http),
                    fmt::format("{}", one.entry.incarnation), cell(one.process.software)});
  }
  std::string text = program::aligned_table(rows);
  for (size_t shard = 0; shard < cluster.shards.size(); ++shard) {
    const auto& drain = cluster.shards[shard].drain;
    if (drain && !drain->refusal.empty())
      text += fmt::format("shard {} was asked to drain and refuses: {}\n", shard, cell(drain->refusal));
  }
  return text;
}

program::Failure refused(std::string sentence) { return {ExitCode::kRefused, std::move(sentence)}; }

/// Withdraws a request. Returns false: the process has left its number already, and a spare has it.
Result<bool> withdraw(MembershipTable& table, uint32_t shard, uint64_t incarnation) {
  return table.set_drain(shard, incarnation, std::nullopt);
}

enum class Holder : uint8_t { kProcess, kSpare, kNone };

/// Returns the holder of the number after a request was withdrawn. The process takes its lease again at its next look
/// at the table, unless a spare that saw the number without one is faster. A lease counts that is held for
/// kLeaseKept: in etcd a process may have given it back a moment ago.
Holder holder_after_withdrawal(MembershipTable& table, const DrainOptions& options, uint64_t start) {
  const TimeNs until = options.now() + kLeaseAgainMax;
  std::optional<TimeNs> held_since;
  for (;;) {
    const Result<ClusterView> view = table.read_cluster();
    const TimeNs now = options.now();
    if (view && options.shard < view->shards.size()) {
      const ClusterView::Shard& one = view->shards[options.shard];
      if (one.entry.incarnation != start) return Holder::kSpare;
      held_since = one.held ? held_since.value_or(now) : std::optional<TimeNs>();
      if (held_since && now - *held_since >= kLeaseKept) return Holder::kProcess;
    }
    if (now >= until) return Holder::kNone;
    options.wait();
  }
}

/// Withdraws a request that was not granted in time. Returns the failure, which says where the number is.
program::Failure not_granted(MembershipTable& table, const DrainOptions& options, uint64_t start, ExitCode code) {
  const Result<bool> withdrawn = withdraw(table, options.shard, start);
  if (!withdrawn) {
    return {ExitCode::kUnreachable,
            fmt::format("shard {} was asked to leave its number, and the request could not be withdrawn: {}",
                        options.shard, withdrawn.error().message)};
  }
  switch (*withdrawn ? holder_after_withdrawal(table, options, start) : Holder::kSpare) {
    case Holder::kProcess:
      return {code, fmt::format("shard {} has not left its number in time, and its process keeps it: no spare took the "
                                "number, or the shard still recovers or saves a job (see its /status)",
                                options.shard)};
    case Holder::kSpare:
      return {code, fmt::format("a spare took the number of shard {} meanwhile: look at the cluster's status",
                                options.shard)};
    case Holder::kNone: break;
  }
  return {code,
          fmt::format("the request to shard {} is withdrawn, and its process does not hold its lease again yet: a "
                      "spare may take the number",
                      options.shard)};
}

/// Withdraws a request after an error of the table, and returns the error.
auto given_up(MembershipTable& table, uint32_t shard, uint64_t incarnation, Error error) {
  if (const Result<bool> withdrawn = withdraw(table, shard, incarnation); !withdrawn) {
    error.message += fmt::format("; the request to shard {} may stand, and could not be withdrawn", shard);
  }
  return fail_with(error);
}

/// Checks that the shard can be drained. Returns its process's start.
std::expected<protocol::ShardEntry, program::Failure> drainable(const ClusterView& cluster, uint32_t shard) {
  if (shard >= cluster.shards.size()) {
    return fail_with(ExitCode::kUsage, cluster.shards.empty()
                                           ? std::string("no shard has started with this table yet")
                                           : fmt::format("shard {}: the cluster's shards are numbered 0 to {}", shard,
                                                         cluster.shards.size() - 1));
  }
  const ClusterView::Shard& one = cluster.shards[shard];
  if (!one.has_process()) {
    return fail_with(
        ExitCode::kUnreachable,
        fmt::format("shard {} has no process that could leave its number: start it again, or start a spare "
                    "(millrace-server --spare), which takes it",
                    shard));
  }
  if (cluster.spares.empty()) {
    return std::unexpected(refused(
        fmt::format("no spare waits for the number of shard {}: start one first (millrace-server --spare)", shard)));
  }
  return one.entry;
}

}  // namespace

Result<std::unique_ptr<MembershipTable>> open_existing_table(protocol::TableFlags flags) {
  std::error_code error;
  if (std::string refusal = protocol::refuse_table(flags); !refusal.empty())
    return fail(ErrorCode::kInvalidArgument, std::move(refusal));
  if (!protocol::is_etcd_address(flags.location) && !std::filesystem::is_regular_file(flags.location, error)) {
    return fail(ErrorCode::kIo, flags.location + ": there is no such file; it is the --table of the servers");
  }
  flags.etcd_wait_ms = kEtcdWaitMs;
  return protocol::open_table(flags);
}

Result<ClusterTable> read_cluster_table(MembershipTable& table) {
  Result<ClusterView> cluster = table.read_cluster();
  if (!cluster) return std::unexpected(cluster.error());
  Result<std::vector<protocol::JobRecord>> jobs = table.open_jobs();
  if (!jobs) return std::unexpected(jobs.error());
  return ClusterTable{std::move(*cluster), std::move(*jobs)};
}

std::string_view shard_state(const ClusterView::Shard& shard) {
  switch (shard.state()) {
    case ClusterView::Shard::State::kNeverStarted: return "never started";
    case ClusterView::Shard::State::kDraining: return "draining";
    case ClusterView::Shard::State::kServes: return "ready";
    case ClusterView::Shard::State::kGone: break;
  }
  return "gone";
}

std::string cluster_text(const ClusterTable& table) {
  if (table.cluster.shards.empty()) return "no shard has started with this table yet\n";
  std::string text = shards_in_table(table.cluster);
  Rows spares = {{"spare", "address", "http", "version"}};
  for (const protocol::ProcessNote& spare : table.cluster.spares) {
    spares.push_back(
        {"waits", cell(std::string(protocol::without_tcp(spare.address))), cell(spare.http), cell(spare.software)});
  }
  text += spares.size() > 1 ? "\n" + program::aligned_table(spares) : "\nno spare waits\n";
  Rows jobs = {{"job", "number", "epoch", "state", "synced", "joining"}};
  for (const protocol::JobRecord& job : table.jobs) {
    jobs.push_back({cell(job.name), fmt::format("{}", job.membership.job), fmt::format("{}", job.membership.epoch),
                    job.membership.started ? "running" : "waiting to start",
                    fmt::format("{}", count_of(job.membership, protocol::MemberState::kSynced)),
                    fmt::format("{}", count_of(job.membership, protocol::MemberState::kJoining))});
  }
  return text + (jobs.size() > 1 ? "\n" + program::aligned_table(jobs) : "\nno job is open\n");
}

nlohmann::json cluster_json(const ClusterTable& table) {
  nlohmann::json shards = nlohmann::json::array();
  for (size_t shard = 0; shard < table.cluster.shards.size(); ++shard) {
    const ClusterView::Shard& one = table.cluster.shards[shard];
    shards.push_back({{"shard", shard},
                      {"state", shard_state(one)},
                      {"lease", one.held},
                      {"address", one.entry.address},
                      {"http", one.process.http},
                      {"incarnation", one.entry.incarnation},
                      {"software", one.process.software},
                      {"drain_refused", one.drain ? one.drain->refusal : ""}});
  }
  nlohmann::json spares = nlohmann::json::array();
  for (const protocol::ProcessNote& spare : table.cluster.spares)
    spares.push_back({{"address", spare.address}, {"http", spare.http}, {"software", spare.software}});
  nlohmann::json jobs = nlohmann::json::array();
  for (const protocol::JobRecord& job : table.jobs) {
    jobs.push_back({{"name", job.name},
                    {"job", job.membership.job},
                    {"epoch", job.membership.epoch},
                    {"started", job.membership.started},
                    {"synced", count_of(job.membership, protocol::MemberState::kSynced)},
                    {"joining", count_of(job.membership, protocol::MemberState::kJoining)}});
  }
  return {{"shards", shards}, {"spares", spares}, {"jobs", jobs}};
}

program::Outcome outcome_of(const ClusterTable& table) {
  std::vector<size_t> gone;
  for (size_t shard = 0; shard < table.cluster.shards.size(); ++shard) {
    if (!table.cluster.shards[shard].has_process()) gone.push_back(shard);
  }
  if (table.cluster.shards.empty())
    return fail_with(ExitCode::kUnreachable, "no shard has started with this table yet");
  if (gone.empty()) return {};
  return fail_with(ExitCode::kUnreachable, fmt::format("{} {} {} no process", gone.size() == 1 ? "shard" : "shards",
                                                       fmt::join(gone, ", "), gone.size() == 1 ? "has" : "have"));
}

std::expected<Drained, program::Failure> drain_shard(MembershipTable& table, const DrainOptions& options) {
  const TimeNs until = options.now() + options.timeout;
  const Result<ClusterView> before = table.read_cluster();
  if (!before) return fail_with(before.error());
  const auto from = drainable(*before, options.shard);
  if (!from) return std::unexpected(from.error());
  const uint64_t start = from->incarnation;
  const Result<bool> asked = table.set_drain(options.shard, start, protocol::DrainNote{start, {}});
  if (!asked) return given_up(table, options.shard, start, asked.error());
  while (*asked) {
    const Result<ClusterView> view = table.read_cluster();
    if (!view && view.error().code != ErrorCode::kTimeout) {
      return given_up(table, options.shard, start, view.error());
    }
    if (view && options.shard < view->shards.size()) {
      const ClusterView::Shard& one = view->shards[options.shard];
      if (one.entry.incarnation != start && one.held) return Drained{*from, one.entry};
      if (one.entry.incarnation == start && one.drain && !one.drain->refusal.empty()) {
        (void)withdraw(table, options.shard, start);
        return std::unexpected(refused(cell(one.drain->refusal)));
      }
    }
    if (options.is_interrupted()) return std::unexpected(not_granted(table, options, start, ExitCode::kInterrupted));
    if (options.now() >= until) return std::unexpected(not_granted(table, options, start, ExitCode::kUnreachable));
    options.wait();
  }
  return std::unexpected(refused(
      fmt::format("another process has started as shard {} meanwhile: look at the cluster's status", options.shard)));
}

program::Outcome end_job(MembershipTable& table, std::string_view job, std::string_view reason) {
  const Result<protocol::JobEnd> end = protocol::end_job(table, job, {ErrorCode::kUnavailable, std::string(reason)});
  if (!end) return fail_with(end.error());
  if (*end == protocol::JobEnd::kEnded) return {};
  if (*end == protocol::JobEnd::kNotOpen)
    return fail_with(ExitCode::kUsage, fmt::format("no job '{}' is open", cell(std::string(job))));
  return std::unexpected(
      refused(fmt::format("the membership of job '{}' changes all the time: try again", cell(std::string(job)))));
}

program::Outcome remove_cluster(MembershipTable& table, OpenJobs open_jobs) {
  const Result<std::vector<protocol::JobRecord>> jobs = table.open_jobs();
  if (!jobs) return fail_with(jobs.error());
  if (!jobs->empty() && open_jobs == OpenJobs::kRefuse) {
    return std::unexpected(refused(fmt::format("{} {} open, the first is '{}'; --force forgets them", jobs->size(),
                                               jobs->size() == 1 ? "job is" : "jobs are", cell(jobs->front().name))));
  }
  const Result<bool> removed = table.remove_cluster();
  if (!removed) return fail_with(removed.error());
  if (*removed) return {};
  return std::unexpected(
      refused("processes of the cluster hold leases: end its shards and spares first (millrace cluster status)"));
}

}  // namespace millrace::cluster_status
