#include "server/status/status_json.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace millrace::server {
namespace {

using Json = nlohmann::ordered_json;

template <typename T, typename Write>
Json list_of(const std::vector<T>& items, const Write& write) {
  Json list = Json::array();
  for (const T& item : items) list.push_back(write(item));
  return list;
}

Json json_of_member(const MemberStatus& member) {
  return {{"worker", member.worker},
          {"incarnation", member.incarnation},
          {"joining", member.joining},
          {"connected", member.connected},
          {"finishing", member.finishing},
          {"silent_ms", member.silent_ms},
          {"steps_applied", member.steps_applied},
          {"steps_behind", member.steps_behind}};
}

Json json_of_disagreement(const DisagreementStatus& one) {
  return {{"worker", one.worker}, {"part", one.part}, {"steps", one.steps}, {"since_ms", one.since_ms}};
}

Json json_of_counts(const std::vector<NamedCount>& counts) {
  Json json = Json::object();
  for (const NamedCount& one : counts) json[one.name] = one.count;
  return json;
}

Json json_of_path(const SwitchPathStatus& path) {
  Json json = {{"decided_by", path.decided_by}, {"switch", path.switch_address}, {"datagrams", path.datagrams},
               {"because", path.because},       {"since_ms", path.since_ms},     {"changes", path.changes}};
  json["said"] = list_of(path.reports, [](const SwitchPathStatus::SwitchReport& word) -> Json {
    return {{"worker", word.worker}, {"says", word.says}};
  });
  json["switch_job"] = path.switch_job;
  json["moved_ms"] = path.moved_ms;
  json["waits"] = list_of(path.waits, [](const SwitchPathStatus::MemberWait& one) -> Json {
    return {{"worker", one.worker}, {"waits_for", one.waits_for}, {"since_ms", one.since_ms}, {"steps", one.steps}};
  });
  if (const auto& at = path.aggregator) {
    json["aggregator"] = {{"phase", at->phase},
                          {"epoch", at->epoch},
                          {"slots", at->slots},
                          {"turns", at->closed},
                          {"datagrams", at->received},
                          {"resent", at->resent},
                          {"rejected", at->rejected},
                          {"memory_bytes", at->memory_bytes},
                          {"bytes", at->received_bytes},
                          {"racks", at->racks},
                          {"groups", at->groups},
                          {"waiting_for", at->waiting_for},
                          {"blocked_on", at->waited_for},
                          {"waiting_ms", at->waiting_ms},
                          {"waiting_because", at->waiting_because}};
    json["aggregator"]["events"] = json_of_counts(at->events);
  }
  return json;
}

/// Replaces infinity, which JSON does not have; a null would read as no value.
double finite(double imbalance) { return std::isfinite(imbalance) ? imbalance : std::numeric_limits<double>::max(); }

Json json_of_audited(const AuditStatus::Worker& one) {
  return {{"worker", one.worker}, {"entered", one.entered},  {"carried", one.carried},
          {"lost", one.lost},     {"held", one.in_residual}, {"imbalance", finite(one.imbalance)}};
}

Json json_of_job(const JobStatus& job) {
  Json json = {{"name", job.name},
               {"job", job.job},
               {"epoch", job.epoch},
               {"started", job.started},
               {"recovering", job.recovering},
               {"log_branch", job.branch},
               {"mode", job.mode},
               {"workers", job.workers},
               {"waiting_because", job.waiting_because},
               {"waiting_for", wait_name(job.waiting_for)},
               {"blocked_on", job.waited_for},
               {"waiting_shards", job.waiting_shards},
               {"waiting_ms", job.waiting_ms},
               {"decided_in_ms", job.decided_in_ms},
               {"moved_ms", job.moved_ms},
               {"parts", job.parts},
               {"steps_decided", job.steps_decided},
               {"steps_decided_max", job.steps_decided_max},
               {"quorum", job.quorum},
               {"deadline_ms", job.deadline_ms},
               {"heartbeat_ms", job.heartbeat_ms},
               {"dead_after_ms", job.dead_after_ms},
               {"kept_updates", job.retained_updates},
               {"kept_bytes", job.retained_bytes},
               {"memory_bytes", job.memory_bytes},
               {"memory_bytes_max", job.memory_bytes_max}};
  if (const auto& at = job.waiting_step) {
    json["waiting_step"] = {
        {"bucket", at->bucket}, {"part", at->part}, {"step", at->step}, {"contributions", at->here}};
  }
  if (job.store) {
    json["store"] = {{"optimizer", job.store->optimizer},
                     {"ready", job.store->ready},
                     {"bytes", job.store->bytes},
                     {"steps_applied", job.store->steps_applied},
                     {"survives_restart", job.store->survives_restart},
                     {"pulls_waiting", job.store->pulls_waiting},
                     {"saves_written", job.store->saves_written},
                     {"saves_failed", job.store->saves_failed},
                     {"saved_steps", job.store->saved_steps},
                     {"last_failure", job.store->last_failure}};
  }
  if (job.switch_path) json["switch_path"] = json_of_path(*job.switch_path);
  if (job.audit) {
    json["audit"] = {{"entered", job.audit->entered},
                     {"carried", job.audit->carried},
                     {"lost", job.audit->lost},
                     {"held", job.audit->in_residual},
                     {"imbalance", finite(job.audit->updates_imbalance + job.audit->workers_imbalance)},
                     {"updates_imbalance", finite(job.audit->updates_imbalance)},
                     {"workers", list_of(job.audit->workers, json_of_audited)}};
  }
  if (!job.codecs.empty()) {
    json["codecs_down"] = list_of(job.codecs, [](const CodecStatus& one) -> Json {
      return {{"part", one.part}, {"tensor", one.tensor}, {"codec", one.why}, {"changes", one.changes}};
    });
  }
  json["disagreements"] = list_of(job.disagreements, json_of_disagreement);
  json["members"] = list_of(job.members, json_of_member);
  return json;
}

Json json_of_refusal(const RefusalStatus& one) {
  return {{"refused", one.of},        {"number", one.number},     {"job", one.job},
          {"code", one.code},         {"sentence", one.sentence}, {"count", one.count},
          {"first_ms", one.first_ms}, {"last_ms", one.last_ms},   {"software", one.software}};
}

}  // namespace

std::string status_json(const StatusReport& report) {
  Json json = {{"shard", report.shard},
               {"shard_count", report.shard_count},
               {"incarnation", report.incarnation},
               {"address", report.address},
               {"software", report.software},
               {"table", report.table},
               {"shutting_down", report.shutting_down},
               {"memory_bytes", report.memory_bytes},
               {"memory_bytes_max", report.memory_bytes_max}};
  if (const auto& trouble = report.table_trouble) {
    json["table_error"] = trouble->sentence;
    json["table_failures"] = {{"code", trouble->code},
                              {"count", trouble->count},
                              {"first_ms", trouble->first_ms},
                              {"last_ms", trouble->last_ms}};
  }
  if (!report.datagrams_dropped.empty()) json["datagrams_dropped"] = json_of_counts(report.datagrams_dropped);
  json["jobs"] = list_of(report.jobs, json_of_job);
  json["other_shards"] = list_of(report.peers, [](const PeerShardStatus& peer) -> Json {
    return {{"shard", peer.shard},
            {"address", peer.address},
            {"incarnation", peer.incarnation},
            {"said_hello", peer.heard}};
  });
  json["refusals"] = list_of(report.refusals, json_of_refusal);
  json["ended_jobs"] = list_of(report.ended, [](const EndedJobStatus& one) -> Json {
    return {
        {"name", one.name}, {"job", one.job}, {"how", one.how}, {"sentence", one.sentence}, {"since_ms", one.since_ms}};
  });
  // Names were checked for plain text at admission; replacing instead of throwing costs nothing.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace millrace::server
