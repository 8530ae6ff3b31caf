#include "server/status_json.h"

#include <nlohmann/json.hpp>

namespace millrace::server {
namespace {

nlohmann::ordered_json json_of(const JobStatus& job) {
  nlohmann::ordered_json members = nlohmann::ordered_json::array();
  for (const MemberStatus& member : job.members) {
    members.push_back({{"worker", member.worker},
                       {"life", member.life},
                       {"connected", member.connected},
                       {"silent_ms", member.silent_ms},
                       {"steps_applied", member.steps_applied}});
  }
  nlohmann::ordered_json disagreements = nlohmann::ordered_json::array();
  for (const DisagreementStatus& one : job.disagreements) {
    disagreements.push_back(
        {{"worker", one.worker}, {"part", one.part}, {"steps", one.steps}, {"since_ms", one.since_ms}});
  }
  return {{"name", job.name},
          {"job", job.job},
          {"epoch", job.epoch},
          {"started", job.started},
          {"workers", job.workers},
          {"waiting_because", job.waiting_because},
          {"waited_for", job.waited_for},
          {"waiting_ms", job.waiting_ms},
          {"parts", job.parts},
          {"steps_decided", job.steps_decided},
          {"steps_decided_max", job.steps_decided_max},
          {"kept_updates", job.kept_updates},
          {"kept_bytes", job.kept_bytes},
          {"memory_bytes", job.memory_bytes},
          {"memory_bytes_max", job.memory_bytes_max},
          {"disagreements", std::move(disagreements)},
          {"members", std::move(members)}};
}

}  // namespace

std::string status_json(const StatusReport& report) {
  nlohmann::ordered_json jobs = nlohmann::ordered_json::array();
  for (const JobStatus& job : report.jobs) jobs.push_back(json_of(job));
  nlohmann::ordered_json shards = nlohmann::ordered_json::array();
  for (const PeerShardStatus& peer : report.peers) {
    shards.push_back(
        {{"shard", peer.shard}, {"address", peer.address}, {"life", peer.life}, {"said_hello", peer.heard}});
  }
  const nlohmann::ordered_json json = {{"shard", report.shard},
                                       {"shard_count", report.shard_count},
                                       {"life", report.life},
                                       {"shutting_down", report.shutting_down},
                                       {"memory_bytes", report.memory_bytes},
                                       {"memory_bytes_max", report.memory_bytes_max},
                                       {"jobs", std::move(jobs)},
                                       {"other_shards", std::move(shards)}};
  // Names were checked for plain text at admission; replacing instead of throwing costs nothing.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace millrace::server
