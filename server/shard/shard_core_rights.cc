#include <algorithm>
#include <utility>

#include "server/shard/shard_core.h"

/// Rights and quotas of keys: the questions of admission, and the end of sessions whose key was taken away.
namespace millrace::server {

Status ShardCore::judge_rights(const protocol::PeerId& from, const protocol::Header& header,
                               const protocol::Hello& hello, JobKnown known) {
  if (!config_.rights.judge) return {};
  JoinRequest request{.job = hello.spec.name, .worker = header.worker, .creates = known == JobKnown::kNo};
  for (const protocol::TensorSpec& tensor : hello.spec.tensors) request.entries += tensor.dimension;
  return config_.rights.judge(from, request);
}

std::string ShardCore::name_of_key(const protocol::PeerId& peer) const {
  return config_.rights.name_of ? config_.rights.name_of(peer) : std::string();
}

/// Judges whether this shard may open a job that the key created.
Status ShardCore::judge_opening(const std::string& key_name, const std::string& job) const {
  if (!config_.rights.judge_opening) return {};
  const auto open = std::ranges::count_if(opened_, [&](const auto& entry) { return entry.second.by == key_name; });
  return config_.rights.judge_opening(key_name, job, static_cast<uint32_t>(open));
}

uint64_t ShardCore::job_bytes_max_of(const std::string& key_name, const std::string& job) const {
  const uint64_t most = config_.limits.job_memory_bytes_max;
  const auto& quota = config_.rights.job_memory_bytes_max;
  return quota ? std::min(most, quota(key_name, job)) : most;
}

void ShardCore::end_sessions(const std::function<bool(const protocol::PeerId&)>& is_over, const Error& why, TimeNs now,
                             Actions& actions) {
  note_time(now);
  if (stopped_) return;
  for (auto at = sessions_.begin(); at != sessions_.end();) {
    const auto one = at++;
    if (!is_over(one->first)) continue;
    protocol::Header header;
    header.worker = one->second.worker;
    name_by_session(one->first, header);
    protocol::Refuse refusal;
    refusal.code = why.code;
    refusal.sentence = why.message;
    reply(one->first, header, std::move(refusal), actions);
    if (Job* job = find_job(one->second.job)) job->members().disconnect(one->second.worker);
    sessions_.erase(one);
  }
}

}  // namespace millrace::server
