#include "worker/cluster_status/parse_status.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "protocol/base/text.h"

namespace millrace::cluster_status {
namespace {

using Json = nlohmann::json;

constexpr size_t kTextBytesMax = 2'048;

const Json& at(const Json& object, const char* key) {
  static const Json kNone;
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() ? *found : kNone;
}

template <typename T = uint64_t>
T number(const Json& object, const char* key) {
  const Json& value = at(object, key);
  if (!value.is_number_integer() || (!value.is_number_unsigned() && value.get<int64_t>() < 0)) return 0;
  return static_cast<T>(std::min<uint64_t>(value.get<uint64_t>(), std::numeric_limits<T>::max()));
}

/// Of a field in milliseconds; never negative.
double seconds(const Json& object, const char* key) {
  const Json& value = at(object, key);
  return value.is_number() ? std::max(0.0, value.get<double>()) / 1e3 : 0;
}

bool flag(const Json& object, const char* key) {
  const Json& value = at(object, key);
  return value.is_boolean() && value.get<bool>();
}

std::string text(const Json& object, const char* key) {
  const Json& value = at(object, key);
  return value.is_string() ? plain_text_of(value.get_ref<const std::string&>(), kTextBytesMax) : "";
}

template <typename T, typename Read>
std::vector<T> list(const Json& object, const char* key, const Read& read) {
  std::vector<T> items;
  const Json& value = at(object, key);
  if (!value.is_array()) return items;
  for (const Json& item : value) {
    if (items.size() == kStatusListMax) break;
    items.push_back(read(item));
  }
  return items;
}

std::vector<uint32_t> numbers(const Json& object, const char* key) {
  return list<uint32_t>(object, key, [](const Json& item) {
    return item.is_number_unsigned() ? static_cast<uint32_t>(item.get<uint64_t>()) : 0u;
  });
}

MemberStatusView read_member(const Json& json) {
  return {.worker = number<uint32_t>(json, "worker"),
          .incarnation = number(json, "incarnation"),
          .connected = flag(json, "connected"),
          .finishing = flag(json, "finishing"),
          .silent_s = seconds(json, "silent_ms"),
          .steps_behind = number(json, "steps_behind")};
}

WaitView read_wait(const Json& job) {
  const Json& step = at(job, "waiting_step");
  return {.kind = text(job, "waiting_for"),
          .because = text(job, "waiting_because"),
          .workers = numbers(job, "blocked_on"),
          .shards = numbers(job, "waiting_shards"),
          .seconds = seconds(job, "waiting_ms"),
          .decided_in_s = seconds(job, "decided_in_ms"),
          .has_step = step.is_object(),
          .bucket = number(step, "bucket"),
          .part = number(step, "part"),
          .step = number(step, "step"),
          .contributions = number(step, "contributions")};
}

std::optional<AuditView> read_audit(const Json& job) {
  const Json& audit = at(job, "audit");
  if (!audit.is_object()) return std::nullopt;
  const auto mass = [&](const char* key) {
    const Json& value = at(audit, key);
    return value.is_number() ? value.get<double>() : 0.0;
  };
  return AuditView{mass("entered"), mass("carried"), mass("lost"), mass("held"), std::abs(mass("imbalance"))};
}

PathWaitView read_path_wait(const Json& json) {
  return {.worker = number<uint32_t>(json, "worker"),
          .waits_for = text(json, "waits_for"),
          .since_s = seconds(json, "since_ms"),
          .steps = number(json, "steps")};
}

std::optional<PathStatusView> read_path(const Json& job) {
  const Json& path = at(job, "switch_path");
  if (!path.is_object()) return std::nullopt;
  PathStatusView said{.decided_by = text(path, "decided_by"),
                      .switch_address = text(path, "switch"),
                      .datagrams = text(path, "datagrams"),
                      .because = text(path, "because"),
                      .since_s = seconds(path, "since_ms"),
                      .changes = number(path, "changes"),
                      .silent_to = {},
                      .answered = {},
                      .switch_job = number(path, "switch_job"),
                      .moved_s = seconds(path, "moved_ms"),
                      .waits = list<PathWaitView>(path, "waits", read_path_wait),
                      .shard_waits = text(at(path, "aggregator"), "waiting_because")};
  const auto words = list<std::pair<uint32_t, std::string>>(
      path, "said", [](const Json& one) { return std::pair(number<uint32_t>(one, "worker"), text(one, "says")); });
  for (const auto& [worker, says] : words) (says == "silent" ? said.silent_to : said.answered).push_back(worker);
  return said;
}

JobStatusView read_job(const Json& json) {
  return {.name = text(json, "name"),
          .job = number(json, "job"),
          .epoch = number(json, "epoch"),
          .started = flag(json, "started"),
          .mode = text(json, "mode"),
          .workers = std::min<uint32_t>(number<uint32_t>(json, "workers"), kStatusListMax),
          .quorum = number(json, "quorum"),
          .deadline_s = seconds(json, "deadline_ms"),
          .heartbeat_s = seconds(json, "heartbeat_ms"),
          .dead_after_s = seconds(json, "dead_after_ms"),
          .parts = number(json, "parts"),
          .steps_decided = number(json, "steps_decided"),
          .moved_s = seconds(json, "moved_ms"),
          .memory_bytes = number(json, "memory_bytes"),
          .memory_bytes_max = number(json, "memory_bytes_max"),
          .wait = read_wait(json),
          .members = list<MemberStatusView>(json, "members", read_member),
          .disagreements = list<DisagreementView>(json, "disagreements",
                                                  [](const Json& one) {
                                                    return DisagreementView{.worker = number<uint32_t>(one, "worker"),
                                                                            .part = number(one, "part"),
                                                                            .steps = number(one, "steps"),
                                                                            .since_s = seconds(one, "since_ms")};
                                                  }),
          .audit = read_audit(json),
          .path = read_path(json)};
}

RefusalView read_refusal(const Json& json) {
  return {.of = text(json, "refused"),
          .job = text(json, "job"),
          .number = number<uint32_t>(json, "number"),
          .software = text(json, "software"),
          .code = text(json, "code"),
          .sentence = text(json, "sentence"),
          .count = number(json, "count"),
          .first_s = seconds(json, "first_ms"),
          .last_s = seconds(json, "last_ms")};
}

}  // namespace

std::vector<SwitchJobView> read_switch_jobs(const Json& status) {
  const Json& lcores = at(status, "lcores");
  if (!lcores.is_array() || lcores.empty()) return {};
  const std::string address = text(lcores.front(), "address");  // all lcores share one
  return list<SwitchJobView>(status, "jobs", [&](const Json& job) {
    return SwitchJobView{.address = address,
                         .job = number(job, "job"),
                         .role = text(job, "role"),
                         .waiting_because = text(job, "waiting_because")};
  });
}

std::optional<ShardStatusView> parse_status(const Json& status) {
  const uint32_t shard_count = number<uint32_t>(status, "shard_count");
  const uint32_t shard = number<uint32_t>(status, "shard");
  if (shard_count > kStatusListMax || shard >= shard_count) return std::nullopt;
  return ShardStatusView{.shard = shard,
                         .shard_count = shard_count,
                         .incarnation = number(status, "incarnation"),
                         .address = text(status, "address"),
                         .software = text(status, "software"),
                         .table = text(status, "table"),
                         .shutting_down = flag(status, "shutting_down"),
                         .memory_bytes = number(status, "memory_bytes"),
                         .memory_bytes_max = number(status, "memory_bytes_max"),
                         .table_error = text(status, "table_error"),
                         .table_error_s = seconds(at(status, "table_failures"), "first_ms"),
                         .jobs = list<JobStatusView>(status, "jobs", read_job),
                         .peers = list<PeerStatusView>(status, "other_shards",
                                                       [](const Json& peer) {
                                                         return PeerStatusView{
                                                             .shard = number<uint32_t>(peer, "shard"),
                                                             .address = text(peer, "address"),
                                                             .has_sent_hello = flag(peer, "said_hello")};
                                                       }),
                         .refusals = list<RefusalView>(status, "refusals", read_refusal),
                         .ended = list<EndedJobView>(status, "ended_jobs", [](const Json& one) {
                           return EndedJobView{.name = text(one, "name"),
                                               .job = number(one, "job"),
                                               .how = text(one, "how"),
                                               .sentence = text(one, "sentence"),
                                               .since_s = seconds(one, "since_ms")};
                         })};
}

}  // namespace millrace::cluster_status
