#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>

#include "worker/core/core_impl.h"

/// What shards say: admission, refusals, views (ROUNDS.md, rule 7), what became of contributions.
namespace millrace::worker {
namespace {

constexpr uint32_t kRefusalsMax =
    20;  ///< of one contribution, each with "try again"; not of one for which there is no room
constexpr uint32_t kBackoffDoublings = 6;

template <typename T>
const T* as(const protocol::Message& message) {
  return std::get_if<T>(&message.body);
}

}  // namespace

void SessionCore::Impl::on_message(uint32_t shard, protocol::Message&& message, TimeNs now, Actions& actions) {
  if (over()) return;
  Link& link = links[shard];
  link.last_heard = now;
  if (const auto* refuse = as<protocol::Refuse>(message)) return on_refuse(shard, *refuse, now, actions);
  if (const auto* abort = as<protocol::Abort>(message)) {
    return end_session({abort->code, shard_text(shard) + " ended the job: " + abort->sentence}, now, actions);
  }
  if (const auto* goodbye = as<protocol::Goodbye>(message)) {
    const std::string why = goodbye->sentence.empty() ? "" : ": " + goodbye->sentence;
    return end_session({ErrorCode::kUnavailable, shard_text(shard) + " has left the job" + why}, now, actions);
  }
  if (const auto* welcome = as<protocol::Welcome>(message)) {
    return on_welcome(shard, message.header, *welcome, now, actions);
  }
  if (!header_fits(shard, message.header, now, actions)) return;
  if (const auto* change = as<protocol::ViewChange>(message)) {
    if (adopt_view(shard, change->view, now, actions)) begin_when_all_joined(actions);
  } else if (std::holds_alternative<protocol::Update>(message.body)) {
    on_update(shard, std::move(message), now, actions);
  } else if (const auto* duplicate = as<protocol::Duplicate>(message)) {
    on_duplicate(shard, *duplicate);
  } else if (const auto* settled = as<protocol::Settled>(message)) {
    on_settled(shard, *settled, now, actions);
  } else if (const auto* heartbeat = as<protocol::Heartbeat>(message)) {
    on_heartbeat(shard, *heartbeat, now);
  } else {
    ++counters.dropped_unexpected;
  }
}

bool SessionCore::Impl::header_fits(uint32_t shard, const protocol::Header& header, TimeNs now, Actions& actions) {
  const Link& link = links[shard];
  if (!link.ever_welcomed || header.job != view.job || header.worker != config.worker || header.shard != shard) {
    ++counters.dropped_unexpected;
    return false;
  }
  if (header.shard_life > link.shard_life && !view.started) {
    // Nothing was in that shard yet: its Welcome will tell whether the job goes on with its new start.
    ++counters.dropped_unexpected;
    return false;
  }
  if (header.shard_life > link.shard_life) {
    end_session({ErrorCode::kShardLost, shard_text(shard) + " was restarted and has lost its state (start " +
                                            std::to_string(header.shard_life) + ", the job knows start " +
                                            std::to_string(link.shard_life) + ")"},
                now, actions);
    return false;
  }
  if (header.shard_life < link.shard_life || header.life != life) {
    // An earlier start of the shard that is still alive, or words for an earlier life of this worker.
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
    return end_session(
        {ErrorCode::kShardMapMismatch, "the server at " + link.address + " is shard " + std::to_string(header.shard) +
                                           ", but stands at place " + std::to_string(shard) + " of the list of shards"},
        now, actions);
  }
  if (link.ever_welcomed && view.started && header.shard_life != link.shard_life) {
    return end_session({ErrorCode::kShardLost, shard_text(shard) + " was restarted and has lost its state"}, now,
                       actions);
  }
  link.shard_life = header.shard_life;
  link.message_bytes_max = welcome.message_bytes_max;
  if (!adopt_view(shard, welcome.view, now, actions)) {
    // Admitted there, if not to the job of the others: that shard is not to wait for this worker.
    if (link.state == LinkState::kGreeting)
      actions.sends.push_back(
          {shard, {header, protocol::Goodbye{protocol::Goodbye::Reason::kFailed, error->message}, {}}});
    return;
  }
  const bool again = std::exchange(link.ever_welcomed, true);
  const bool was_down = link.state != LinkState::kWelcomed;
  link.state = LinkState::kWelcomed;
  link.retry_interval = 0;
  link.last_trouble.clear();
  link.next_heartbeat = now + TimeNs{config.spec.heartbeat_ms} * kNsPerMs;
  begin_when_all_joined(actions);
  if (!was_down) return;
  if (again) {
    ++counters.reconnects;
    log(actions, Severity::kInfo, "connected to " + shard_text(shard) + " again");
    // Acks may have been lost with the connection: the shard gets all of them.
    link.acks.clear();
    // What was decided meanwhile without this worker, no resend of its own would bring: it is asked for.
    const bool ask = !waits_for_all();
    for (const PartRun& part : parts) {
      if (part.layout.shard == shard && (part.n > 0 || ask)) link.acks.push_back({part.layout.part, part.n, ask});
    }
  }
  resend_outstanding(shard, now, actions);
}

void SessionCore::Impl::on_refuse(uint32_t shard, const protocol::Refuse& refuse, TimeNs now, Actions& actions) {
  if (refuse.about_contribution) return on_refused_contribution(shard, refuse, now, actions);
  Link& link = links[shard];
  if (!refuse.retry) {
    return end_session({refuse.code, shard_text(shard) + " refuses: " + refuse.sentence}, now, actions);
  }
  if (link.last_trouble != refuse.sentence) {
    log(actions, Severity::kWarning, shard_text(shard) + " refuses for now: " + refuse.sentence);
  }
  link.last_trouble = refuse.sentence;
  link.trouble_code = refuse.code;
  if (link.state != LinkState::kDown) link.state = LinkState::kGreeting;
  schedule_retry(link, now);
}

void SessionCore::Impl::on_refused_contribution(uint32_t shard, const protocol::Refuse& refuse, TimeNs now,
                                                Actions& actions) {
  Outstanding* out = find_outstanding(shard, refuse.part, refuse.step);
  if (out == nullptr) {
    ++counters.dropped_unexpected;
    return;
  }
  const std::string about = "the contribution to part " + std::to_string(refuse.part) + ", step " +
                            std::to_string(refuse.step) + ": " + refuse.sentence;
  // A shard without room asks for patience, however long others need to make room: it ends the job itself when that is hopeless.
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

void SessionCore::Impl::on_duplicate(uint32_t shard, const protocol::Duplicate& duplicate) {
  ++counters.duplicates;
  Outstanding* out = find_outstanding(shard, duplicate.part, duplicate.step);
  if (out != nullptr) out->known = true;
}

void SessionCore::Impl::on_settled(uint32_t shard, const protocol::Settled& settled, TimeNs now, Actions& actions) {
  Outstanding* out = find_outstanding(shard, settled.part, settled.step);
  if (out == nullptr || settled.step != parts[settled.part].n) {
    ++counters.dropped_stale;
    return;
  }
  PartRun& part = parts[settled.part];
  BucketRun& run = buckets[part.layout.bucket];
  if (settled.counted) {
    // It was added, but the update that would say what of it was carried is gone for good.
    const StreamView<float> sent = out->sent.view;
    for (size_t i = 0; i < sent.values.size(); ++i) {
      counters.unreturnable += static_cast<double>(sent.values[i]);
      run.bucket->lose(part.layout.begin + (sent.dense ? i : sent.indices[i]), static_cast<double>(sent.values[i]));
    }
  } else {
    ++counters.not_counted;
    run.bucket->give_back(part.at, out->sent.copy());
  }
  part.outstanding.pop_front();
  end_session(
      {ErrorCode::kStale, shard_text(shard) + " has forgotten the update of part " + std::to_string(settled.part) +
                              ", step " + std::to_string(settled.step) +
                              ": this worker is too far behind and needs a resync, which this version does not have"},
      now, actions);
}

bool SessionCore::Impl::shards_agree(uint32_t shard, const protocol::JobView& next, TimeNs now, Actions& actions) {
  const auto mismatch = [&](const std::string& what) {
    end_session({ErrorCode::kShardMapMismatch, shard_text(shard) + " " + what +
                                                   ": do all shards use one membership table, and "
                                                   "does the list of shards name each of them once?"},
                now, actions);
    return false;
  };
  if (next.shards.size() != links.size()) {
    return mismatch("knows " + std::to_string(next.shards.size()) + " shards, this worker " +
                    std::to_string(links.size()));
  }
  if (view.job == 0) return true;
  if (next.job != view.job) {
    return mismatch("knows the job as number " + std::to_string(next.job) + ", another shard as number " +
                    std::to_string(view.job));
  }
  if (next.epoch == view.epoch && !(next == view)) return mismatch("disagrees with another shard about one epoch");
  if (next.epoch <= view.epoch) return true;
  for (uint32_t other = 0; other < links.size(); ++other) {
    // Workers may come before a shard does, and before the job starts there is nothing in a shard that could be lost.
    if (view.shards[other].life == 0 || !view.started) continue;
    if (next.shards[other].life == view.shards[other].life) {
      if (next.shards[other].address == view.shards[other].address) continue;
      return mismatch("has another address for shard " + std::to_string(other));
    }
    end_session({ErrorCode::kShardLost, shard_text(other) + " was restarted and has lost its state"}, now, actions);
    return false;
  }
  return true;
}

bool SessionCore::Impl::find_myself(uint32_t shard, TimeNs now, Actions& actions) {
  const auto own = std::ranges::find(view.members, config.worker, &protocol::Member::worker);
  const std::string who = "worker " + std::to_string(config.worker);
  if (own == view.members.end()) {
    end_session(
        {ErrorCode::kNotAMember, who + " was removed from the job (epoch " + std::to_string(view.epoch) + ", said " +
                                     shard_text(shard) + "): it was silent for too long, or said that it failed"},
        now, actions);
    return false;
  }
  if (own->nonce != config.nonce) {
    end_session(
        {ErrorCode::kIdentityInUse, "another process is " + who + " of this job now, said " + shard_text(shard)}, now,
        actions);
    return false;
  }
  // Removed for silence and admitted again before the job started: nothing was sent under the earlier life.
  const bool unsent = phase == Phase::kJoining || phase == Phase::kWaiting;
  if (life != 0 && own->life != life && !unsent) {
    end_session({ErrorCode::kNotAMember, who + " was removed from the job and is back under another life"}, now,
                actions);
    return false;
  }
  life = own->life;
  return true;
}

bool SessionCore::Impl::adopt_view(uint32_t shard, const protocol::JobView& next, TimeNs now, Actions& actions) {
  if (!shards_agree(shard, next, now, actions)) return false;
  if (next.epoch <= view.epoch && view.job != 0) return true;
  const bool first = view.job == 0;
  view = next;
  if (!find_myself(shard, now, actions)) return false;
  if (first) return true;
  if (phase == Phase::kRunning || phase == Phase::kFinishing) {
    log(actions, Severity::kInfo,
        "epoch " + std::to_string(view.epoch) + ": " + std::to_string(view.members.size()) + " workers");
    // Rule 7: what is in flight goes out again, the same bytes, in the new epoch.
    resend_outstanding(kAllShards, now, actions);
  }
  replay_held(now, actions);
  return !over();
}

void SessionCore::Impl::begin_when_all_joined(Actions& actions) {
  if (phase == Phase::kJoining && std::ranges::all_of(links, &Link::ever_welcomed)) {
    set_phase(Phase::kWaiting);
    log(actions, Severity::kInfo,
        "joined job '" + config.spec.name + "' as worker " + std::to_string(config.worker) + ", life " +
            std::to_string(life));
  }
  if (phase == Phase::kWaiting && view.started) {
    set_phase(Phase::kRunning);
    log(actions, Severity::kInfo, "all " + std::to_string(config.spec.workers) + " workers have joined");
  }
}

}  // namespace millrace::worker
