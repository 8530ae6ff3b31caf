#include <algorithm>
#include <string>
#include <utility>

#include "protocol/messages/log_branch.h"
#include "worker/core/session_core_impl.h"

/// Views (R7b), and this worker's place in them: getting the first one, losing it, getting another (R9).
namespace millrace::worker {
namespace {

/// Returns whether the shard recovers, where it did in `before` or not. A membership that skips epochs may hide that it
/// does, never that it has begun a branch (R8e).
bool recovers_in(const protocol::Membership& now, const protocol::Membership& before, uint32_t shard, bool recovered) {
  if (now.cut == now.epoch) return true;
  if (protocol::branch_of(now, shard) != protocol::branch_of(before, shard)) return false;
  const uint64_t was = before.shards[shard].incarnation;
  return recovered || (before.started && was != 0 && now.shards[shard].incarnation != was);
}

/// The time in which a shard that has ended a job should send the reason.
constexpr TimeNs kTwoNumbersMax = 2 * kNsPerS;

Error of_mismatch(const std::string& shard, const std::string& what) {
  return {ErrorCode::kShardMapMismatch, shard + " " + what +
                                            ": do all shards use one membership table, and does the list of shards "
                                            "name each of them once?"};
}

}  // namespace

uint64_t SessionCore::Impl::incarnation_in(const protocol::Membership& of) const {
  const auto own = std::ranges::find(of.members, config.worker, &protocol::Member::worker);
  return own == of.members.end() || own->nonce != config.nonce ? 0 : own->incarnation;
}

bool SessionCore::Impl::shards_agree(uint32_t shard, const protocol::Membership& next, TimeNs now, Actions& actions) {
  const auto mismatch = [&](const std::string& what) {
    end_session(of_mismatch(shard_text(shard), what), now, actions);
    return false;
  };
  if (next.shards.size() != links.size()) {
    return mismatch("knows " + std::to_string(next.shards.size()) + " shards, this worker " +
                    std::to_string(links.size()));
  }
  if (membership.job == 0) return true;
  if (next.job != membership.job) {
    const std::string what = "knows the job as number " + std::to_string(next.job) + ", another shard as number " +
                             std::to_string(membership.job);
    if (phase != Phase::kJoining) return mismatch(what);
    // One of the two may have ended just now (R11d). Then its shard sends the reason.
    if (!two_numbers) {
      two_numbers.emplace(std::min(now + kTwoNumbersMax, join_deadline()), of_mismatch(shard_text(shard), what));
    }
    return false;
  }
  if (next.epoch == membership.epoch && !(next == membership))
    return mismatch("disagrees with another shard about one epoch");
  if (next.epoch <= membership.epoch) return true;
  for (uint32_t other = 0; other < links.size(); ++other) {
    // Workers may come before a shard does.
    if (membership.shards[other].incarnation == 0 || !membership.started) continue;
    if (next.shards[other].incarnation < membership.shards[other].incarnation)
      return mismatch("knows an earlier start of shard " + std::to_string(other));
  }
  return true;
}

bool SessionCore::Impl::adopt_membership(uint32_t shard, const protocol::Membership& next, TimeNs now,
                                         Actions& actions) {
  if (!shards_agree(shard, next, now, actions)) return false;
  if (next.epoch >
      std::exchange(links[shard].last_reported_epoch, std::max(links[shard].last_reported_epoch, next.epoch)))
    ++changes;
  if (next.epoch <= membership.epoch && membership.job != 0) return true;
  const protocol::Membership before = std::exchange(membership, next);
  forget_replicated();
  asked_at_rest.clear();
  follow_shards(before, now, actions);
  if (!find_myself(shard, before, now, actions)) return false;
  progress_at = now;
  if (by_switch()) follow_path(now, actions);
  if (before.job == 0 || over()) return !over();
  if (synced()) {
    if (sends_now()) {
      log(actions, Severity::kInfo,
          "epoch " + std::to_string(membership.epoch) + ": " + std::to_string(membership.members.size()) + " workers");
    }
    // R7b: sends the contributions in flight again, the same bytes, in the new epoch.
    resend_outstanding(kAllShards, now, actions);
  }
  replay_deferred(now, actions);
  return !over();
}

void SessionCore::Impl::follow_shards(const protocol::Membership& before, TimeNs now, Actions& actions) {
  for (uint32_t shard = 0; shard < links.size(); ++shard) {
    Link& link = links[shard];
    link.named = membership.shards[shard].address;
    if (link.state == LinkState::kConnecting && !link.other_address().empty())
      link.next_attempt = std::min(link.next_attempt, now + kAttemptOfTwoMax);
  }
  for (uint32_t shard = 0; shard < before.shards.size(); ++shard) {
    if (!by_switch()) links[shard].recovers = recovers_in(membership, before, shard, links[shard].recovers);
    const protocol::ShardEntry& was = before.shards[shard];
    const protocol::ShardEntry& is = membership.shards[shard];
    Link& link = links[shard];
    if (is.incarnation != was.incarnation) forget_decided(shard);
    // The address may come first: a shard that was started again elsewhere takes the job up when a worker comes to it.
    const bool moved = is.address != was.address;
    if (was.incarnation == 0 || (is.incarnation == was.incarnation && !moved) ||
        (is.incarnation != was.incarnation && link.shard_incarnation == is.incarnation))
      continue;
    log(actions, Severity::kInfo, shard_text(shard) + " was started again, at " + is.address);
    if (moved) link.address = is.address;
    if (is.incarnation != was.incarnation) {
      if (link.ever_welcomed) link.shard_incarnation = is.incarnation;
      // Words of the earlier process count no more, also those that wait here for their epoch.
      link.deferred_messages.clear();
    }
    link.retry_interval = 0;
    const bool under_way = link.state == LinkState::kConnecting || link.state == LinkState::kGreeting;
    if (!moved && under_way) continue;
    link.troubles = {{link.address, {ErrorCode::kUnavailable, "it was started again"}}};
    open(shard, now, actions);
  }
}

bool SessionCore::Impl::find_myself(uint32_t shard, const protocol::Membership& before, TimeNs now, Actions& actions) {
  const auto own = std::ranges::find(membership.members, config.worker, &protocol::Member::worker);
  const std::string who = "worker " + std::to_string(config.worker);
  if (own == membership.members.end()) {
    if (may_rejoin() && incarnation != 0 && !membership.finished) {
      if (is_member) {
        log(actions, Severity::kWarning, who + " was removed from the job and rejoins, said " + shard_text(shard));
      }
      on_evicted(now, actions);
      return true;
    }
    end_session({ErrorCode::kNotAMember, who + " was removed from the job (epoch " + std::to_string(membership.epoch) +
                                             ", said " + shard_text(shard) +
                                             "): it was silent for too long, or said that it failed"},
                now, actions);
    return false;
  }
  if (own->nonce != config.nonce) {
    end_session(
        {ErrorCode::kIdentityInUse, "another process is " + who + " of this job now, said " + shard_text(shard)}, now,
        actions);
    return false;
  }
  if (own->incarnation == resigned) return true;
  if (incarnation == 0) {
    adopt_first_membership(*own);
  } else if (own->incarnation != incarnation && !adopt_incarnation(*own, now, actions)) {
    return false;
  }
  is_member = true;
  return adopt_member_state(*own, before, now, actions);
}

void SessionCore::Impl::adopt_first_membership(const protocol::Member& own) {
  incarnation = own.incarnation;
  own_incarnations.insert(incarnation);
  if (own.state == protocol::MemberState::kJoining) {
    has_rejoined = true;
    take_saved_positions();
    return;
  }
  // A residual from before the job cannot have any of this job's contributions: all of it counts.
  membership_state = MembershipState::kSynced;
  synced_in = membership.epoch;
  for (BucketRun& run : buckets) {
    for (size_t at = 0; at < run.part_count; ++at) run.bucket->accept_quarantined(at);
    run.bucket->merge_quarantined();
  }
}

// Forgets steps that a shard had decided and that no member had when it died: they are void.
void SessionCore::Impl::forget_decided(uint32_t shard) {
  for (PartRun& part : parts) {
    if (part.layout.shard == shard) part.decided_without = 0;
  }
  ++changes;
}

void SessionCore::Impl::take_decided(uint32_t shard, const protocol::MembershipChange& change) {
  if (change.membership.epoch < synced_since || !synced()) return;
  auto decided = change.decided.begin();
  for (PartRun& part : parts) {
    if (part.layout.shard != shard || decided == change.decided.end()) continue;
    part.decided_without = std::max(part.decided_without, *decided++);
  }
}

bool SessionCore::Impl::adopt_incarnation(const protocol::Member& own, TimeNs now, Actions& actions) {
  // Evicted for silence and admitted again before the job started: nothing was sent under the earlier incarnation.
  const bool unsent = phase == Phase::kJoining || phase == Phase::kWaiting;
  if (!unsent || own.state == protocol::MemberState::kJoining) {
    if (!may_rejoin()) {
      end_session({ErrorCode::kNotAMember, "worker " + std::to_string(config.worker) +
                                               " was removed from the job and is a member under another incarnation"},
                  now, actions);
      return false;
    }
    on_evicted(now, actions);
  }
  if (own.incarnation != incarnation + 1) {  // another process had this worker's number for a time
    for (PartRun& part : parts) part.account.others_until = UINT64_MAX;
  }
  incarnation = own.incarnation;
  own_incarnations.insert(incarnation);
  return true;
}

bool SessionCore::Impl::adopt_member_state(const protocol::Member& own, const protocol::Membership& before, TimeNs now,
                                           Actions& actions) {
  if (own.state == protocol::MemberState::kJoining) {
    if (!membership.started) return true;
    if (config.spec.reproducible && !by_switch()) {
      end_session({ErrorCode::kUnsupported,
                   "the job runs and is reproducible: no worker can join it over shards, since only workers that have "
                   "all of its updates know the exponents of its grid; start the job again from the weights of one of "
                   "its workers, or run it with path switch, where joiners receive the exponents"},
                  now, actions);
      return false;
    }
    if (synced()) {
      on_evicted(now, actions);
      is_member = true;
    }
    begin_settling(actions);
    return true;
  }
  if (synced()) {
    synced_in = membership.epoch;
    return true;
  }
  if (membership.cut > before.epoch && membership.cut_worker == config.worker) {
    log(actions, Severity::kWarning,
        "the job continues from this worker's state: no member has a later one" +
            // Elsewhere the job would have ended (R10f).
            (membership.left == 0 || (config.spec.mode == protocol::Mode::kSynchronous && !by_switch())
                 ? std::string()
                 : "; " + std::to_string(membership.left) +
                       " workers have finished and left: where they had later steps, their models "
                       "differ from this worker's, so take one of theirs"));
    if (const Status cut = go_on_from_cut(); !cut) {
      end_session(cut.error(), now, actions);
      return false;
    }
  } else if (!all_settled()) {
    end_session({ErrorCode::kInternal,
                 "the job counts worker " + std::to_string(config.worker) + " as synced, which has not reported it"},
                now, actions);
    return false;
  }
  become_synced(now, actions);
  return !over();
}

void SessionCore::Impl::skip_uncoded(BucketRun& run) {
  while (run.selected > run.coded) {
    const PartRun& part = parts[run.order[run.next_in_order]];
    run.bucket->skip_part(part.at);
    part_is_coded(part.layout.bucket);
  }
}

void SessionCore::Impl::on_evicted(TimeNs now, Actions& actions) {
  is_member = false;
  was_evicted = true;
  resend_check_at = kNever;
  if (by_switch()) switch_path->leave_job();
  if (synced()) interrupted_incarnation = incarnation;
  if (membership.started) {
    has_rejoined = true;
    if (synced()) {
      membership_state = MembershipState::kEvicted;
      for (BucketRun& run : buckets) {
        skip_uncoded(run);
        run.sent.clear();
      }
      quarantine_residuals();
    }
    for (PartRun& part : parts) part.early.clear();
    if (phase == Phase::kRunning || phase == Phase::kFinishing) {
      finish_asked = finish_asked || phase == Phase::kFinishing;
      progress_at = now;
      set_phase(Phase::kRejoining);
    }
  }
  greet_again(now, actions);
}

void SessionCore::Impl::greet_again(TimeNs now, Actions& actions) {
  for (uint32_t shard = 0; shard < links.size(); ++shard) {
    Link& link = links[shard];
    link.acks.clear();
    link.deferred_messages.clear();
    if (link.state != LinkState::kWelcomed) continue;
    link.state = LinkState::kGreeting;
    say_hello(shard, now, actions);
  }
}

void SessionCore::Impl::resign(uint32_t shard, const std::string& why, TimeNs now, Actions& actions) {
  log(actions, Severity::kWarning, why + ", and rejoins");
  ++counters.resyncs;
  send(shard, protocol::Goodbye{protocol::Goodbye::Reason::kFailed, why}, {}, actions);
  resigned = incarnation;
  on_evicted(now, actions);
}

void SessionCore::Impl::quarantine_residuals() {
  quarantine_pending = false;
  for (BucketRun& run : buckets) {
    if (membership_state == MembershipState::kEvicted && !run.bucket->quarantine_residual()) quarantine_pending = true;
  }
}

void SessionCore::Impl::begin_when_all_joined(TimeNs now, Actions& actions) {
  if (phase == Phase::kJoining && std::ranges::all_of(links, &Link::ever_welcomed)) {
    set_phase(Phase::kWaiting);
    log(actions, Severity::kInfo,
        "joined job '" + config.spec.name + "' as worker " + std::to_string(config.worker) + ", incarnation " +
            std::to_string(incarnation));
  }
  if (phase != Phase::kWaiting || !membership.started) return;
  if (synced()) {
    set_phase(Phase::kRunning);
    log(actions, Severity::kInfo,
        has_rejoined ? "this worker takes part"
                     : "all " + std::to_string(config.spec.workers) + " workers have joined");
  } else {
    progress_at = now;
    set_phase(Phase::kRejoining);
    log(actions, Severity::kInfo, "the job runs: this worker joins");
  }
}

void SessionCore::Impl::become_synced(TimeNs now, Actions& actions) {
  if (membership_state == MembershipState::kEvicted) ++counters.returns;
  for (PartRun& part : parts) part.begins_at = membership_state == MembershipState::kLoaded ? part.n : 0;
  membership_state = MembershipState::kSynced;
  synced_in = synced_since = membership.epoch;
  quarantine_pending = false;
  for (PartRun& part : parts) {
    part.settled = part.stranded = false;
    part.incoming.reset();
    part.waiting_settle.reset();
    part.early.clear();
    part.decided_without = 0;
  }
  forget_handovers();
  left_step.reset();
  for (BucketRun& run : buckets) {
    run.bucket->merge_quarantined();
    run.steps_applied = UINT64_MAX;
    for (uint32_t part = run.first_part; part < run.first_part + run.part_count; ++part)
      run.steps_applied = std::min(run.steps_applied, parts[part].n);
    count_parts_behind(run);
    run.moved_at = now;
  }
  if (!restart_numbers(now, actions)) return;
  for (Link& link : links) link.acks.clear();
  for (PartRun& part : parts) {
    links[part.layout.shard].acks.push_back({part.layout.part, steps_at_shard(part), true});
    part.ask_at = now + jittered(config.resend_after);  // an update that overtakes the answer is no reason to ask again
  }
  log(actions, Severity::kInfo,
      "worker " + std::to_string(config.worker) + " takes part from epoch " + std::to_string(membership.epoch) +
          " on, incarnation " + std::to_string(incarnation));
  log_what_was_lost(actions);
  if (phase == Phase::kRejoining) set_phase(std::exchange(finish_asked, false) ? Phase::kFinishing : Phase::kRunning);
}

void SessionCore::Impl::log_what_was_lost(Actions& actions) {
  const double lost = counters.lost_off_log + counters.lost_cut;
  const double newly_lost = lost - std::exchange(last_reported_lost, lost);
  const uint64_t counted = counters.entries_void - std::exchange(last_reported_void, counters.entries_void);
  if (newly_lost == 0 && counted == 0) return;
  log(actions, Severity::kWarning,
      "worker " + std::to_string(config.worker) +
          ": no remaining worker had some of the steps that this worker had. Lost with them: " +
          std::to_string(counted) +
          " entries that were counted in them, and entries of the residual or in flight, a sum of |value| of " +
          std::to_string(newly_lost));
}

void SessionCore::Impl::give_up_rejoin(TimeNs now, Actions& actions) {
  const TimeNs seconds = (now - progress_at) / kNsPerS;
  end_session({ErrorCode::kTimeout, "worker " + std::to_string(config.worker) + " tried to rejoin the job, and for " +
                                        std::to_string(seconds) + " s nothing has moved: " + rejoining_text()},
              now, actions);
}

std::string SessionCore::Impl::rejoining_text() const {
  const auto unreached =
      std::ranges::find_if(links, [](const Link& link) { return link.state != LinkState::kWelcomed; });
  if (unreached != links.end()) {
    const std::string& sentence = unreached->trouble().message;
    const std::string trouble = sentence.empty() ? "" : ": " + sentence;
    return shard_text(static_cast<uint32_t>(unreached - links.begin())) + " has not let this worker in again" + trouble;
  }
  if (!is_member) return "the membership table has not let this worker in again";
  if (std::ranges::any_of(parts, &PartRun::stranded))
    return "no worker has weights of the job with which this one could continue; it is blocked until the others rejoin";
  if (by_switch() && !handed_step) return "no worker has said yet where the job's steps by the switch are";
  const auto open = std::ranges::find_if(parts, [](const PartRun& part) { return !part.settled; });
  if (open == parts.end()) return "the membership table does not list this worker as synced yet";
  return shard_text(open->layout.shard) + " has not settled part " + std::to_string(open->layout.part) + " yet";
}

}  // namespace millrace::worker
