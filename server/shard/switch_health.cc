#include "server/shard/switch_health.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace millrace::server {
namespace {

constexpr const char* kNobodyStandsIn =
    "the switch is silent, and shard 0 has no aggregator of datagrams (--datagrams, --job-keys): the job waits for the "
    "switch";

std::string switch_wait_name(protocol::Heartbeat::SwitchWait wait) {
  using Wait = protocol::Heartbeat::SwitchWait;
  switch (wait) {
    case Wait::kNotSaid: return "";
    case Wait::kNothing: return "nothing";
    case Wait::kAnswer: return "answer";
    case Wait::kGreetings: return "greetings";
    case Wait::kContributions: return "contributions";
    case Wait::kOtherJob: return "other_job";
  }
  return "";
}

bool can_stand_in(const protocol::JobView& view) {
  return view.shards.size() > SwitchWords::kShard && !view.shards[SwitchWords::kShard].datagrams.empty();
}

}  // namespace

void SwitchWords::on_word(const protocol::Member& from, Word word, const protocol::JobView& view, Actions& actions) {
  if (word == Word::kNoWord) {
    words_.erase(from.worker);
    return;
  }
  words_.insert_or_assign(from.worker, word);
  if (!is_stuck(view) || std::exchange(said_, true)) return;
  actions.log.push_back(
      {Severity::kError, fmt::format("job '{}': worker {} says that {}", job_, from.worker, kNobodyStandsIn)});
}

/// Returns whether the switch is reported as silent, and no other process can decide.
bool SwitchWords::is_stuck(const protocol::JobView& view) const {
  if (can_stand_in(view)) return false;
  return std::ranges::any_of(words_, [](const auto& said) { return said.second == Word::kSilent; });
}

std::optional<SwitchWords::Change> SwitchWords::wanted(const protocol::JobView& view,
                                                       std::span<const protocol::Member> synced) const {
  const auto says = [this](const protocol::Member& member, Word word) {
    const auto said = words_.find(member.worker);
    return said != words_.end() && said->second == word;
  };
  if (view.path == protocol::Path::kSwitch) {
    const auto member =
        std::ranges::find_if(synced, [&](const protocol::Member& one) { return says(one, Word::kSilent); });
    if (member == synced.end() || !can_stand_in(view)) return std::nullopt;
    return Change{protocol::Path::kServer,
                  fmt::format("worker {} says that the switch is silent or refuses the job", member->worker)};
  }
  if (synced.empty() ||
      !std::ranges::all_of(synced, [&](const protocol::Member& one) { return says(one, Word::kAnswers); })) {
    return std::nullopt;
  }
  return Change{protocol::Path::kSwitch,
                fmt::format("all {} workers say that the switch answers again", synced.size())};
}

void SwitchWords::changed(std::string because, TimeNs now) {
  because_ = std::move(because);
  changed_at_ = now;
  ++changes_;
}

void SwitchWords::on_progress(const protocol::Member& from, protocol::Heartbeat::SwitchWait wait, uint64_t steps,
                              TimeNs now) {
  if (wait == protocol::Heartbeat::SwitchWait::kNotSaid) return;
  const auto [at, first] = progress_.try_emplace(from.worker);
  Progress& progress = at->second;
  const bool moved = first || progress.life != from.life || progress.steps != steps;
  if (moved) progress.moved_at = now;
  if (moved || progress.wait != wait) progress.waits_since = now;
  progress.life = from.life;
  progress.wait = wait;
  progress.steps = steps;
}

void SwitchWords::add_progress(SwitchPathStatus& status, const protocol::JobView& view, TimeNs now) const {
  TimeNs moved_at = 0;
  for (const protocol::Member& member : view.members) {
    const auto at = progress_.find(member.worker);
    if (at == progress_.end() || at->second.life != member.life) continue;
    const Progress& progress = at->second;
    moved_at = std::max(moved_at, progress.moved_at);
    status.waits.push_back({.worker = member.worker,
                            .waits_for = switch_wait_name(progress.wait),
                            .since_ms = (now - progress.waits_since) / kNsPerMs,
                            .steps = progress.steps});
  }
  if (!status.waits.empty()) status.moved_ms = (now - moved_at) / kNsPerMs;
}

void SwitchWords::add_status(SwitchPathStatus& status, const protocol::JobView& view, TimeNs now) const {
  status.because = is_stuck(view) ? kNobodyStandsIn : because_;
  status.changes = changes_;
  status.since_ms = changes_ == 0 ? 0 : (now - changed_at_) / kNsPerMs;
  for (const auto& [worker, word] : words_) {
    status.words.push_back({worker, word == Word::kSilent ? "silent" : "answers"});
  }
  add_progress(status, view, now);
}

}  // namespace millrace::server
