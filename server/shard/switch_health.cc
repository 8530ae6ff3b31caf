#include "server/shard/switch_health.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace millrace::server {
namespace {

constexpr const char* kNoFallback =
    "the switch is silent, and shard 0 has no aggregator of datagrams (--datagrams, --job-keys): the job waits for the "
    "switch";

std::string switch_wait_name(protocol::Heartbeat::SwitchWait wait) {
  using Wait = protocol::Heartbeat::SwitchWait;
  switch (wait) {
    case Wait::kNotReported: return "";
    case Wait::kNothing: return "nothing";
    case Wait::kAnswer: return "answer";
    case Wait::kGreetings: return "greetings";
    case Wait::kContributions: return "contributions";
    case Wait::kOtherJob: return "other_job";
  }
  return "";
}

bool has_fallback(const protocol::Membership& membership) {
  return membership.shards.size() > SwitchHealth::kShard && !membership.shards[SwitchHealth::kShard].datagrams.empty();
}

}  // namespace

void SwitchHealth::on_report(const protocol::Member& from, Report word, const protocol::Membership& membership,
                             Actions& actions) {
  if (word == Report::kNoReport) {
    reports_.erase(from.worker);
    return;
  }
  reports_.insert_or_assign(from.worker, word);
  if (!is_stuck(membership) || std::exchange(said_, true)) return;
  actions.log.push_back(
      {Severity::kError, fmt::format("job '{}': worker {} says that {}", job_, from.worker, kNoFallback)});
}

/// Returns whether the switch is reported as silent, and no other process can decide.
bool SwitchHealth::is_stuck(const protocol::Membership& membership) const {
  if (has_fallback(membership)) return false;
  return std::ranges::any_of(reports_, [](const auto& said) { return said.second == Report::kSilent; });
}

std::optional<SwitchHealth::Change> SwitchHealth::wanted(const protocol::Membership& membership,
                                                         std::span<const protocol::Member> synced) const {
  const auto says = [this](const protocol::Member& member, Report word) {
    const auto said = reports_.find(member.worker);
    return said != reports_.end() && said->second == word;
  };
  if (membership.path == protocol::Path::kSwitch) {
    const auto member =
        std::ranges::find_if(synced, [&](const protocol::Member& one) { return says(one, Report::kSilent); });
    if (member == synced.end() || !has_fallback(membership)) return std::nullopt;
    return Change{protocol::Path::kServer,
                  fmt::format("worker {} says that the switch is silent or refuses the job", member->worker)};
  }
  if (synced.empty() ||
      !std::ranges::all_of(synced, [&](const protocol::Member& one) { return says(one, Report::kAnswers); })) {
    return std::nullopt;
  }
  return Change{protocol::Path::kSwitch,
                fmt::format("all {} workers say that the switch answers again", synced.size())};
}

void SwitchHealth::changed(std::string because, TimeNs now) {
  because_ = std::move(because);
  changed_at_ = now;
  ++changes_;
}

void SwitchHealth::on_progress(const protocol::Member& from, protocol::Heartbeat::SwitchWait wait, uint64_t steps,
                               TimeNs now) {
  if (wait == protocol::Heartbeat::SwitchWait::kNotReported) return;
  const auto [at, first] = progress_.try_emplace(from.worker);
  Progress& progress = at->second;
  const bool moved = first || progress.incarnation != from.incarnation || progress.steps != steps;
  if (moved) progress.moved_at = now;
  if (moved || progress.wait != wait) progress.waits_since = now;
  progress.incarnation = from.incarnation;
  progress.wait = wait;
  progress.steps = steps;
}

void SwitchHealth::add_progress(SwitchPathStatus& status, const protocol::Membership& membership, TimeNs now) const {
  TimeNs moved_at = 0;
  for (const protocol::Member& member : membership.members) {
    const auto at = progress_.find(member.worker);
    if (at == progress_.end() || at->second.incarnation != member.incarnation) continue;
    const Progress& progress = at->second;
    moved_at = std::max(moved_at, progress.moved_at);
    status.waits.push_back({.worker = member.worker,
                            .waits_for = switch_wait_name(progress.wait),
                            .since_ms = (now - progress.waits_since) / kNsPerMs,
                            .steps = progress.steps});
  }
  if (!status.waits.empty()) status.moved_ms = (now - moved_at) / kNsPerMs;
}

void SwitchHealth::add_status(SwitchPathStatus& status, const protocol::Membership& membership, TimeNs now) const {
  status.because = is_stuck(membership) ? kNoFallback : because_;
  status.changes = changes_;
  status.since_ms = changes_ == 0 ? 0 : (now - changed_at_) / kNsPerMs;
  for (const auto& [worker, word] : reports_) {
    status.reports.push_back({worker, word == Report::kSilent ? "silent" : "answers"});
  }
  add_progress(status, membership, now);
}

}  // namespace millrace::server
