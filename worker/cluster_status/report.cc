#include "worker/cluster_status/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "monitoring/status/status_json.h"
#include "worker/program/table.h"

namespace millrace::cluster_status {

using program::ExitCode;
using program::fail_with;

namespace {

using Json = nlohmann::json;
using Rows = std::vector<std::vector<std::string>>;

constexpr size_t kRowsMax = 32;  ///< members, waits, refusals: readers need no more; --json has all

std::string numbers_text(const std::vector<uint32_t>& numbers) {
  return numbers.empty() ? "-" : fmt::format("{}", fmt::join(numbers, ", "));
}

std::string seconds_text(double seconds) { return fmt::format("{:.1f} s", seconds); }

/// Rows under each other, two columns further in; says how many are left out.
std::string table_text(Rows rows) {
  const size_t left_out = rows.size() > kRowsMax + 1 ? rows.size() - kRowsMax - 1 : 0;
  rows.resize(rows.size() - left_out);
  std::string text;
  const std::string table = program::aligned_table(rows);
  for (size_t begin = 0; begin < table.size();) {
    const size_t end = std::min(table.find('\n', begin), table.size());
    text += "  " + table.substr(begin, end - begin) + "\n";
    begin = end + 1;
  }
  if (left_out > 0) text += fmt::format("  ... and {} more (--json has all)\n", left_out);
  return text;
}

std::string refusal_text(const RefusalAt& refusal) {
  const RefusalStatus& one = refusal.said;
  const std::string what = one.of == "contribution" ? fmt::format("a contribution of worker {}", one.number)
                           : one.of == "worker"     ? fmt::format("worker {}", one.number)
                                                    : std::string("a message that it cannot read");
  const std::string job = one.job.empty() ? "" : fmt::format(" of job '{}'", one.job);
  const std::string times = one.count > 1 ? fmt::format(" ({} times)", one.count) : "";
  return fmt::format("  shard {} refused {}{} {} ago{}: {}: {}\n", refusal.shard, what, job,
                     seconds_text(seconds_of(one.last_ms)), times, one.code, one.sentence);
}

std::string refusals_text(const std::vector<RefusalAt>& refusals) {
  std::string text;
  for (size_t at = 0; at < std::min(refusals.size(), kRowsMax); ++at) text += refusal_text(refusals[at]);
  return text;
}

std::string waits_text(const JobPicture& job) {
  Rows rows = {{"shard", "step", "part", "bucket", "in", "blocked on", "since", "because"}};
  for (const JobAt& at : job.at) {
    const JobStatus& said = at.said;
    const WaitingStep step = said.waiting_step.value_or(WaitingStep());
    std::vector<std::string>& row = rows.emplace_back();
    row = {std::to_string(at.shard), std::to_string(said.waiting_step ? step.step : said.steps_decided)};
    for (const uint32_t value : {step.part, step.bucket, step.here}) {
      row.push_back(said.waiting_step ? std::to_string(value) : "-");
    }
    const std::string whom = said.waiting_for == "magnitudes" ? "shard " + numbers_text(said.waiting_shards)
                             : said.waited_for.empty()        ? "-"
                                                              : "worker " + numbers_text(said.waited_for);
    const bool is_open = !said.waiting_for.empty();
    row.insert(row.end(), {is_open ? whom : "-", seconds_text(seconds_of(is_open ? said.waiting_ms : said.moved_ms)),
                           is_open ? said.waiting_because : "nothing is open"});
  }
  return table_text(std::move(rows));
}

std::string members_text(const JobPicture& job) {
  Rows rows = {{"worker", "incarnation", "at shards", "not at", "last heard", "steps behind", "state"}};
  for (const MemberSeen& member : job.members) {
    rows.push_back({std::to_string(member.worker), std::to_string(member.incarnation),
                    numbers_text(member.hello_sent_to), numbers_text(member.without_hello),
                    seconds_text(member.silent_s), std::to_string(member.steps_behind),
                    member.finishing ? "finishing" : "here"});
  }
  for (const uint32_t worker : job.never_here) {
    rows.push_back({std::to_string(worker), "-", "-", "-", "never", "-", "missing"});
  }
  return table_text(std::move(rows));
}

/// The values of an audited job.
struct AuditSeen {
  double entered = 0;
  double carried = 0;
  double lost = 0;
  double held = 0;
  double imbalance = 0;
};

/// Over all shards. Empty: the job is not audited.
std::optional<AuditSeen> audit_of(const JobPicture& job) {
  std::optional<AuditSeen> all;
  for (const JobAt& at : job.at) {
    if (!at.said.audit) continue;
    if (!all) all.emplace();
    all->entered += at.said.audit->entered;
    all->carried += at.said.audit->carried;
    all->lost += at.said.audit->lost;
    all->held += at.said.audit->in_residual;
    // JSON has no infinity.
    all->imbalance = std::min(all->imbalance + mismatch_of(*at.said.audit), std::numeric_limits<double>::max());
  }
  return all;
}

std::string audit_text(const AuditSeen& audit) {
  return fmt::format("  audit: entered {:.6g} = carried {:.6g} + lost {:.6g} + held {:.6g}; {}\n", audit.entered,
                     audit.carried, audit.lost, audit.held,
                     audit.imbalance == 0
                         ? "nothing is missing"
                         : fmt::format("MISMATCH of {:.6g} (the logs say where): a bug", audit.imbalance));
}

std::string path_text(const SwitchPathStatus& path) {
  std::string text = path.decided_by == "switch"
                         ? fmt::format("  path: the switch at {} decides", path.switch_address)
                         : fmt::format("  path: shard 0 ({}) decides in place of the switch at {}", path.datagrams,
                                       path.switch_address);
  if (path.changes > 0) text += fmt::format(", for {}", seconds_text(seconds_of(path.since_ms)));
  if (!path.because.empty()) text += ": " + path.because;
  if (const auto workers = silent_to(path); !workers.empty())
    text += fmt::format("; silent to worker {}", numbers_text(workers));
  if (const auto workers = answered_by(path); !workers.empty())
    text += fmt::format("; answers worker {}", numbers_text(workers));
  text += "\n";
  if (path.waits.empty()) return text;
  Rows rows = {{"worker", "steps", "blocked on", "since"}};
  for (const SwitchPathStatus::MemberWait& one : path.waits)
    rows.push_back(
        {std::to_string(one.worker), std::to_string(one.steps), one.waits_for, seconds_text(seconds_of(one.since_ms))});
  return text + table_text(std::move(rows));
}

std::string job_text(const JobPicture& job) {
  const JobStatus& said = job.at.front().said;
  std::string text = fmt::format("job {}: {}\n", job.name, job.verdict);
  text += fmt::format("  {}, {} of {} workers, epoch {}", said.mode, job.members.size(), said.workers, said.epoch);
  if (said.quorum != 0) text += fmt::format(", quorum {}", said.quorum);
  if (said.deadline_ms > 0) text += fmt::format(", deadline {}", seconds_text(seconds_of(said.deadline_ms)));
  text += fmt::format(", silent workers are removed after {:g} s\n", seconds_of(said.dead_after_ms));
  if (const SwitchPathStatus* path = path_of(job)) text += path_text(*path);
  if (const auto audit = audit_of(job)) text += audit_text(*audit);
  if (job.started) text += waits_text(job);
  return text + members_text(job) + refusals_text(job.refusals);
}

Json json_of(const RefusalAt& refusal) {
  const RefusalStatus& one = refusal.said;
  return {{"shard", refusal.shard},
          {"refused", one.of},
          {"number", one.number},
          {"job", one.job},
          {"code", one.code},
          {"sentence", one.sentence},
          {"count", one.count},
          {"first_seconds", seconds_of(one.first_ms)},
          {"last_seconds", seconds_of(one.last_ms)},
          {"software", one.software}};
}

Json json_of(const std::vector<RefusalAt>& refusals) {
  Json list = Json::array();
  for (const RefusalAt& one : refusals) list.push_back(json_of(one));
  return list;
}

Json json_of(const JobAt& at) {
  const JobStatus& said = at.said;
  Json json = {{"shard", at.shard},
               {"for", said.waiting_for},
               {"because", said.waiting_because},
               {"workers", said.waited_for},
               {"shards", said.waiting_shards},
               {"seconds", seconds_of(said.waiting_ms)},
               {"parts", said.parts},
               {"moved_seconds", seconds_of(said.moved_ms)},
               {"steps_decided", said.steps_decided}};
  if (const auto& step = said.waiting_step) {
    json["step"] = step->step;
    json["part"] = step->part;
    json["bucket"] = step->bucket;
    json["contributions"] = step->here;
  }
  if (said.waiting_for == "deadline") json["decided_in_seconds"] = seconds_of(said.decided_in_ms);
  return json;
}

Json json_of(const JobPicture& job) {
  const JobStatus& said = job.at.front().said;
  Json members = Json::array();
  for (const MemberSeen& member : job.members) {
    members.push_back({{"worker", member.worker},
                       {"incarnation", member.incarnation},
                       {"said_hello", member.hello_sent_to},
                       {"not_said_hello", member.without_hello},
                       {"silent_seconds", member.silent_s},
                       {"steps_behind", member.steps_behind},
                       {"finishing", member.finishing}});
  }
  Json waits = Json::array();
  Json disagreements = Json::array();
  for (const JobAt& at : job.at) {
    waits.push_back(json_of(at));
    for (const DisagreementStatus& one : at.said.disagreements) {
      disagreements.push_back({{"shard", at.shard},
                               {"worker", one.worker},
                               {"part", one.part},
                               {"steps", one.steps},
                               {"since_seconds", seconds_of(one.since_ms)}});
    }
  }
  Json json = {{"name", job.name},
               {"job", said.job},
               {"state", state_name(job.state)},
               {"since_seconds", job.since_s},
               {"verdict", job.verdict},
               {"mode", said.mode},
               {"epoch", said.epoch},
               {"workers", said.workers},
               {"started", job.started},
               {"quorum", said.quorum},
               {"deadline_seconds", seconds_of(said.deadline_ms)},
               {"dead_after_seconds", seconds_of(said.dead_after_ms)},
               {"missing_workers", job.never_here},
               {"members", std::move(members)},
               {"waits", std::move(waits)},
               {"not_open_at", job.not_open},
               {"disagreements", std::move(disagreements)},
               {"refusals", json_of(job.refusals)}};
  if (const SwitchPathStatus* path = path_of(job)) {
    json["path"] = {{"decided_by", path->decided_by},
                    {"switch", path->switch_address},
                    {"datagrams", path->datagrams},
                    {"because", path->because},
                    {"since_seconds", seconds_of(path->since_ms)},
                    {"changes", path->changes},
                    {"silent_to", silent_to(*path)},
                    {"answers", answered_by(*path)},
                    {"moved_seconds", seconds_of(path->moved_ms)},
                    {"shard_waits", shard_waits(*path)},
                    {"switch_waits", job.switch_because}};
    for (const SwitchPathStatus::MemberWait& one : path->waits) {
      json["path"]["waits"].push_back({{"worker", one.worker},
                                       {"for", one.waits_for},
                                       {"seconds", seconds_of(one.since_ms)},
                                       {"steps", one.steps}});
    }
  }
  if (const auto audit = audit_of(job)) {
    json["audit"] = {{"entered", audit->entered},
                     {"carried", audit->carried},
                     {"lost", audit->lost},
                     {"held", audit->held},
                     {"imbalance", audit->imbalance}};
  }
  return json;
}

std::string shards_text(const ClusterSnapshot& picture) {
  if (picture.shards.empty() && picture.missing.empty()) return "";
  Rows rows = {{"shard", "for workers", "status", "incarnation", "jobs", "memory", "software"}};
  for (const auto& [number, shard] : picture.shards) {
    const double full = shard.memory_bytes_max == 0 ? 0
                                                    : 100 * static_cast<double>(shard.memory_bytes) /
                                                          static_cast<double>(shard.memory_bytes_max);
    rows.push_back({std::to_string(number), shard.address, picture.asked.at(number), std::to_string(shard.incarnation),
                    std::to_string(shard.jobs.size()), fmt::format("{:.0f} %", full), shard.software});
  }
  std::string text = "shards\n" + table_text(std::move(rows));
  for (const auto& [number, missing] : picture.missing) {
    text += fmt::format("  {} was not heard: {}\n", picture.shard_text(number), missing.why);
  }
  return text;
}

bool disagrees(const JobPicture& job) {
  return std::ranges::any_of(job.at, [](const JobAt& at) { return !at.said.disagreements.empty(); });
}

bool does_not_balance(const JobPicture& job) {
  return std::ranges::any_of(job.at, [](const JobAt& at) { return at.said.audit && mismatch_of(*at.said.audit) != 0; });
}

}  // namespace

std::string report_text(const ClusterSnapshot& picture, const Answers& answers) {
  std::string text;
  for (const JobPicture& job : picture.jobs) text += job_text(job) + "\n";
  if (picture.jobs.empty() && !picture.shards.empty()) text += "no job is open\n\n";
  for (const std::string& trouble : picture.troubles) text += trouble + "\n";
  if (!picture.refusals.empty())
    text += "refused, of jobs that are not open\n" + refusals_text(picture.refusals) + "\n";
  Rows ended = {{"job", "number", "shard", "ended", "how", "reason that its workers received"}};
  for (const auto& [number, shard] : picture.shards) {
    for (const EndedJobStatus& one : shard.ended) {
      ended.push_back({one.name, std::to_string(one.job), std::to_string(number),
                       seconds_text(seconds_of(one.since_ms)) + " ago", one.how,
                       one.sentence.empty() ? "-" : one.sentence});
    }
  }
  if (ended.size() > 1) text += "ended of late\n" + table_text(std::move(ended)) + "\n";
  text += shards_text(picture);
  for (const auto& [address, said] : answers.said) {
    if (!monitoring::read_status(said)) text += fmt::format("{}\n{}", address, program::object_text(said, 2));
  }
  for (const auto& [address, why] : answers.unanswered) text += fmt::format("{}\n  {}\n", address, why);
  return text;
}

Json report_json(const ClusterSnapshot& picture, const Answers& answers) {
  Json jobs = Json::array();
  for (const JobPicture& job : picture.jobs) jobs.push_back(json_of(job));
  Json shards = Json::array();
  Json ended = Json::array();
  for (const auto& [number, shard] : picture.shards) {
    shards.push_back({{"shard", number},
                      {"address", shard.address},
                      {"http", picture.asked.at(number)},
                      {"incarnation", shard.incarnation},
                      {"software", shard.software},
                      {"table", shard.table},
                      {"shutting_down", shard.shutting_down},
                      {"table_error", shard.table_error},
                      {"memory_bytes", shard.memory_bytes},
                      {"memory_bytes_max", shard.memory_bytes_max}});
    for (const EndedJobStatus& one : shard.ended) {
      ended.push_back({{"name", one.name},
                       {"job", one.job},
                       {"shard", number},
                       {"how", one.how},
                       {"sentence", one.sentence},
                       {"since_seconds", seconds_of(one.since_ms)}});
    }
  }
  Json missing = Json::array();
  for (const auto& [number, one] : picture.missing) {
    missing.push_back({{"shard", number}, {"address", one.address}, {"why", one.why}});
  }
  Json unanswered = Json::object();
  for (const auto& [address, why] : answers.unanswered) unanswered[address] = why;
  Json said = Json::object();
  for (const auto& [address, one] : answers.said) said[address] = one;
  return {{"jobs", std::move(jobs)},
          {"shards", std::move(shards)},
          {"missing", std::move(missing)},
          {"ended_jobs", std::move(ended)},
          {"refusals", json_of(picture.refusals)},
          {"troubles", picture.troubles},
          {"unanswered", std::move(unanswered)},
          {"said", std::move(said)}};
}

program::Outcome outcome_of(const ClusterSnapshot& picture, const Answers& answers) {
  if (!answers.unanswered.empty()) return fail_with(ExitCode::kUnreachable, answers.unanswered.front().second);
  if (!picture.missing.empty()) {
    const auto& [number, missing] = *picture.missing.begin();
    return fail_with(ExitCode::kUnreachable,
                     fmt::format("{} was not heard: {}", picture.shard_text(number), missing.why));
  }
  const auto first = [&](const auto& holds) { return std::ranges::find_if(picture.jobs, holds); };
  const auto report = [](ExitCode code, const JobPicture& job) {
    return fail_with(code, fmt::format("job {}: {}", job.name, job.verdict));
  };
  if (const auto job = first(disagrees); job != picture.jobs.end()) return report(ExitCode::kWeightsDisagree, *job);
  if (const auto job = first(does_not_balance); job != picture.jobs.end())
    return report(ExitCode::kDoesNotBalance, *job);
  const auto in = [](JobState state) { return [state](const JobPicture& job) { return job.state == state; }; };
  if (const auto job = first(in(JobState::kStalled)); job != picture.jobs.end()) {
    return report(ExitCode::kStalled, *job);
  }
  if (const auto job = first(in(JobState::kStarting)); job != picture.jobs.end()) {
    return report(ExitCode::kNotStarted, *job);
  }
  return {};
}

}  // namespace millrace::cluster_status
