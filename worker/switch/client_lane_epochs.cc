#include <algorithm>

#include "kernels/base/check.h"
#include "worker/switch/client_state.h"

/// One procedure for death, fallback, return, restart and joining (S6), and the way of a packet to its concern.
namespace millrace::worker {

using protocol::Datagram;
using protocol::DatagramHeader;
using protocol::DatagramType;

namespace {

/// Longer than a hello's answer takes, short enough that a lost one costs little.
constexpr uint32_t kHelloDoublingsMax = 4;

}  // namespace

/// The client's epoch is another one.
void SwitchClient::Lane::enter_epoch(TimeNs now, protocol::PacketSink& sink) {
  refused = false;
  silent_timeouts = 0;
  leave_incarnation();
  if ((epoch.live >> options.worker & 1) == 0) return go_outside();
  begin_rack(now, sink);
  link.aim(epoch.decider);
  if (link.has_session()) {
    phase = SwitchPhase::kHello;
    say_hello(now, sink);
  } else {
    ask_incarnation(now, sink);
  }
}

/// Nothing is due any more, of the rack's session neither.
void SwitchClient::Lane::go_outside() {
  phase = SwitchPhase::kOutside;
  rack_phase = RackPhase::kNone;
  rack_doubted = false;
}

/// Takes no further result of the epoch or incarnation before, including the missing fragments of a begun one.
/// Contributions, the last results and the positions stay.
void SwitchClient::Lane::leave_incarnation() {
  hello_timeouts = 0;
  backed_off_at = INT64_MIN;
  for (Slot& slot : slots) {
    slot.result.clear();
    slot.timeouts = 0;
    if (slot.state == SlotState::kWaiting) slot.state = SlotState::kDelayed;
  }
}

void SwitchClient::Lane::ask_incarnation(TimeNs now, protocol::PacketSink& sink) {
  phase = SwitchPhase::kAsking;
  link.request_challenge(epoch.epoch, sink);
  ++counters.challenge_requests;
  asked_at = now;
  hello_due = now + round_trip.timeout(std::min(hello_timeouts, kHelloDoublingsMax));
}

void SwitchClient::Lane::say_hello(TimeNs now, protocol::PacketSink& sink) {
  protocol::HelloTerms hello{
      .membership_hash = epoch.membership_hash, .live = epoch.live, .worker_nonce = link.session_nonce()};
  hello.slots = static_cast<uint32_t>(slots.size());
  for (size_t i = 0; i < slots.size(); ++i) hello.positions[i] = slots[i].turn;
  std::array<uint8_t, protocol::kExtensionBytesMax> extension;
  const size_t bytes = protocol::put_hello(hello, extension);
  DatagramHeader header;
  header.type = DatagramType::kHello;
  header.epoch = epoch.epoch;
  link.send(header, ByteSpan(extension).first(bytes), {}, epoch.decider, sink);
  ++counters.hellos;
  greeted_at = now;
  hello_due = now + round_trip.timeout(std::min(hello_timeouts, kHelloDoublingsMax));
}

/// packet  the one that contained the datagram.
void SwitchClient::Lane::receive(const Datagram& datagram, const protocol::ReceivedPacket& packet, TimeNs now,
                                 protocol::PacketSink& sink) {
  if (phase == SwitchPhase::kOutside) {
    ++counters.not_running;
    return;
  }
  if (is_from_rack(datagram, packet.from)) return on_rack_packet(datagram, packet.ecn, now, sink);
  if (datagram.header.type == DatagramType::kChallenge) return on_challenge(datagram, now, sink);
  const bool is_hint = SwitchLink::is_hint(datagram);
  if (is_hint ? datagram.header.type != DatagramType::kNotice : datagram.header.incarnation != link.incarnation()) {
    ++counters.wrong_life;
    return;
  }
  const SwitchLink::Verdict verdict = link.judge(datagram);
  if (verdict == SwitchLink::Verdict::kForged) ++counters.forged;
  if (verdict == SwitchLink::Verdict::kReplayed) ++counters.replayed;
  if (verdict != SwitchLink::Verdict::kGood) return;
  if (!is_hint) note_mark(packet.ecn, now);
  on_session_packet(datagram, now, sink);
}

void SwitchClient::Lane::on_session_packet(const Datagram& datagram, TimeNs now, protocol::PacketSink& sink) {
  const DatagramHeader& header = datagram.header;
  if (header.type == DatagramType::kNotice) return on_notice(datagram, now, sink);
  if (header.epoch != epoch.epoch) {
    ++counters.wrong_epoch;
    return;
  }
  switch (header.type) {
    case DatagramType::kWelcome: return on_welcome(datagram, now, sink);
    case DatagramType::kFetch: return on_fetch(datagram, sink);
    case DatagramType::kResult:
      if (phase != SwitchPhase::kRunning) {
        ++counters.not_running;
        return;
      }
      return on_result(datagram, now, sink);
    default: ++counters.unexpected_type; return;
  }
}

void SwitchClient::Lane::on_challenge(const Datagram& datagram, TimeNs now, protocol::PacketSink& sink) {
  const SwitchLink::Renew renew =
      phase == SwitchPhase::kRunning ? SwitchLink::Renew::kNewIncarnationOnly : SwitchLink::Renew::kAlways;
  const SwitchLink::Challenge told = link.take_challenge(datagram, renew);
  if (told == SwitchLink::Challenge::kRefused) {
    ++counters.forged;
    return;
  }
  heard(now);
  if (told == SwitchLink::Challenge::kSameIncarnation && phase == SwitchPhase::kRunning) return;
  if (told == SwitchLink::Challenge::kNewIncarnation) {
    ++counters.new_lives;
    leave_incarnation();
  }
  phase = SwitchPhase::kHello;
  say_hello(now, sink);
}

void SwitchClient::Lane::on_welcome(const Datagram& datagram, TimeNs now, protocol::PacketSink& sink) {
  // To a running worker it only answers its HELLO. It is short, and does not show that results arrive.
  if (phase != SwitchPhase::kRunning) heard(now);
  const std::optional<protocol::WelcomeTerms> welcome = protocol::read_welcome(datagram.extension);
  if (!welcome || welcome->slots != slots.size() || welcome->window_indices != options.window_indices) {
    ++counters.contradiction;
    refused = true;
    return;
  }
  if (phase != SwitchPhase::kHello) {
    ++counters.duplicates;
    return;
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    const uint64_t turn = welcome->turns[i];
    if (slots[i].turn == turn || slots[i].turn == turn + 1) continue;
    ++counters.contradiction;
    return;
  }
  phase = SwitchPhase::kRunning;
  refused = false;
  hello_timeouts = 0;
  backed_off_at = INT64_MIN;
  note_removal(*welcome);
  for (uint16_t number = 0; number < slot_count(); ++number) {
    if (slots[number].state == SlotState::kDone) continue;
    slots[number].due = now + round_trip.smoothed();
  }
  send_delayed(now, sink);
}

/// The aggregator lacks the result that this worker has: it gets it as it came.
void SwitchClient::Lane::on_fetch(const Datagram& datagram, protocol::PacketSink& sink) {
  const DatagramHeader& asked = datagram.header;
  if (asked.slot >= slots.size()) {
    ++counters.contradiction;
    return;
  }
  if (asked.turn + 1 != slots[asked.slot].turn || slots[asked.slot].kept.empty()) {
    ++counters.other_turn;  // it was long under way, another answer has come
    return;
  }
  for (const Fragment& fragment : slots[asked.slot].kept) {
    DatagramHeader header = fragment.header;
    header.type = DatagramType::kKept;
    header.epoch = epoch.epoch;
    link.send(header, fragment.extension, fragment.payload, epoch.decider, sink);
  }
  ++counters.fetches_answered;
}

/// The hello is not taken: the aggregator is in a newer epoch, which the table will say, or still with another job of
/// this number.
void SwitchClient::Lane::record_back_off(protocol::NoticeCode code, TimeNs now) {
  const bool says_so = code == protocol::NoticeCode::kOldEpoch || code == protocol::NoticeCode::kOtherMembership;
  if (says_so && phase == SwitchPhase::kHello && backed_off_at == INT64_MIN) backed_off_at = now;
}

void SwitchClient::Lane::on_notice(const Datagram& datagram, TimeNs now, protocol::PacketSink& sink) {
  const std::optional<protocol::Notice> notice = protocol::read_notice(datagram.extension);
  if (!notice) {
    ++counters.malformed;
    return;
  }
  const bool is_hint = SwitchLink::is_hint(datagram);
  if (!is_hint) {
    steps.epoch_seen = std::max(steps.epoch_seen, notice->epoch);
    // A lost packet may have been too long for the path, and is reported as often as it is sent.
    if (notice->code != protocol::NoticeCode::kLost) heard(now);
  }
  // Where another process's session stands the answer is a hint, and names the hello's session.
  if (!is_hint || notice->worker_nonce == link.session_nonce()) record_back_off(notice->code, now);
  switch (notice->code) {
    case protocol::NoticeCode::kUnknownIncarnation:
      if (asked_at == INT64_MIN || now - asked_at >= round_trip.smoothed()) {
        link.request_challenge(epoch.epoch, sink);
        ++counters.challenge_requests;
        asked_at = now;
      }
      return;
    case protocol::NoticeCode::kNoSlots:
      if (is_hint && !link.answers_request(*notice)) return;
      [[fallthrough]];
    case protocol::NoticeCode::kPositionsTooFarApart:
    case protocol::NoticeCode::kOtherMembership:
      if (is_hint && notice->code != protocol::NoticeCode::kNoSlots) return;
      ++counters.refused;
      refused = refused || notice->code != protocol::NoticeCode::kOtherMembership;
      return;
    case protocol::NoticeCode::kLost:
      if (!is_hint && phase == SwitchPhase::kRunning && datagram.header.epoch == epoch.epoch)
        send_lost(*notice, Way::kDecider, now, sink);
      return;
    case protocol::NoticeCode::kOldEpoch:
    case protocol::NoticeCode::kSayHello: return;  // the hello's own timer says it
  }
}

}  // namespace millrace::worker
