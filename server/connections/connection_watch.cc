#include "server/connections/connection_watch.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <utility>

#include "server/connections/connection_ledger.h"

namespace millrace::server {
namespace {

/// Bytes on the wire beyond those of a message's frames: heads of frames, the MACs of CURVE, the handshake.
constexpr uint64_t kWireSlackBytes = 64 << 10;
/// Time after which no message of a closed connection waits for the loop any more.
constexpr TimeNs kForgottenAfter = 10 * kNsPerS;

struct Frames {
  std::array<uint64_t, 2> bytes = {};
  size_t count = 0;
};
/// Returns the frames that came over the wire. Of a message that cannot be read one came at least.
Frames frames_of(const protocol::PeerId& peer, const MessageSize& size) {
  const uint64_t identity = std::min<uint64_t>(size.bytes, peer.bytes.size());
  const uint64_t came = size.bytes - identity;
  if (!size.payload_bytes) return {.bytes = {came, 0}, .count = came == 0 ? size_t{0} : size_t{1}};
  return {.bytes = {came - std::min(came, *size.payload_bytes), *size.payload_bytes}, .count = 2};
}

}  // namespace

ConnectionWatch::ConnectionWatch(uint16_t port, uint64_t message_bytes_max, uint64_t first_bytes_max,
                                 uint64_t total_bytes_max)
    : port_(port),
      judge_({.unread_each_max = message_bytes_max + kWireSlackBytes,
              .unread_first_max = first_bytes_max + kWireSlackBytes,
              .unread_total_max = total_bytes_max,
              .silent_max = kSilentMax,
              .without_session_max = kOfAddressMin}) {}

void ConnectionWatch::set_room(uint64_t connections) {
  judge_.set_without_session_max(
      std::max(kOfAddressMin, static_cast<uint32_t>(std::min<uint64_t>(connections / kAddressShare, UINT32_MAX))));
}

void ConnectionWatch::on_message(const protocol::PeerId& peer, int descriptor, Spoken spoken, TimeNs now,
                                 MessageSize size) {
  const TimeNs accepted = accepted_at(descriptor);
  if (accepted == 0) {
    // It waited when its connection was closed: its bytes are none of an unfinished message.
    if (const auto closed = peers_.find(peer); closed != peers_.end()) closed->second.unread = 0;
    return;
  }
  Peer& known = peers_[peer];
  if (known.descriptor != descriptor) {  // new, or came again
    if (known.unread != 0) unfinished_.push_back({peer, known.unread});
    known = {.descriptor = descriptor, .accepted_at = accepted};
  }
  // The message is of a connection that is closed, and its number another one's: those bytes are not in this message.
  if (known.accepted_at != accepted) return;
  known.spoke = true;
  known.unread = 0;
  const Frames frames = frames_of(peer, size);
  count_message(descriptor, std::span(frames.bytes).first(frames.count));
  if (spoken == Spoken::kHello) known.hello_at = now;
}

void ConnectionWatch::on_session(const protocol::PeerId& peer) {
  if (const auto known = peers_.find(peer); known != peers_.end())
    admit_connection(known->second.descriptor, known->second.accepted_at);
}

void ConnectionWatch::report_arriving(const std::function<void(const protocol::PeerId&, uint64_t bytes)>& report) {
  for (auto& [peer, known] : peers_) {
    if (accepted_at(known.descriptor) != known.accepted_at) continue;
    const uint64_t unread = unread_bytes(known.descriptor);
    if (unread > known.unread) report(peer, unread - known.unread);
    known.unread = unread;
  }
}

bool ConnectionWatch::is_closed(const protocol::PeerId& peer) const {
  const auto known = peers_.find(peer);
  return known != peers_.end() && known->second.closed_looks >= kClosedLooks;
}

bool ConnectionWatch::end_later(const protocol::PeerId& peer, std::string_view why, TimeNs at) {
  const auto known = peers_.find(peer);
  if (known == peers_.end() || known->second.end_at != 0) return false;
  known->second.end_at = at;
  known->second.why_end = why;
  return true;
}

void ConnectionWatch::end_later(const std::function<bool(const protocol::PeerId&)>& which, std::string_view why,
                                TimeNs at) {
  for (auto& [peer, known] : peers_) {
    if (which(peer)) end_later(peer, why, at);
  }
}

/// Returns the open connections. Forgets those that are closed where that matters to the judge, and their peers.
std::vector<ConnectionSample> ConnectionWatch::samples(Inbox inbox, const HasSession& has_session, TimeNs now) {
  std::unordered_map<int, ConnectionSample> spoken;  // from the messages of peers
  for (auto at = peers_.begin(); at != peers_.end();) {
    const auto one = at++;
    Peer& peer = one->second;
    const bool is_session = has_session(one->first);
    // A peer that speaks is not closed: the kernel is asked about quiet ones alone.
    const bool is_quiet = is_session && !std::exchange(peer.spoke, false) && peer.closed_looks < kClosedLooks;
    if (is_quiet && has_ended(peer.descriptor, peer.accepted_at, port_)) ++peer.closed_looks;
    if (accepted_at(peer.descriptor) != peer.accepted_at) {
      if (peer.gone_at == 0) peer.gone_at = now;
      const bool is_past = now - peer.gone_at >= kForgottenAfter;
      // While the inbox is not drained, whole messages among these bytes may wait in it.
      if (peer.unread != 0 && (inbox == Inbox::kDrained || is_past))
        unfinished_.push_back({one->first, std::exchange(peer.unread, 0)});
      if (!is_session && is_past) peers_.erase(one);
      continue;
    }
    ConnectionSample& sample = spoken[peer.descriptor];
    sample.has_session = sample.has_session || is_session;
    sample.hello_at = std::max(sample.hello_at, peer.hello_at);
  }
  std::vector<ConnectionSample> open;
  for (ConnectionSample& sample : connection_samples()) {
    if (const auto known = spoken.find(sample.descriptor); known != spoken.end()) {
      sample.has_session = known->second.has_session;
      sample.hello_at = known->second.hello_at;
    }
    const bool is_harmless = sample.has_session && sample.unread_bytes == 0;
    if (!is_harmless && !is_connection(sample.descriptor, port_)) {
      forget_connection(sample.descriptor, sample.accepted_at);
      continue;
    }
    if (!sample.has_session) sample.address = address_of_connection(sample.descriptor);
    open.push_back(std::move(sample));
  }
  return open;
}

/// Returns the peer that has spoken over each open connection, by descriptor.
std::unordered_map<int, const protocol::PeerId*> ConnectionWatch::speakers() const {
  std::unordered_map<int, const protocol::PeerId*> found;
  for (const auto& [peer, known] : peers_) {
    if (accepted_at(known.descriptor) == known.accepted_at) found[known.descriptor] = &peer;
  }
  return found;
}

/// Adds the connections that recv() has ended.
void ConnectionWatch::add_cut(std::vector<Ended>& ended) const {
  const Cuts cuts = take_cuts();
  if (cuts.others != 0) ended.push_back({.by = {}, .why = "unfinished_messages", .connections = cuts.others});
  if (cuts.known.empty()) return;
  std::map<std::pair<int, TimeNs>, const protocol::PeerId*> spoken;
  for (const auto& [peer, known] : peers_) spoken[{known.descriptor, known.accepted_at}] = &peer;
  for (const Cut& cut : cuts.known) {
    Ended one{.by = {}, .why = cut.why};
    if (const auto known = spoken.find({cut.descriptor, cut.accepted_at}); known != spoken.end()) {
      one.by = *known->second;
    } else {
      one.by.address = cut.address.data();
    }
    ended.push_back(std::move(one));
  }
}

std::vector<ConnectionWatch::Ended> ConnectionWatch::look(Inbox inbox, const HasSession& has_session, TimeNs now) {
  if (now - looked_at_ < (inbox == Inbox::kDrained ? kLookEvery : kLookAtLeastEvery)) return {};
  looked_at_ = now;
  std::vector<Ended> ended;
  add_cut(ended);
  for (const auto& [peer, known] : peers_) {
    if (known.end_at == 0 || now < known.end_at || accepted_at(known.descriptor) != known.accepted_at) continue;
    if (end_connection(known.descriptor, known.accepted_at, port_)) ended.push_back({peer, known.why_end});
  }
  const std::vector<ConnectionJudge::Verdict> verdicts = judge_.look(samples(inbox, has_session, now), inbox, now);
  if (verdicts.empty()) return ended;
  const auto spoken = speakers();  // once: thousands may be ended in one look
  for (const ConnectionJudge::Verdict& verdict : verdicts) {
    const auto known = spoken.find(verdict.descriptor);
    Ended one{.by = {}, .why = verdict.why};
    if (known != spoken.end()) {
      one.by = *known->second;
    } else {
      one.by.address = address_of_connection(verdict.descriptor);
    }
    if (end_connection(verdict.descriptor, verdict.accepted_at, port_)) ended.push_back(std::move(one));
  }
  return ended;
}

}  // namespace millrace::server
