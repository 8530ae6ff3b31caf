#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>

#include "worker/core/session_core_impl.h"

/// Handles the shards' messages: admission, refusals, outcomes of contributions.
namespace millrace::worker {
namespace {

constexpr uint32_t kRefusalsMax =
    20;  ///< of one contribution, each with "try again"; not of one for which there is no room
constexpr uint32_t kBackoffDoublings = 6;

/// Bound on the delay of a contribution's retransmission by other bytes, once a later heartbeat is answered. By then
/// the shard has the contribution, or has dropped it: only its update may still arrive.
constexpr TimeNs kDelayMax = 60 * kNsPerS;

/// Returns whether the shard itself has sent the message. After moves a spare, or another shard, may have its former
/// address. A spare's answer has no incarnation.
bool is_of_shard(uint32_t shard, const protocol::Header& header, const protocol::Membership& membership) {
  const uint64_t least = membership.shards.empty() ? 1 : std::max<uint64_t>(membership.shards[shard].incarnation, 1);
  return header.shard == shard && header.shard_incarnation >= least;
}

/// Returns whether the shard may be elsewhere when the process that answers is not this shard, or refuses as such.
bool may_have_moved(const std::vector<Link>& links, uint32_t shard, const protocol::Header& header,
                    const protocol::Membership& membership) {
  const Link& link = links[shard];
  if (link.ever_welcomed) return !membership.finished && !is_of_shard(shard, header, membership);
  if (membership.job != 0) return !link.other_address().empty();
  // A shard that has not refused may send a membership.
  return !std::ranges::all_of(
      links, [&](const Link& one) { return &one == &link || one.trouble().code == ErrorCode::kShardMapMismatch; });
}

template <typename T>
const T* as(const protocol::Message& message) {
  return std::get_if<T>(&message.body);
}

}  // namespace

void SessionCore::Impl::on_message(uint32_t shard, protocol::Message&& message, TimeNs now, Actions& actions) {
  if (over()) return;
  const auto* refuse = as<protocol::Refuse>(message);
  const bool by_another =
      refuse != nullptr && !refuse->about_contribution && !is_of_shard(shard, message.header, membership);
  // Otherwise a spare at the shard's former address would delay the end of the session without limit.
  if (!by_another && !as<protocol::Welcome>(message)) links[shard].last_heard = now;
  if (refuse != nullptr) return on_refuse(shard, message.header, *refuse, now, actions);
  if (const auto* abort = as<protocol::Abort>(message)) return on_abort(shard, *abort, now, actions);
  if (const auto* goodbye = as<protocol::Goodbye>(message)) {
    const std::string why = goodbye->sentence.empty() ? "" : ": " + goodbye->sentence;
    return end_session({ErrorCode::kUnavailable, shard_text(shard) + " has left the job" + why}, now, actions);
  }
  if (const auto* welcome = as<protocol::Welcome>(message)) {
    return on_welcome(shard, message.header, *welcome, now, actions);
  }
  if (!header_fits(shard, message)) return;
  if (const auto* change = as<protocol::MembershipChange>(message)) {
    if (!adopt_membership(shard, change->membership, now, actions)) return;
    take_decided(shard, *change);
    begin_when_all_joined(now, actions);
  } else if (std::holds_alternative<protocol::Update>(message.body)) {
    on_update(shard, std::move(message), now, actions);
  } else if (const auto* duplicate = as<protocol::Duplicate>(message)) {
    on_duplicate(shard, *duplicate, now);
  } else if (const auto* settled = as<protocol::StepDecided>(message)) {
    on_step_decided(shard, *settled, now, actions);
  } else if (const auto* heartbeat = as<protocol::Heartbeat>(message)) {
    on_heartbeat(shard, *heartbeat, now);
  } else if (std::holds_alternative<protocol::Ack>(message.body)) {
    on_replicated(shard, message, actions);
  } else {
    on_message_of_returns(shard, message, now, actions);
  }
}

void SessionCore::Impl::on_message_of_returns(uint32_t shard, const protocol::Message& message, TimeNs now,
                                              Actions& actions) {
  if (message.header.epoch != membership.epoch || !is_member) {
    // All of these are about one epoch, whose membership comes first.
    ++counters.dropped_stale;
  } else if (std::holds_alternative<protocol::Collect>(message.body)) {
    send_state(shard, actions);
  } else if (const auto* fetch = as<protocol::Fetch>(message)) {
    on_fetch(shard, *fetch, actions);
  } else if (const auto* settle = as<protocol::Settle>(message)) {
    on_settle(shard, *settle, now, actions);
  } else if (const auto* request = as<protocol::SnapshotRequest>(message)) {
    on_snapshot_request(shard, *request, actions);
  } else if (std::holds_alternative<protocol::Snapshot>(message.body)) {
    on_snapshot(shard, message, now, actions);
  } else {
    ++counters.dropped_unexpected;
  }
}

void SessionCore::Impl::on_abort(uint32_t shard, const protocol::Abort& abort, TimeNs now, Actions& actions) {
  if (abort.code == ErrorCode::kShardLost && links[shard].ever_welcomed && membership.started) {
    // The process is no longer this shard, or has just become it. The core greets it again; if the job has ended, the
    // answer reports it.
    return on_disconnected(shard, {ErrorCode::kUnavailable, abort.sentence}, now, actions);
  }
  end_session({abort.code, shard_text(shard) + " ended the job: " + abort.sentence}, now, actions);
}

bool SessionCore::Impl::header_fits(uint32_t shard, const protocol::Message& message) {
  const protocol::Header& header = message.header;
  const Link& link = links[shard];
  if (!link.ever_welcomed || header.job != membership.job || header.worker != config.worker || header.shard != shard) {
    ++counters.dropped_unexpected;
    return false;
  }
  // A membership that gives this worker another incarnation comes from the table. It counts from any sender.
  const auto* change = as<protocol::MembershipChange>(message);
  if (change != nullptr && change->membership.job == membership.job &&
      incarnation_in(change->membership) == header.incarnation)
    return true;
  if (header.shard_incarnation != link.shard_incarnation || header.incarnation != incarnation) {
    // Of an earlier start of the shard that is still alive, or of a later one whose Welcome has not arrived. Or a
    // message for another incarnation of this worker.
    ++counters.dropped_unexpected;
    return false;
  }
  return true;
}

void SessionCore::Impl::on_welcome(uint32_t shard, const protocol::Header& header, const protocol::Welcome& welcome,
                                   TimeNs now, Actions& actions) {
  Link& link = links[shard];
  if (link.state == LinkState::kDown || link.state == LinkState::kConnecting) {
    ++counters.dropped_unexpected;
    return;
  }
  if (welcome.version < protocol::kProtocolVersionMin || welcome.version > protocol::kProtocolVersion) {
    return end_session({ErrorCode::kVersionMismatch,
                        shard_text(shard) + " speaks protocol version " + std::to_string(welcome.version) + " (" +
                            welcome.software + "), this worker " + std::to_string(protocol::kProtocolVersion)},
                       now, actions);
  }
  if (header.shard != shard) {
    const Error why = {ErrorCode::kShardMapMismatch, "the server at " + link.address + " is shard " +
                                                         std::to_string(header.shard) + ", but stands at place " +
                                                         std::to_string(shard) + " of the list of shards"};
    if (may_have_moved(links, shard, header, membership)) return on_disconnected(shard, why, now, actions);
    return end_session(why, now, actions);
  }
  link.shard_incarnation = header.shard_incarnation;
  link.message_bytes_max = welcome.message_bytes_max;
  link.version = welcome.version;
  if (!adopt_membership(shard, welcome.membership, now, actions)) return;
  if (membership.started && header.shard_incarnation != membership.shards[shard].incarnation) {
    ++counters.dropped_unexpected;
    link.shard_incarnation = membership.shards[shard].incarnation;
    return on_disconnected(
        shard,
        {ErrorCode::kUnavailable, "the process that answers there is not the one that the membership table names"}, now,
        actions);
  }
  link.last_heard = now;
  const bool again = std::exchange(link.ever_welcomed, true);
  const bool was_down = link.state != LinkState::kWelcomed;
  link.state = LinkState::kWelcomed;
  link.arriving.restart();
  link.retry_interval = 0;
  link.troubles.clear();
  link.asked_since.reset();
  link.refused_for_now = false;
  link.in_use_since.reset();
  link.next_heartbeat = now + TimeNs{config.spec.heartbeat.count()} * kNsPerMs;
  progress_at = now;
  begin_when_all_joined(now, actions);
  if (!was_down) return;
  link.acks.clear();
  if (joining()) send_state(shard, actions);
  if (again) {
    ++counters.reconnects;
    log(actions, Severity::kInfo, "connected to " + shard_text(shard) + " again");
  }
  if (again && synced()) {
    // Acks may have been lost with the connection: the shard gets all of them.
    // No retransmission brings the updates that were decided without this worker meanwhile: it asks for them.
    const bool ask = !is_in_every_step();
    for (const PartRun& part : parts) {
      if (part.layout.shard == shard && (steps_at_shard(part) > 0 || ask))
        link.acks.push_back({part.layout.part, steps_at_shard(part), ask});
    }
  }
  resend_outstanding(shard, now, actions);
}

void SessionCore::Impl::on_refuse(uint32_t shard, const protocol::Header& header, const protocol::Refuse& refuse,
                                  TimeNs now, Actions& actions) {
  if (refuse.about_contribution) return on_refused_contribution(shard, refuse, now, actions);
  Link& link = links[shard];
  link.asked_since.reset();
  if (!refuse.retry) {
    if (refuse.code == ErrorCode::kShardMapMismatch && may_have_moved(links, shard, header, membership))
      return on_disconnected(shard, {refuse.code, refuse.sentence}, now, actions);
    return end_session({refuse.code, shard_text(shard) + " refuses: " + refuse.sentence}, now, actions);
  }
  if (link.trouble().message != refuse.sentence) {
    log(actions, Severity::kWarning, shard_text(shard) + " refuses for now: " + refuse.sentence);
  }
  if (refuse.code == ErrorCode::kIdentityInUse && !link.in_use_since) link.in_use_since = now;
  link.troubles[link.address] = {refuse.code, refuse.sentence};
  // A spare that waits at the shard's earlier address refuses so for ever. The shard's own reason passes.
  const bool by_shard = link.address == link.named || is_of_shard(shard, header, membership);
  const bool elsewhere = refuse.code == ErrorCode::kUnavailable && !by_shard && !link.other_address().empty();
  link.refused_for_now = !elsewhere;
  if (link.state != LinkState::kDown) link.state = elsewhere ? LinkState::kDown : LinkState::kGreeting;
  schedule_retry(link, now);
}

void SessionCore::Impl::on_refused_contribution(uint32_t shard, const protocol::Refuse& refuse, TimeNs now,
                                                Actions& actions) {
  Outstanding* out = find_outstanding(shard, refuse.part, refuse.step);
  if (out == nullptr) {
    ++counters.dropped_unexpected;
    return;
  }
  out->resend_interval = 0;  // nothing was lost
  if (out->shortened && refuse.retry) return send_plain(parts[refuse.part], *out, now, actions);
  const std::string about = "the contribution to part " + std::to_string(refuse.part) + ", step " +
                            std::to_string(refuse.step) + ": " + refuse.sentence;
  // A shard without room asks for time, even a long time until others make room. It ends the job itself when that is
  // hopeless.
  const bool busy = refuse.code == ErrorCode::kUnavailable;
  ++out->refusals;
  if (!refuse.retry || (!busy && out->refusals > kRefusalsMax)) {
    return end_session({refuse.code, shard_text(shard) + " refuses " + about}, now, actions);
  }
  if (out->refusals == 1) log(actions, Severity::kWarning, shard_text(shard) + " refuses for now " + about);
  out->known = false;
  const TimeNs pause = config.reconnect_after << std::min(out->refusals - 1, kBackoffDoublings);
  out->resend_at = now + jittered(std::min(pause, config.reconnect_after_max));
  resend_check_at = std::min(resend_check_at, out->resend_at);
}

void SessionCore::Impl::send_plain(PartRun& part, Outstanding& out, TimeNs now, Actions& actions) {
  ++counters.history_refused;
  part.plain_until = out.step + kHistoryPeriod;
  send_contribution(part, out, now, actions);
}

void SessionCore::Impl::on_duplicate(uint32_t shard, const protocol::Duplicate& duplicate, TimeNs now) {
  ++counters.duplicates;
  Outstanding* out = find_outstanding(shard, duplicate.part, duplicate.step);
  if (out == nullptr) return;
  out->known = true;
  // Not one that asks for an update which did not come.
  if (!out->asked_for) out->resend_at = now + jittered(config.resend_after_max);
  out->refusals = 0;  // a later refusal has another cause
}

void SessionCore::Impl::on_heartbeat(uint32_t shard, const protocol::Heartbeat& heartbeat, TimeNs now) {
  links[shard].waited_for = heartbeat.waited_for;
  for (PartRun& part : parts) {
    for (Outstanding& out : part.outstanding) {
      if (part.layout.shard == shard && out.sent_heartbeat < heartbeat.sequence)
        out.delayed_until = std::min(out.delayed_until, now + kDelayMax);
    }
  }
  if (!synced()) return;
  // The heartbeat left after the updates: a decided update that did not arrive is lost (a full queue drops messages).
  for (PartRun& part : parts) {
    if (part.layout.shard == shard && part.n < heartbeat.steps_applied) ask_again(part, now);
  }
  for (const protocol::Ack::Entry& decided : heartbeat.decided) {
    if (decided.part >= parts.size() || parts[decided.part].layout.shard != shard) continue;
    if (parts[decided.part].n < decided.n) ask_again(parts[decided.part], now);
  }
}

void SessionCore::Impl::on_step_decided(uint32_t shard, const protocol::StepDecided& settled, TimeNs now,
                                        Actions& actions) {
  Outstanding* out = find_outstanding(shard, settled.part, settled.step);
  if (out == nullptr || settled.step != parts[settled.part].n || !synced() || asynchronous()) {
    ++counters.dropped_stale;
    return;
  }
  const std::string why = shard_text(shard) + " has forgotten the update of part " + std::to_string(settled.part) +
                          ", step " + std::to_string(settled.step) + ": this worker is too far behind";
  // A rejoin resolves the contribution.
  if (may_rejoin()) return resign(shard, why, now, actions);
  PartRun& part = parts[settled.part];
  if (settled.counted) {
    // The shard added it, but the update with its carried values is permanently lost.
    lose_unreturnable(part, *out);
  } else {
    give_back(part, *out);
  }
  part.outstanding.pop_front();
  end_session({ErrorCode::kStale, why + " and needs a resync, for which there are no weights attached"}, now, actions);
}

}  // namespace millrace::worker
