#include "worker/cluster_status/cluster_snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "protocol/address/host_lookup.h"
#include "protocol/address/host_port.h"
#include "worker/cluster_status/diagnosis.h"

namespace millrace::cluster_status {
namespace {

/// Of the second job of SVRG's workers; worker/training/snapshot_job.cc has it.
constexpr const char* kSnapshotJobSuffix = ".snapshots";

/// A refusal of another shard is repeated every second while its reason lasts.
constexpr double kShardRefusalLastsS = 5;

void take_answers(const std::vector<ShardAnswer>& answers, ClusterSnapshot& picture) {
  for (const ShardAnswer& answer : answers) {
    const auto [known, first] = picture.shards.try_emplace(answer.said.shard, answer.said);
    if (first) {
      picture.asked[answer.said.shard] = answer.http;
    } else if (known->second.incarnation != answer.said.incarnation || known->second.address != answer.said.address) {
      picture.troubles.push_back(fmt::format(
          "{} and {} are two processes that both say to be shard {}: they are of two clusters, or one is left over",
          picture.asked[answer.said.shard], answer.http, answer.said.shard));
    }
  }
}

void compare_shards(ClusterSnapshot& picture) {
  const auto& [first_number, first] = *picture.shards.begin();
  for (const auto& [number, shard] : picture.shards) {
    if (shard.shard_count != first.shard_count) {
      picture.troubles.push_back(
          fmt::format("shard {} is one of {}, shard {} one of {}: start all with the same --shards", number,
                      shard.shard_count, first_number, first.shard_count));
    }
    if (shard.table != first.table) {
      picture.troubles.push_back(
          fmt::format("shards {} and {} use different membership tables, {} and {}: start all with "
                      "the same --table",
                      first_number, number, first.table, shard.table));
    }
    if (!shard.table_error.empty()) {
      picture.troubles.push_back(
          fmt::format("shard {} has had trouble with the membership table for {:.1f} s: {}", number,
                      shard.table_failures ? seconds_of(shard.table_failures->first_ms) : 0, shard.table_error));
    }
    for (const RefusalStatus& one : shard.refusals) {
      const bool of_shards = one.of == "shard" || one.of == "by_shard";
      if (!of_shards || seconds_of(one.last_ms) > kShardRefusalLastsS) continue;
      picture.troubles.push_back(
          one.of == "shard" ? fmt::format("shard {} refuses shard {}: {}", number, one.number, one.sentence)
                            : fmt::format("shard {} is refused by shard {}: {}", number, one.number, one.sentence));
    }
    if (shard.shutting_down) {
      picture.troubles.push_back(fmt::format("shard {} is shutting down{}", number,
                                             shard.leaving ? ", and leaves its number to a spare" : ""));
    }
  }
}

void find_missing(const std::map<uint32_t, std::string>& why_missing, ClusterSnapshot& picture) {
  for (const auto& [shard, why] : why_missing) {
    if (!picture.shards.contains(shard)) picture.missing[shard].why = why;
  }
  for (const auto& [number, shard] : picture.shards) {
    for (uint32_t other = 0; other < shard.shard_count; ++other) {
      if (!picture.shards.contains(other)) picture.missing.try_emplace(other);
    }
    for (const PeerShardStatus& peer : shard.peers) {
      if (const auto at = picture.missing.find(peer.shard); at != picture.missing.end())
        at->second.address = peer.address;
    }
  }
  for (auto& [shard, missing] : picture.missing) {
    if (!missing.why.empty()) continue;
    missing.why = !picture.shards.empty() && missing.address.empty() ? "it has not started with this membership table"
                                                                     : "it was not asked";
  }
}

void add_members(const ClusterSnapshot& picture, JobPicture& job) {
  std::map<uint32_t, MemberSeen> members;
  for (const JobAt& at : job.at) {
    for (const MemberStatus& said : at.said.members) {
      const auto [seen, first] = members.try_emplace(said.worker);
      MemberSeen& member = seen->second;
      if (said.incarnation < member.incarnation) continue;
      if (first || said.incarnation > member.incarnation) {
        member = MemberSeen();
        member.worker = said.worker;
        member.incarnation = said.incarnation;
        member.silent_s = seconds_of(said.silent_ms);
      }
      member.silent_s = std::min(member.silent_s, seconds_of(said.silent_ms));
      member.steps_behind = std::max(member.steps_behind, said.steps_behind);
      member.finishing |= said.finishing;
      if (said.connected) member.hello_sent_to.push_back(at.shard);
    }
  }
  for (auto& [worker, member] : members) {
    for (const auto& [shard, said] : picture.shards) {
      if (std::ranges::find(member.hello_sent_to, shard) == member.hello_sent_to.end())
        member.without_hello.push_back(shard);
    }
    job.members.push_back(member);
  }
  const uint32_t expected = job.started ? 0 : job.at.front().said.workers;
  for (uint32_t worker = 0; worker < expected; ++worker) {
    if (!members.contains(worker)) job.never_here.push_back(worker);
  }
}

/// Returns whether a switch that listens at `own` is the one that a job names. Where it listens at all of its host's
/// addresses, or the job gives its host by name, the port alone is compared.
bool is_switch_at(const std::string& own, const std::string& named) {
  if (own == named) return true;
  const auto listens = protocol::parse_host_port(own);
  const auto wanted = protocol::parse_host_port(named);
  if (!listens || !wanted || listens->port != wanted->port) return false;
  return listens->host == wanted->host || protocol::is_every_host(listens->host) ||
         !protocol::is_numeric_host(wanted->host);
}

/// Returns the reason that blocks the job, as its switch reports it. Two switches may have jobs of one number, and a
/// rack has the job too.
std::string reports_of_switch(const SwitchPathStatus& path, const std::vector<SwitchJobStatus>& switch_jobs) {
  const auto is_it = [&](const SwitchJobStatus& one) {
    return one.job == path.switch_job && one.role == "reduce" && is_switch_at(one.address, path.switch_address);
  };
  const auto found = std::ranges::find_if(switch_jobs, is_it);
  return found == switch_jobs.end() ? "" : found->waiting_because;
}

template <typename Says>
std::vector<uint32_t> workers_where(const SwitchPathStatus& path, const Says& is_so) {
  std::vector<uint32_t> workers;
  for (const SwitchPathStatus::SwitchReport& one : path.reports) {
    if (is_so(one.says)) workers.push_back(one.worker);
  }
  return workers;
}

}  // namespace

std::string_view state_name(JobState state) {
  switch (state) {
    case JobState::kRunning: return "running";
    case JobState::kStarting: return "waiting to start";
    case JobState::kStalled: return "stalled";
    case JobState::kEnding: return "ending";
  }
  return "";
}

const SwitchPathStatus* path_of(const JobPicture& job) {
  for (const JobAt& at : job.at) {
    if (at.shard == 0 && at.said.switch_path) return &*at.said.switch_path;
  }
  return nullptr;
}

std::vector<uint32_t> silent_to(const SwitchPathStatus& path) {
  return workers_where(path, [](const std::string& says) { return says == "silent"; });
}

std::vector<uint32_t> answered_by(const SwitchPathStatus& path) {
  return workers_where(path, [](const std::string& says) { return says != "silent"; });
}

std::string shard_waits(const SwitchPathStatus& path) {
  return path.aggregator ? path.aggregator->waiting_because : "";
}

double mismatch_of(const AuditStatus& audit) { return std::abs(audit.imbalance()); }

std::string ClusterSnapshot::shard_text(uint32_t shard) const {
  std::string address;
  if (const auto at = shards.find(shard); at != shards.end()) address = at->second.address;
  if (const auto at = missing.find(shard); at != missing.end()) address = at->second.address;
  return address.empty() ? fmt::format("shard {}", shard) : fmt::format("shard {} ({})", shard, address);
}

ClusterSnapshot picture_of(const std::vector<ShardAnswer>& answers, const std::map<uint32_t, std::string>& why_missing,
                           double still_after_s, const std::vector<SwitchJobStatus>& switch_jobs) {
  ClusterSnapshot picture;
  take_answers(answers, picture);
  find_missing(why_missing, picture);
  if (!picture.shards.empty()) compare_shards(picture);
  std::map<std::string, JobPicture> jobs;
  for (const auto& [number, shard] : picture.shards) {
    for (const JobStatus& said : shard.jobs) {
      JobPicture& job = jobs[said.name];
      job.name = said.name;
      job.started |= said.started;
      job.at.push_back({number, said});
    }
  }
  for (const auto& [number, shard] : picture.shards) {
    for (auto& [name, job] : jobs) {
      if (std::ranges::find(job.at, number, &JobAt::shard) == job.at.end()) job.not_open.push_back(number);
    }
    for (const RefusalStatus& said : shard.refusals) {
      if (said.of == "shard" || said.of == "by_shard") continue;  // among the troubles, while they last
      const auto job = jobs.find(said.job);
      (job == jobs.end() ? picture.refusals : job->second.refusals).push_back({number, said});
    }
  }
  const auto latest = [](const RefusalAt& one) { return one.said.last_ms; };
  std::ranges::stable_sort(picture.refusals, {}, latest);
  for (const auto& [name, job] : jobs) {
    const auto snapshots = jobs.find(name + kSnapshotJobSuffix);
    if (snapshots != jobs.end()) snapshots->second.is_snapshot_job = true;
  }
  for (auto& [name, job] : jobs) {
    std::ranges::stable_sort(job.refusals, {}, latest);
    add_members(picture, job);
    if (const SwitchPathStatus* path = path_of(job)) job.switch_because = reports_of_switch(*path, switch_jobs);
    diagnose(picture, still_after_s, job);
    picture.jobs.push_back(std::move(job));
  }
  return picture;
}

}  // namespace millrace::cluster_status
