#include "server/membership/members.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "kernels/base/check.h"
#include "protocol/base/arriving_bytes.h"
#include "server/membership/membership_changes.h"

namespace millrace::server {

protocol::Membership Members::view_of(protocol::Membership membership, uint32_t worker, uint64_t incarnation,
                                      const protocol::PeerId& to) const {
  if (nonces_ == Nonces::kShown || to.key == protocol::PublicKey()) return membership;
  for (protocol::Member& member : membership.members) {
    if (member.worker != worker || member.incarnation != incarnation) member.nonce = 0;
  }
  return membership;
}

Members::Adopted Members::adopt(protocol::Membership membership, TimeNs now) {
  Adopted result;
  result.before = std::move(membership_.members);
  membership_ = std::move(membership);
  for (const protocol::Member& old : result.before) {
    if (is_member(membership_, old.worker, old.incarnation)) continue;
    result.gone.push_back(old);
    const auto link = links_.find(old.worker);
    if (link == links_.end()) continue;
    if (link->second.peer) {
      result.gone_connected.push_back(old);
      result.gone_peers.push_back(*link->second.peer);
    }
    links_.erase(link);
  }
  for (const protocol::Member& member : membership_.members) {
    Link& link =
        links_.try_emplace(member.worker, Link{.heard = now, .message_at = now, .incarnation = member.incarnation})
            .first->second;
    link.was_synced = link.was_synced || member.state == protocol::MemberState::kSynced;
  }
  gather_pushing();
  look_at_weights();
  return result;
}

void Members::look_at_weights() {
  all_take_merged_ = std::ranges::all_of(membership_.members, [this](const protocol::Member& member) {
    const Link* at = link(member.worker);
    return at && at->weights == Weights::kTakeMerged;
  });
}

void Members::gather_pushing() {
  synced_.clear();
  pushing_.clear();
  for (const protocol::Member& member : membership_.members) {
    if (member.state != protocol::MemberState::kSynced) continue;
    synced_.push_back(member);
    const Link* at = link(member.worker);
    if (!at || !at->finishing) pushing_.push_back(member);
  }
}

bool Members::finishes(uint32_t worker) {
  const auto link = links_.find(worker);
  if (link == links_.end() || link->second.finishing) return false;
  link->second.finishing = true;
  gather_pushing();
  return true;
}

std::optional<protocol::PeerId> Members::connect(uint32_t worker, protocol::PeerId peer, Process process, TimeNs now) {
  // adopt() has made it, where memory did not end before.
  const protocol::Member* const member = find_member(membership_, worker);
  Link& link = links_.try_emplace(worker, Link{.incarnation = member ? member->incarnation : 0}).first->second;
  std::optional<protocol::PeerId> old;
  if (link.peer && *link.peer != peer) old = link.peer;
  link.last_peer = peer;
  link.peer = std::move(peer);
  link.weights = process.weights;
  link.returns = link.returns || process.returns;
  look_at_weights();
  link.heard = link.message_at = now;
  return old;
}

void Members::disconnect(uint32_t worker) {
  const auto link = links_.find(worker);
  if (link != links_.end()) link->second.peer.reset();
}

void Members::heard(uint32_t worker, TimeNs now) {
  const auto link = links_.find(worker);
  if (link != links_.end()) link->second.heard = link->second.message_at = now;
}

void Members::epoch_unknown(uint32_t worker, TimeNs next) {
  const auto link = links_.find(worker);
  if (link != links_.end()) link->second.next_epoch_look = next;
}

void Members::heard_bytes(uint32_t worker, uint64_t bytes, TimeNs at_most, TimeNs now) {
  const auto link = links_.find(worker);
  const bool counts = link != links_.end() && bytes >= protocol::ArrivingBytes::kLeast;
  if (counts && now < link->second.message_at + at_most) link->second.heard = now;
}

const Members::Link* Members::link(uint32_t worker) const {
  const auto link = links_.find(worker);
  return link == links_.end() ? nullptr : &link->second;
}

uint64_t Members::queued_bytes(uint32_t worker) const {
  const Link* at = link(worker);
  return queued_bytes_ && at && at->peer ? queued_bytes_(*at->peer) : 0;
}

std::vector<protocol::Member> Members::silent(TimeNs now, TimeNs silence) const {
  std::vector<protocol::Member> members;
  for (const protocol::Member& member : membership_.members) {
    const Link* at = link(member.worker);
    if (at && at->heard + silence <= now) members.push_back(member);
  }
  return members;
}

TimeNs Members::silence_of_all(TimeNs now) const {
  TimeNs heard = links_.empty() ? now : 0;
  for (const auto& [worker, link] : links_) heard = std::max(heard, link.heard);
  return now - std::min(now, heard);
}

bool Members::any_may_carry_on() const {
  constexpr uint64_t kFirstIncarnation = 1;
  return std::ranges::any_of(links_, [](const auto& each) {
    const Link& link = each.second;
    return link.returns || link.was_synced || link.incarnation == kFirstIncarnation;
  });
}

bool Members::has_weights_of(const protocol::JobSpec& spec, uint32_t worker, const protocol::State& state) const {
  if (spec.initial_weights != protocol::InitialWeights::kFirst || worker == 0) return true;
  const Link* at = link(worker);
  const auto begins = [](const protocol::State::Part& part) { return part.n == 0; };
  return (at && at->was_synced) || std::ranges::none_of(state.parts, begins);
}

void Members::extend_deadlines(TimeNs paused) {
  for (auto& [worker, link] : links_) {
    link.heard += paused;
    link.message_at += paused;
  }
}

protocol::Header Members::header(uint32_t worker, uint64_t incarnation) const {
  return {.job = membership_.job,
          .epoch = membership_.epoch,
          .worker = worker,
          .incarnation = incarnation,
          .shard = shard_,
          .shard_incarnation = shard_incarnation_};
}

bool Members::is_key_of(uint32_t worker, const protocol::PublicKey& key) const {
  const Link* at = link(worker);
  return at == nullptr || !at->last_peer || at->last_peer->key == key;
}

void Members::send(const protocol::Member& member, protocol::Body body, SharedBytes payload, Actions& actions) const {
  const auto link = links_.find(member.worker);
  if (link == links_.end() || !link->second.peer) return;
  const auto hide = [&](protocol::Membership& membership) {
    membership = view_of(std::move(membership), member.worker, member.incarnation, *link->second.peer);
  };
  if (auto* welcome = std::get_if<protocol::Welcome>(&body)) hide(welcome->membership);
  if (auto* change = std::get_if<protocol::MembershipChange>(&body)) hide(change->membership);
  actions.to_peers.push_back(
      {*link->second.peer, {header(member.worker, member.incarnation), std::move(body), std::move(payload)}});
}

void Members::send(const protocol::Member& member, protocol::Body body, Actions& actions) const {
  send(member, std::move(body), SharedBytes{}, actions);
}

}  // namespace millrace::server
