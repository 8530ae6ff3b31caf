#include "worker/cluster_status/diagnosis.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>

namespace millrace::cluster_status {
namespace {

constexpr size_t kNamedMax = 8;    ///< workers or shards in one list
constexpr size_t kNotesMax = 3;    ///< workers with a note
constexpr size_t kCausesMax = 3;   ///< different waits in one sentence
constexpr double kRefusedS = 60;   ///< a refusal that explains why a worker is not here is not older
constexpr double kHeartbeats = 3;  ///< silent for more of them: worth saying

std::string join(const std::vector<std::string>& pieces, std::string_view between) {
  return fmt::format("{}", fmt::join(pieces, between));
}

/// "worker 3", "workers 1, 2 and 3", "workers 0, 1, ... (57 of them)".
std::string named(std::string_view what, const std::vector<uint32_t>& numbers) {
  if (numbers.empty()) return fmt::format("no {}", what);
  if (numbers.size() == 1) return fmt::format("{} {}", what, numbers.front());
  if (numbers.size() > kNamedMax) {
    const std::vector<uint32_t> first(numbers.begin(), numbers.begin() + kNamedMax);
    return fmt::format("{}s {}, ... ({} of them)", what, fmt::join(first, ", "), numbers.size());
  }
  const std::vector<uint32_t> but_last(numbers.begin(), numbers.end() - 1);
  return fmt::format("{}s {} and {}", what, fmt::join(but_last, ", "), numbers.back());
}

const MemberSeen* member_of(const JobPicture& job, uint32_t worker) {
  const auto at = std::ranges::find(job.members, worker, &MemberSeen::worker);
  return at == job.members.end() ? nullptr : &*at;
}

const RefusalAt* refusal_of(const JobPicture& job, std::string_view of, uint32_t worker) {
  const auto at = std::ranges::find_if(job.refusals, [&](const RefusalAt& one) {
    return one.said.of == of && one.said.number == worker && seconds_of(one.said.last_ms) <= kRefusedS;
  });
  return at == job.refusals.end() ? nullptr : &*at;
}

double heartbeats_s(const JobPicture& job) { return kHeartbeats * seconds_of(job.at.front().said.heartbeat_ms); }

/// Returns why a worker that blocks the job does not contribute, as far as shards can know.
std::string note_on(const ClusterSnapshot& picture, const JobPicture& job, uint32_t worker) {
  if (const RefusalAt* refusal = refusal_of(job, "contribution", worker)) {
    return fmt::format("shard {} refused its contribution {:.1f} s ago: {}", refusal->shard,
                       seconds_of(refusal->said.last_ms), refusal->said.sentence);
  }
  const MemberSeen* member = member_of(job, worker);
  if (!member) return "not a member";
  if (member->silent_s > heartbeats_s(job)) {
    return fmt::format("last heard {:.1f} s ago; removed at {:g} s", member->silent_s,
                       seconds_of(job.at.front().said.dead_after_ms));
  }
  if (!member->without_hello.empty()) {
    return fmt::format("it has not said Hello to {}", picture.shard_text(member->without_hello.front()));
  }
  return fmt::format("heard {:.1f} s ago: its program computes, or hangs", member->silent_s);
}

std::string notes_on(const ClusterSnapshot& picture, const JobPicture& job, const std::vector<uint32_t>& workers) {
  std::vector<std::string> notes;
  for (const uint32_t worker : workers) {
    if (notes.size() == kNotesMax) break;
    const std::string note = note_on(picture, job, worker);
    notes.push_back(workers.size() == 1 ? note : fmt::format("worker {}: {}", worker, note));
  }
  if (workers.size() > notes.size()) notes.emplace_back("...");
  return notes.empty() ? "" : fmt::format(" ({})", join(notes, "; "));
}

/// The wait of a job at one shard.
struct WaitSeen {
  std::string kind;  ///< JobStatus::waiting_for, "idle" or "not_open"
  std::string because;
  std::vector<uint32_t> workers;
  std::vector<uint32_t> shards;
  double seconds = 0;
  uint64_t step = 0;
};

WaitSeen wait_of(const JobStatus& job) {
  return {job.waiting_for,    job.waiting_because,        job.waited_for,
          job.waiting_shards, seconds_of(job.waiting_ms), job.waiting_step ? job.waiting_step->step : 0};
}

/// Shards that wait alike.
struct Cause {
  WaitSeen wait;
  std::vector<uint32_t> shards;
  double seconds = 0;
};

int rank(const WaitSeen& wait) {
  constexpr std::array<std::string_view, 7> kOrder = {"hello",         "store",      "memory",   "acknowledgements",
                                                      "contributions", "magnitudes", "computing"};
  return static_cast<int>(std::ranges::find(kOrder, wait.kind) - kOrder.begin());
}

void add_cause(std::vector<Cause>& causes, const WaitSeen& wait, uint32_t shard, double seconds) {
  const auto same = std::ranges::find_if(causes, [&](const Cause& one) {
    return std::tie(one.wait.kind, one.wait.workers, one.wait.shards, one.wait.step) ==
           std::tie(wait.kind, wait.workers, wait.shards, wait.step);
  });
  Cause& cause = same == causes.end() ? causes.emplace_back(Cause{wait, {}, 0}) : *same;
  cause.shards.push_back(shard);
  cause.seconds = std::max(cause.seconds, seconds);
}

/// Returns the waits that have lasted, those at the root first; omits a wait that is only a consequence of another.
std::vector<Cause> causes_of(const JobPicture& job, double still_after_s) {
  std::vector<Cause> causes;
  double longest = 0;
  for (const JobAt& at : job.at) {
    if (at.said.parts == 0) continue;
    WaitSeen wait = wait_of(at.said);
    // Of a job of path switch no shard ever sees a step.
    if ((at.said.switch_path || job.is_snapshot_job) && wait.kind.empty()) continue;
    longest = std::max({longest, wait.seconds, seconds_of(at.said.moved_ms)});
    if (wait.kind.empty()) {  // nothing is open: the workers have sent nothing to the next step
      wait.kind = "idle";
      wait.step = at.said.steps_decided;
      wait.seconds = seconds_of(at.said.moved_ms);
    }
    if (wait.kind != "deadline" && wait.kind != "join" && wait.seconds >= still_after_s) {
      add_cause(causes, wait, at.shard, wait.seconds);
    }
  }
  if (longest >= still_after_s) {
    WaitSeen not_open;
    not_open.kind = "not_open";
    for (const uint32_t shard : job.not_open) add_cause(causes, not_open, shard, longest);
  }
  if (std::ranges::any_of(causes, [](const Cause& one) { return one.wait.kind != "idle"; })) {
    std::erase_if(causes, [](const Cause& one) { return one.wait.kind == "idle"; });
  }
  std::ranges::stable_sort(causes, {}, [](const Cause& one) { return std::pair(one.wait.step, rank(one.wait)); });
  if (causes.size() > kCausesMax) causes.resize(kCausesMax);
  return causes;
}

std::string sentence_of(const ClusterSnapshot& picture, const JobPicture& job, const Cause& cause) {
  const WaitSeen& wait = cause.wait;
  const std::string who = named("shard", cause.shards);
  const std::string is = cause.shards.size() == 1 ? "is" : "are";
  if (wait.kind == "hello") {
    return fmt::format("{} {} blocked on the Hello of {}{}", who, is, named("worker", wait.workers),
                       notes_on(picture, job, wait.workers));
  }
  if (wait.kind == "not_open") {
    std::vector<std::string> texts;
    for (const uint32_t shard : cause.shards) texts.push_back(picture.shard_text(shard));
    return fmt::format("no worker has said Hello to {}: is that address in the workers' list, and can they reach it?",
                       join(texts, ", "));
  }
  if (wait.kind == "contributions") {
    return fmt::format("{} {} blocked on {} in step {}{}", who, is, named("worker", wait.workers), wait.step,
                       notes_on(picture, job, wait.workers));
  }
  if (wait.kind == "magnitudes") {
    const std::string whose =
        wait.shards.empty() ? std::string("the bucket's other parts") : named("shard", wait.shards);
    return fmt::format("{} {} blocked on the magnitudes of {} in step {}", who, is, whose, wait.step);
  }
  if (wait.kind == "idle") {
    std::vector<uint32_t> silent;
    for (const MemberSeen& member : job.members) {
      if (member.silent_s > heartbeats_s(job)) silent.push_back(member.worker);
    }
    return silent.empty() ? fmt::format(
                                "no worker has sent anything to step {}; all {} are heard: their programs compute, "
                                "or hang",
                                wait.step, job.members.size())
                          : fmt::format("no worker has sent anything to step {}; {} not heard{}", wait.step,
                                        named("worker", silent) + (silent.size() == 1 ? " is" : " are"),
                                        notes_on(picture, job, silent));
  }
  return fmt::format("{}: {}", who, wait.because);
}

std::vector<std::string> why_not_started(const ClusterSnapshot& picture, const JobPicture& job) {
  std::vector<std::string> reasons;
  std::vector<uint32_t> unheard;
  for (const uint32_t worker : job.never_here) {
    const RefusalAt* refusal = refusal_of(job, "worker", worker);
    if (refusal && reasons.size() < kNotesMax) {
      reasons.push_back(fmt::format("shard {} refused worker {} {:.1f} s ago: {}", refusal->shard, worker,
                                    seconds_of(refusal->said.last_ms), refusal->said.sentence));
    } else {
      unheard.push_back(worker);
    }
  }
  if (!unheard.empty()) reasons.push_back(fmt::format("{} never said Hello", named("worker", unheard)));
  for (const MemberSeen& member : job.members) {
    if (member.without_hello.empty() || reasons.size() > kNotesMax) continue;
    reasons.push_back(member.hello_sent_to.empty()
                          ? fmt::format("worker {} has joined and left its connections", member.worker)
                          : fmt::format("worker {} said Hello to {} but not to {}", member.worker,
                                        named("shard", member.hello_sent_to),
                                        picture.shard_text(member.without_hello.front())));
  }
  for (const MemberSeen& member : job.members) {
    if (member.silent_s <= heartbeats_s(job) || reasons.size() > kNotesMax) continue;
    reasons.push_back(fmt::format("worker {} was last heard {:.1f} s ago", member.worker, member.silent_s));
  }
  if (reasons.empty())
    reasons.push_back(fmt::format("all {} workers are here; it starts in a moment", job.members.size()));
  return reasons;
}

/// Returns the faults that do not depend on the job's progress.
std::vector<std::string> secondary_findings(const ClusterSnapshot& picture, const JobPicture& job) {
  std::vector<std::string> notes;
  for (const JobAt& at : job.at) {
    if (at.said.job != job.at.front().said.job) {
      notes.push_back(
          fmt::format("shards {} and {} know it under different numbers, {} and {}: do they use one membership "
                      "table?",
                      job.at.front().shard, at.shard, job.at.front().said.job, at.said.job));
      break;
    }
  }
  for (const JobAt& at : job.at) {
    for (const DisagreementStatus& one : at.said.disagreements) {
      notes.push_back(
          fmt::format("the weights of worker {} are not those of the others (shard {}, part {}, found after {} "
                      "steps, {:.1f} s ago)",
                      one.worker, at.shard, one.part, one.steps, seconds_of(one.since_ms)));
      break;  // the others are in the lists
    }
  }
  for (const JobAt& at : job.at) {
    if (!at.said.audit || mismatch_of(*at.said.audit) == 0) continue;
    notes.push_back(fmt::format("its audit has a mismatch of {:.6g} (shard {}; the logs say where)",
                                mismatch_of(*at.said.audit), at.shard));
    break;  // the sum over all shards is below
  }
  for (const JobAt& at : job.at) {
    const auto& path = at.said.switch_path;
    if (!path || path->decided_by != "switch" || silent_to(*path).empty()) continue;
    notes.push_back(fmt::format("the switch at {} is silent to {}: {}", path->switch_address,
                                named("worker", silent_to(*path)), path->because));
  }
  if (job.state == JobState::kRunning) return notes;
  for (const auto& [shard, missing] : picture.missing) {
    notes.push_back(fmt::format("{} was not heard: {}", picture.shard_text(shard), missing.why));
  }
  for (const auto& [number, shard] : picture.shards) {
    if (!shard.table_error.empty()) notes.push_back(fmt::format("shard {}: {}", number, shard.table_error));
  }
  return notes;
}

std::vector<uint32_t> that_wait_for(const SwitchPathStatus& path, std::string_view what) {
  std::vector<uint32_t> workers;
  for (const SwitchPathStatus::MemberWait& one : path.waits)
    if (one.waits_for == what) workers.push_back(one.worker);
  return workers;
}

/// Returns what blocks the steps that go by datagrams, as the workers report it. First the workers that the decider
/// does not answer, then those whose greeting is missing, then those that have sent nothing.
std::string path_stalls(const ClusterSnapshot& picture, const JobPicture& job, const SwitchPathStatus& path) {
  const bool by_switch = path.decided_by == "switch";
  const std::string decider =
      by_switch ? fmt::format("the switch at {}", path.switch_address) : fmt::format("shard 0 ({})", path.datagrams);
  if (const auto unheard = that_wait_for(path, "answer"); !unheard.empty()) {
    return fmt::format("{} does not answer {}: another key, or datagrams do not get there and back", decider,
                       named("worker", unheard));
  }
  if (const auto others = that_wait_for(path, "other_job"); !others.empty())
    return fmt::format("{} is with another job of number {}, as {} says", decider, path.switch_job,
                       named("worker", others));
  const std::vector<uint32_t> greeting = that_wait_for(path, "greetings");
  if (!greeting.empty()) {
    std::vector<uint32_t> others;
    for (const MemberSeen& member : job.members) {
      if (std::ranges::find(greeting, member.worker) == greeting.end()) others.push_back(member.worker);
    }
    return others.empty() ? fmt::format("{} opens no epoch, though {} greet it", decider, named("worker", greeting))
                          : fmt::format("{} is blocked on the greeting of {}{}", decider, named("worker", others),
                                        notes_on(picture, job, others));
  }
  if (const auto computing = that_wait_for(path, "nothing"); !computing.empty()) {
    return fmt::format("{} sends nothing to step {}{}", named("worker", computing),
                       std::ranges::max(path.waits, {}, &SwitchPathStatus::MemberWait::steps).steps,
                       notes_on(picture, job, computing));
  }
  return fmt::format("all workers are blocked on each other's contributions at {}: datagrams are lost", decider);
}

struct PathVerdict {
  double seconds = 0;
  std::string sentence;
};

/// Returns why a job's datagram steps are stalled; nothing if they move, or no worker has reported.
std::optional<PathVerdict> path_verdict(const ClusterSnapshot& picture, const JobPicture& job, double still_after_s) {
  const SwitchPathStatus* path = path_of(job);
  if (path == nullptr || path->waits.empty() || seconds_of(path->moved_ms) < still_after_s) return std::nullopt;
  PathVerdict verdict{seconds_of(path->moved_ms), path_stalls(picture, job, *path)};
  const std::string words = path->decided_by == "switch" ? job.switch_because : shard_waits(*path);
  if (!words.empty())
    verdict.sentence +=
        fmt::format(" ({} reports: {})", path->decided_by == "switch" ? "the switch" : "shard 0", words);
  return verdict;
}

/// Returns the last step that all workers have completed, of a job whose steps go by datagrams.
std::string path_step_text(const JobPicture& job) {
  const SwitchPathStatus* path = path_of(job);
  if (path == nullptr || path->waits.empty()) return "steps go by datagrams";
  return fmt::format("step {} by datagrams",
                     std::ranges::min(path->waits, {}, &SwitchPathStatus::MemberWait::steps).steps);
}

}  // namespace

void diagnose(const ClusterSnapshot& picture, double still_after_s, JobPicture& job) {
  std::vector<std::string> reasons;
  // A shard that leaves its number to a spare leaves its jobs, too.
  const bool shutting_down = std::ranges::any_of(
      picture.shards, [](const auto& one) { return one.second.shutting_down && !one.second.leaving; });
  const bool finishing = !job.members.empty() && std::ranges::all_of(job.members, &MemberSeen::finishing);
  if (!job.started) {
    job.state = JobState::kStarting;
    for (const JobAt& at : job.at) job.since_s = std::max(job.since_s, seconds_of(at.said.waiting_ms));
    reasons = why_not_started(picture, job);
  } else if (const std::vector<Cause> causes = causes_of(job, still_after_s); !causes.empty()) {
    job.state = JobState::kStalled;
    for (const Cause& cause : causes) {
      job.since_s = std::max(job.since_s, cause.seconds);
      reasons.push_back(sentence_of(picture, job, cause));
    }
  } else if (const auto verdict = finishing ? std::nullopt : path_verdict(picture, job, still_after_s); verdict) {
    job.state = JobState::kStalled;
    job.since_s = verdict->seconds;
    reasons.push_back(verdict->sentence);
  } else if (finishing || shutting_down) {
    job.state = JobState::kEnding;
    reasons.emplace_back(finishing ? "its workers push nothing more" : "a shard is shutting down");
  } else {
    const JobStatus& said = job.at.front().said;
    uint64_t step = UINT64_MAX;
    for (const JobAt& at : job.at) step = at.said.parts == 0 ? step : std::min(step, at.said.steps_decided);
    const std::string where =
        said.switch_path ? path_step_text(job) : fmt::format("step {}", step == UINT64_MAX ? 0 : step);
    reasons.push_back(fmt::format("{}, {} of {} workers", where, job.members.size(), said.workers));
  }
  for (std::string& note : secondary_findings(picture, job)) reasons.push_back(std::move(note));
  const bool waits = job.state == JobState::kStarting || job.state == JobState::kStalled;
  job.verdict = fmt::format("{}{}: {}", state_name(job.state), waits ? fmt::format(" for {:.1f} s", job.since_s) : "",
                            join(reasons, "; "));
}

}  // namespace millrace::cluster_status
