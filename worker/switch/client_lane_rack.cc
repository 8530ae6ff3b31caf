#include <algorithm>
#include <limits>

#include "worker/switch/client_state.h"

/// The session with this worker's rack (S7.6, S7.7): while this worker is welcome there, contributions go there first.
/// A lost rack loses no data: contributions that it does not bring to the decider go past it.
namespace millrace::worker {

using protocol::Datagram;
using protocol::DatagramHeader;
using protocol::DatagramType;

namespace {

constexpr uint32_t kRackDoublingsMax = 6;

}  // namespace

void SwitchClient::Lane::begin_rack(TimeNs now, protocol::PacketSink& sink) {
  rack_phase = RackPhase::kNone;
  rack_doubted = false;
  rack_timeouts = 0;
  if (epoch.role != SwitchRole::kCombine || epoch.rack.port == 0) return;
  rack_link.aim(epoch.rack);
  if (rack_link.has_session()) return greet_rack(now, sink);
  ask_rack(now, sink);
}

void SwitchClient::Lane::ask_rack(TimeNs now, protocol::PacketSink& sink) {
  rack_phase = RackPhase::kAsking;
  rack_link.request_challenge(epoch.epoch, sink);
  ++counters.challenge_requests;
  rack_asked_at = now;
  rack_due = now + round_trip.timeout(std::min(rack_timeouts, kRackDoublingsMax));
}

void SwitchClient::Lane::greet_rack(TimeNs now, protocol::PacketSink& sink) {
  if (rack_phase != RackPhase::kWelcome) {
    rack_phase = RackPhase::kHello;
    rack_due = now + round_trip.timeout(std::min(rack_timeouts, kRackDoublingsMax));
  }
  const protocol::HelloTerms hello{.membership_hash = epoch.membership_hash,
                                   .live = epoch.live,
                                   .worker_nonce = rack_link.session_nonce(),
                                   .slots = 0,
                                   .positions = {}};
  std::array<uint8_t, protocol::kExtensionBytesMax> extension;
  const size_t bytes = protocol::put_hello(hello, extension);
  DatagramHeader header;
  header.type = DatagramType::kHello;
  header.epoch = epoch.epoch;
  rack_link.send(header, ByteSpan(extension).first(bytes), {}, epoch.rack, sink);
  ++counters.hellos;
}

/// Says whether the datagram is of the rack. A hint belongs to no session. Only its sender's address tells its origin,
/// and its only effect is that this worker asks.
bool SwitchClient::Lane::is_from_rack(const Datagram& datagram, const protocol::Endpoint& from) const {
  if (rack_phase == RackPhase::kNone) return false;
  if (datagram.header.type == DatagramType::kChallenge) return rack_link.expects(datagram);
  if (SwitchLink::is_hint(datagram)) return from == epoch.rack;
  return rack_link.has_session() && datagram.header.incarnation == rack_link.incarnation();
}

void SwitchClient::Lane::on_rack_packet(const Datagram& datagram, protocol::Ecn ecn, TimeNs now,
                                        protocol::PacketSink& sink) {
  const DatagramHeader& header = datagram.header;
  if (header.type == DatagramType::kChallenge) return on_rack_challenge(datagram, now, sink);
  if (header.type != DatagramType::kWelcome && header.type != DatagramType::kNotice) {
    ++counters.unexpected_type;
    return;
  }
  const SwitchLink::Verdict verdict = rack_link.judge(datagram);
  if (verdict == SwitchLink::Verdict::kForged) ++counters.forged;
  if (verdict == SwitchLink::Verdict::kReplayed) ++counters.replayed;
  if (verdict != SwitchLink::Verdict::kGood) return;
  if (!SwitchLink::is_hint(datagram)) note_mark(ecn, now);
  if (header.type == DatagramType::kNotice) return on_rack_notice(datagram, now, sink);
  if (header.epoch != epoch.epoch) {
    ++counters.wrong_epoch;
    return;
  }
  on_rack_welcome(datagram);
}

void SwitchClient::Lane::on_rack_challenge(const Datagram& datagram, TimeNs now, protocol::PacketSink& sink) {
  const SwitchLink::Renew renew =
      rack_phase == RackPhase::kWelcome ? SwitchLink::Renew::kNewIncarnationOnly : SwitchLink::Renew::kAlways;
  const SwitchLink::Challenge told = rack_link.take_challenge(datagram, renew);
  if (told == SwitchLink::Challenge::kRefused) {
    ++counters.forged;
    return;
  }
  rack_doubted = false;
  if (told == SwitchLink::Challenge::kSameIncarnation && rack_phase == RackPhase::kWelcome) return;
  leave_rack(RackPhase::kHello);
  greet_rack(now, sink);
}

void SwitchClient::Lane::on_rack_welcome(const Datagram& datagram) {
  const std::optional<protocol::WelcomeTerms> welcome = protocol::read_welcome(datagram.extension);
  if (!welcome || welcome->slots != slots.size() || welcome->window_indices != options.window_indices) {
    ++counters.refused;
    leave_rack(RackPhase::kNone);
    return;
  }
  if (rack_phase != RackPhase::kHello) {
    ++counters.duplicates;
    return;
  }
  rack_phase = RackPhase::kWelcome;
  rack_timeouts = 0;
  ++counters.rack_welcomes;
}

void SwitchClient::Lane::on_rack_notice(const Datagram& datagram, TimeNs now, protocol::PacketSink& sink) {
  const std::optional<protocol::Notice> notice = protocol::read_notice(datagram.extension);
  if (!notice) {
    ++counters.malformed;
    return;
  }
  if (SwitchLink::is_hint(datagram)) {
    // It is with another job of this number, or another epoch: the next hello's time is as good as any.
    if (notice->code != protocol::NoticeCode::kUnknownIncarnation && notice->code != protocol::NoticeCode::kNoSlots)
      return;
    if (rack_asked_at != INT64_MIN && now - rack_asked_at < round_trip.smoothed()) return;
    rack_link.request_challenge(epoch.epoch, sink);
    ++counters.challenge_requests;
    rack_asked_at = now;
    return;
  }
  steps.epoch_seen = std::max(steps.epoch_seen, notice->epoch);
  if (notice->code == protocol::NoticeCode::kLost) {
    const bool is_current = phase == SwitchPhase::kRunning && datagram.header.epoch == epoch.epoch;
    if (is_current && rack_phase == RackPhase::kWelcome) send_lost(*notice, Way::kRack, now, sink);
    return;
  }
  if (rack_phase != RackPhase::kWelcome) return;
  // The rack does not take this worker's packets, for any reason: they go past it, and another hello follows later.
  leave_rack(RackPhase::kHello);
  rack_due = now + round_trip.timeout(0);
}

void SwitchClient::Lane::leave_rack(RackPhase then) {
  if (rack_phase == RackPhase::kWelcome) ++counters.rack_lost;
  rack_phase = then;
  rack_doubted = false;
}

/// Turns time out: the decider's other workers are slow, the rack is gone, or this worker has a new address. A
/// challenge tells whether the rack lives. Its notices go to the address of the latest HELLO.
void SwitchClient::Lane::suspect_rack(TimeNs now, protocol::PacketSink& sink) {
  if (rack_phase != RackPhase::kWelcome || rack_doubted) return;
  rack_doubted = true;
  rack_link.request_challenge(epoch.epoch, sink);
  ++counters.challenge_requests;
  greet_rack(now, sink);
  rack_asked_at = now;
  rack_due = now + 2 * round_trip.timeout(0);
}

void SwitchClient::Lane::tick_rack(TimeNs now, protocol::PacketSink& sink) {
  if (now < rack_deadline()) return;
  ++rack_timeouts;
  leave_rack(RackPhase::kAsking);
  // A hello without an answer too: its keys may be of an earlier incarnation.
  ask_rack(now, sink);
}

TimeNs SwitchClient::Lane::rack_deadline() const {
  const bool waits = rack_phase == RackPhase::kAsking || rack_phase == RackPhase::kHello || rack_doubted;
  return waits ? rack_due : std::numeric_limits<TimeNs>::max();
}

}  // namespace millrace::worker
