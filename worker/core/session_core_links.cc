#include <algorithm>
#include <string>
#include <utility>

#include "protocol/base/limits.h"
#include "worker/core/session_core_impl.h"

/// Connections: reaching shards, greeting them, hearing from them, losing and finding them again.
namespace millrace::worker {
namespace {

constexpr TimeNs kHelloAgainMax = kNsPerS;   ///< A Hello without an answer is sent again.
constexpr TimeNs kAttemptMax = 5 * kNsPerS;  ///< As kAttemptOfTwoMax, where there is one address.
/// A worker whose number is in use asks again soon for three heartbeats: a killed process loses the number after two.
constexpr int kSoonHeartbeats = 3;
/// After this number of missed heartbeats the connection may be half open, and the core connects again.
constexpr uint32_t kHeartbeatsMissed = 4;

constexpr const char* kForeign =
    "the process that accepts connections there does not answer as a Millrace server does: is it stopped, another "
    "program, a server's --http port, a server that wants a key (--key, --server-key), or one that may open no more "
    "files (see its log)?";
constexpr const char* kNoAnswer = "it accepts connections but does not answer Hello: is it a Millrace server?";

TimeNs attempt_max(const Link& link) { return link.other_address().empty() ? kAttemptMax : kAttemptOfTwoMax; }

std::string seconds_text(TimeNs span) {
  const TimeNs tenths = (span + kNsPerS / 20) / (kNsPerS / 10);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

TimeNs heartbeat_interval(const CoreConfig& config) { return TimeNs{config.spec.heartbeat.count()} * kNsPerMs; }

/// Soon enough that one lost Hello does not make a member of the job look dead to that shard.
TimeNs hello_again_after(const CoreConfig& config) {
  return std::min(kHelloAgainMax, TimeNs{config.spec.dead_after.count()} * kNsPerMs / 8);
}

TimeNs half_open_after(const CoreConfig& config) {
  return std::max<TimeNs>(kHeartbeatsMissed * heartbeat_interval(config), 2 * kNsPerS);
}

std::string numbers_text(const std::vector<uint32_t>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size() && i < 16; ++i) text += (i == 0 ? "" : ", ") + std::to_string(numbers[i]);
  if (numbers.size() > 16) text += " and " + std::to_string(numbers.size() - 16) + " more";
  return text;
}

}  // namespace

std::string Link::other_address() const {
  if (ever_welcomed || named.empty() || named == configured) return {};
  return address == named ? configured : named;
}

const Error& Link::trouble_at(const std::string& at) const {
  static const Error none;
  const auto found = troubles.find(at);
  return found == troubles.end() ? none : found->second;
}

std::string Link::other_trouble_text() const {
  const std::string other = other_address();
  const std::string& sentence = trouble_at(other).message;
  return sentence.empty() ? "" : "; at " + other + ": " + sentence;
}

std::string SessionCore::Impl::shard_text(uint32_t shard) const {
  return "shard " + std::to_string(shard) + " (" + links[shard].address + ")";
}

void SessionCore::Impl::start(TimeNs now, Actions& actions) {
  started_at = now;
  for (uint32_t shard = 0; shard < links.size(); ++shard) open(shard, now, actions);
}

void SessionCore::Impl::open(uint32_t shard, TimeNs now, Actions& actions) {
  Link& link = links[shard];
  link.state = LinkState::kConnecting;
  link.accepted = false;
  link.next_attempt = now + attempt_max(link);
  ++link.attempts;
  actions.connects.push_back(shard);
}

void SessionCore::Impl::schedule_retry(Link& link, TimeNs now) {
  // A restarted shard evicts members that do not find it within dead_after.
  TimeNs most = std::min(config.reconnect_after_max, TimeNs{config.spec.dead_after.count()} * kNsPerMs / 4);
  // The job waits for this process, and a killed process loses the number after two heartbeats and at least a second
  // (R9). Later a live process has the number, and each Hello costs the shard a look into the table.
  const TimeNs beat = std::max(heartbeat_interval(config), kNsPerS / 2);
  const bool in_use = link.refused_for_now && link.trouble().code == ErrorCode::kIdentityInUse;
  if (in_use && now - *link.in_use_since < kSoonHeartbeats * beat) most = std::min(most, beat / 4);
  const TimeNs least = std::min(config.reconnect_after, most);
  link.retry_interval = link.retry_interval == 0 ? least : std::min(link.retry_interval * 2, most);
  link.next_attempt = now + jittered(link.retry_interval);
}

void SessionCore::Impl::on_connected(uint32_t shard, TimeNs now, Actions& actions) {
  Link& link = links[shard];
  if (over()) return;
  link.state = LinkState::kGreeting;
  link.asked_since.reset();
  say_hello(shard, now, actions);
}

void SessionCore::Impl::say_hello(uint32_t shard, TimeNs now, Actions& actions) {
  protocol::Hello hello;
  hello.software = config.software;
  hello.capabilities = config.has_weights && config.takes_merged ? protocol::kTakesMerged : 0;
  hello.nonce = config.nonce;
  hello.spec = config.spec;
  hello.shard_count = static_cast<uint32_t>(links.size());
  hello.layout_hash = layout_hash;
  // One that was a member may have been removed meanwhile, without hearing of it.
  hello.returns = config.returns || was_evicted || (may_rejoin() && incarnation != 0);
  hello.has_weights = config.has_weights;
  Link& link = links[shard];
  link.next_attempt = now + hello_again_after(config);
  link.asked_since = link.asked_since.value_or(now);
  send(shard, std::move(hello), {}, actions);
}

void SessionCore::Impl::on_disconnected(uint32_t shard, const Error& trouble, TimeNs now, Actions& actions) {
  Link& link = links[shard];
  if (over() || link.state == LinkState::kDown) return;
  const bool keys_failed = trouble.code == ErrorCode::kUnauthenticated;
  const bool is_said = keys_failed || trouble.code == ErrorCode::kShardMapMismatch;
  if (link.state == LinkState::kWelcomed) {
    log(actions, Severity::kWarning, "the connection to " + shard_text(shard) + " is lost: " + trouble.message);
  } else if (is_said && link.trouble().message != trouble.message) {
    log(actions, Severity::kWarning, shard_text(shard) + ": " + trouble.message);
  }
  const bool foreign = !keys_failed && link.state == LinkState::kConnecting && link.accepted;
  link.state = LinkState::kDown;
  link.troubles[link.address] = {trouble.code, foreign ? kForeign : trouble.message};
  link.refused_for_now = false;
  link.deferred_messages.clear();
  // Also after failed keys: the shard's allowed keys may still be on their way to it.
  schedule_retry(link, now);
}

void SessionCore::Impl::send_heartbeat(uint32_t shard, TimeNs now, Actions& actions) {
  Link& link = links[shard];
  link.next_heartbeat = now + heartbeat_interval(config);
  protocol::Heartbeat heartbeat;
  heartbeat.sequence = ++link.heartbeats;
  uint64_t least = UINT64_MAX;
  for (const BucketRun& run : buckets) least = std::min(least, run.steps_applied);
  heartbeat.steps_applied = buckets.empty() || by_switch() ? 0 : least;
  if (by_switch() && shard == 0) {
    heartbeat.switch_state = last_reported_switch = switch_path->report(now);
    heartbeat.switch_wait = switch_path->waits();
    heartbeat.switch_steps = buckets.empty() ? 0 : least;
  }
  heartbeat.finishing = phase == Phase::kFinishing;
  for (size_t looked = 0; looked < parts.size() && heartbeat.digests.size() < protocol::kHeartbeatPartsMax; ++looked) {
    const PartRun& part = parts[link.next_digest++ % parts.size()];
    if (part.layout.shard == shard && steps_at_shard(part) > 0)
      heartbeat.digests.push_back({part.layout.part, part.n, part.log_digest});
  }
  send(shard, std::move(heartbeat), {}, actions);
  if (joining()) repeat_joining(shard, now, actions);
  request_replicated(shard);
}

Error SessionCore::Impl::not_reached(uint32_t shard, TimeNs now) const {
  const Link& link = links[shard];
  const std::string other = link.other_address();
  const std::string tried = "tried for " + seconds_text(now - started_at) + ", " + std::to_string(link.attempts) +
                            (link.attempts == 1 ? " attempt" : " attempts") +
                            (other.empty() ? "" : ", also at " + other);
  Error why = link.trouble();
  if (why.message.empty()) {
    const bool greeting = link.state == LinkState::kGreeting;
    why = {ErrorCode::kUnavailable, greeting ? kNoAnswer : link.accepted ? kForeign : "is the server running there?"};
  }
  // A reason at either address tells more than that no shard answers.
  const Error& there = link.trouble_at(other);
  if (why.code == ErrorCode::kUnavailable && !there.message.empty()) why.code = there.code;
  return {why.code,
          shard_text(shard) + " could not be joined (" + tried + "): " + why.message + link.other_trouble_text()};
}

void SessionCore::Impl::tick_link(uint32_t shard, TimeNs now, Actions& actions) {
  Link& link = links[shard];
  if (link.ever_welcomed && now - link.last_heard >= config.shard_silence) {
    const std::string& sentence = link.trouble().message;
    const std::string trouble = sentence.empty() ? "" : " (" + sentence + ")";
    end_session({ErrorCode::kUnavailable,
                 shard_text(shard) + " has been silent for " + seconds_text(now - link.last_heard) + trouble},
                now, actions);
    return;
  }
  switch (link.state) {
    case LinkState::kDown:
      if (now < link.next_attempt) return;
      if (std::string other = link.other_address(); !other.empty()) link.address = std::move(other);
      open(shard, now, actions);
      return;
    case LinkState::kConnecting:
      if (now >= link.next_attempt)
        on_disconnected(shard, {ErrorCode::kUnavailable, "no answer to the connection attempt"}, now, actions);
      return;
    case LinkState::kGreeting:
      if (now < link.next_attempt) return;
      if (link.asked_since && now - *link.asked_since >= attempt_max(link))
        return on_disconnected(shard, {ErrorCode::kUnavailable, kNoAnswer}, now, actions);
      say_hello(shard, now, actions);
      return;
    case LinkState::kWelcomed: break;
  }
  if (now - link.last_heard >= half_open_after(config)) {
    on_disconnected(shard, {ErrorCode::kUnavailable, "nothing heard for " + seconds_text(now - link.last_heard)}, now,
                    actions);
    return;
  }
  if (now >= link.next_heartbeat) send_heartbeat(shard, now, actions);
}

/// Returns when joining fails. A shard that refuses for now is alive. It waits until an earlier run of the job, or an
/// earlier process of this worker, counts as dead. So the deadline is dead_after later where every shard that has not
/// welcomed this worker refuses for now.
TimeNs SessionCore::Impl::join_deadline() const {
  const bool refused =
      std::ranges::all_of(links, [](const Link& link) { return link.ever_welcomed || link.refused_for_now; });
  const TimeNs more = refused ? TimeNs{config.spec.dead_after.count()} * kNsPerMs : 0;
  return started_at + config.connect_timeout + more;
}

void SessionCore::Impl::on_tick(TimeNs now, Actions& actions) {
  for (uint32_t shard = 0; shard < links.size() && !over(); ++shard) tick_link(shard, now, actions);
  if (over()) return;
  if (two_numbers && now >= two_numbers->first) return end_session(two_numbers->second, now, actions);
  if (phase == Phase::kJoining && now >= join_deadline()) {
    const auto missing = std::ranges::find_if(links, [](const Link& link) { return !link.ever_welcomed; });
    if (missing != links.end()) {
      end_session(not_reached(static_cast<uint32_t>(missing - links.begin()), now), now, actions);
      return;
    }
  }
  if (phase == Phase::kRejoining && now - progress_at >= config.shard_silence) return give_up_rejoin(now, actions);
  if (quarantine_pending) quarantine_residuals();
  if (now >= resend_check_at) resend_due(now, actions);
  if (by_switch()) tick_path(now, actions);
  end_pass(now, actions);
}

TimeNs SessionCore::Impl::next_deadline() const {
  if (over()) return kNever;
  TimeNs next = resend_check_at;
  if (by_switch()) next = std::min(next, switch_path->next_deadline());
  if (phase == Phase::kJoining) next = std::min(next, join_deadline());
  if (two_numbers) next = std::min(next, two_numbers->first);
  if (phase == Phase::kRejoining) next = std::min(next, progress_at + config.shard_silence);
  for (const Link& link : links) {
    if (link.ever_welcomed) next = std::min(next, link.last_heard + config.shard_silence);
    if (link.state == LinkState::kWelcomed) {
      next = std::min({next, link.next_heartbeat, link.last_heard + half_open_after(config)});
    } else {
      next = std::min(next, link.next_attempt);
    }
  }
  return next;
}

std::string SessionCore::Impl::waiting_for() const {
  if (phase == Phase::kJoining) {
    for (uint32_t shard = 0; shard < links.size(); ++shard) {
      if (links[shard].ever_welcomed) continue;
      const std::string& trouble = links[shard].trouble().message;
      return shard_text(shard) + " has not admitted this worker yet" + (trouble.empty() ? "" : ": " + trouble) +
             links[shard].other_trouble_text();
    }
  }
  if (phase == Phase::kWaiting) {
    std::vector<uint32_t> missing;
    for (uint32_t worker = 0; worker < config.spec.workers; ++worker) {
      if (std::ranges::find(membership.members, worker, &protocol::Member::worker) == membership.members.end())
        missing.push_back(worker);
    }
    return "of " + std::to_string(config.spec.workers) + " workers these have not joined: " + numbers_text(missing);
  }
  if (phase == Phase::kRejoining) return rejoining_text();
  std::string unpushed = push_waits_for();
  const bool needs_all_tensors = clip.on() || by_switch();
  if (needs_all_tensors && !unpushed.empty()) return unpushed;
  if (std::string missing = awaiting_acks_text(); !missing.empty()) return missing;
  if (by_switch()) {
    if (std::string missing = switch_path->waiting_for(); !missing.empty()) return missing;
  }
  for (uint32_t shard = 0; shard < links.size(); ++shard) {
    if (links[shard].state != LinkState::kWelcomed) {
      return shard_text(shard) + " is not connected: " + links[shard].trouble().message;
    }
    if (links[shard].recovers) return shard_text(shard) + " recovers the steps of the job";
    // The push of another tensor may follow in time: then a worker that is missing is the reason.
    const bool blocked_on_others =
        std::ranges::any_of(links[shard].waited_for, [&](uint32_t worker) { return worker != config.worker; });
    if (blocked_on_others || (unpushed.empty() && !links[shard].waited_for.empty())) {
      return shard_text(shard) + " is blocked on contributions of workers " + numbers_text(links[shard].waited_for);
    }
  }
  return unpushed.empty() ? "no shard reports a worker that it is blocked on" : unpushed;
}

}  // namespace millrace::worker
