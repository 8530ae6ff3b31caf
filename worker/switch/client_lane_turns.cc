#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/check.h"
#include "worker/switch/client_state.h"

/// Turns (S1.2): the order of windows, transmission and retransmission (S5.5).
namespace millrace::worker {

namespace flag = protocol::datagram_flag;

namespace {

/// Returns a window's indices as the window numbers them. The result holds until the thread's next call.
std::span<const uint16_t> in_window(IndexSpan indices, uint32_t begin) {
  thread_local Buffer<uint16_t> room;
  room.resize(indices.size());
  std::ranges::transform(indices, room.begin(),
                         [begin](uint32_t index) { return static_cast<uint16_t>(index - begin); });
  return room;
}

constexpr uint64_t kRackNonces = 0x4E5C'0DE5'0F5A'7AC5;  // the two links' nonces differ
constexpr uint64_t kLaneNonces = 0xA0761D6478BD642F;     // ... and those of lanes

uint64_t nonce_seed(const SwitchClientOptions& options, uint32_t lane) {
  return options.nonce_seed + lane * kLaneNonces;
}

/// Returns the payload's room in a packet. A contribution has no extension; a rack that forwards it adds one.
size_t payload_room(const SwitchClientOptions& options) {
  const size_t spared = options.through_racks ? protocol::kPartialTermsBytes : 0;
  return options.packet_bytes_max - protocol::kDatagramHeaderBytes - protocol::kDatagramMacBytes - spared;
}

}  // namespace

void SwitchClient::Lane::open_step(TimeNs now, protocol::PacketSink& sink) {
  step_is_answered = false;
  results_lost = 0;
  if (lossy_steps != 0) --lossy_steps;
  for (uint16_t number = 0; number < slot_count(); ++number) {
    slots[number].ended = false;
    open_turn(number, number, now, sink);
  }
}

SwitchClient::Lane::Lane(State& steps_given, uint32_t lane_given)
    : steps(steps_given),
      options(steps.options),
      counters(steps.counters),
      epoch(steps.epoch),
      lane(lane_given),
      windows(((options.dimension - 1) / options.window_indices + options.lanes - lane) / options.lanes),
      link({.job = options.job + lane,
            .key = options.key,
            .worker = options.worker,
            .nonce_seed = nonce_seed(options, lane),
            .packet_bytes = options.packet_bytes_max}),
      rack_link({.job = options.job + lane,
                 .key = options.key,
                 .worker = options.worker,
                 .nonce_seed = nonce_seed(options, lane) ^ kRackNonces,
                 .packet_bytes = options.packet_bytes_max}),
      round_trip(options.round_trip),
      congestion(options.slots / options.lanes),
      slots(options.slots / options.lanes) {}

bool SwitchClient::Lane::step_is_over() const {
  return std::ranges::all_of(slots, [](const Slot& slot) { return slot.state == SlotState::kDone; });
}

void SwitchClient::Lane::open_turn(uint16_t number, uint32_t window, TimeNs now, protocol::PacketSink& sink) {
  Slot& slot = slots[number];
  slot.window = window;
  slot.first = slot.last = 0;
  const std::vector<State::Piece>& pieces = steps.pieces;
  if (slot.piece < slot.pieces.size() && pieces[slot.pieces[slot.piece]].window == window) {
    const State::Piece& piece = pieces[slot.pieces[slot.piece++]];
    slot.first = piece.first;
    slot.last = piece.last;
  }
  slot.next = slot.piece < slot.pieces.size() ? pieces[slot.pieces[slot.piece]].window : protocol::kNoWindow;
  MILLRACE_CHECK(slot.next > window, slot.next, window);

  ContributionTerms terms{.header = {}, .codecs = options.codecs, .window_indices = options.window_indices};
  terms.payload_bytes_max = payload_room(options);
  terms.limit = steps.limit;
  terms.header.type = protocol::DatagramType::kContribution;
  terms.header.flags = steps.finishing && window == number ? flag::kFin : uint8_t{0};
  terms.header.turn = slot.turn;
  terms.header.step = steps.step;
  terms.header.window = window;
  terms.header.next = slot.next;
  terms.header.slot = number;
  terms.header.exponent = static_cast<int8_t>(steps.exponents.of(window_of_all(window)));
  const StreamView& entries = steps.offer->entries.view;
  const size_t count = slot.last - slot.first;
  const auto indices =
      in_window(entries.indices.subspan(slot.first, count), window_of_all(window) * options.window_indices);
  make_contribution({indices, entries.values.subspan(slot.first, count)}, terms,
                    std::span(steps.offer->sent).subspan(slot.first, count), slot.sent);
  counters.entries_left_over += slot.sent.left_over;
  counters.entries_saturated += slot.sent.saturated;
  slot.result.clear();
  slot.sends = 0;
  slot.timeouts = 0;
  send_or_delay(number, now, sink);
}

uint32_t SwitchClient::Lane::waiting() const {
  return static_cast<uint32_t>(std::ranges::count(slots, SlotState::kWaiting, &Slot::state));
}

void SwitchClient::Lane::send_or_delay(uint16_t number, TimeNs now, protocol::PacketSink& sink) {
  Slot& slot = slots[number];
  slot.state = SlotState::kDelayed;
  slot.order = ++orders;
  slot.due = now + round_trip.smoothed();
  send_delayed(now, sink);
  if (slot.state == SlotState::kDelayed) ++counters.held_back;
}

void SwitchClient::Lane::send_turn(uint16_t number, TimeNs now, protocol::PacketSink& sink) {
  Slot& slot = slots[number];
  slot.state = SlotState::kWaiting;
  // In a rack the second time-out asks for the switch's sum. From the third on, every other retransmission goes past
  // it.
  const bool past = slot.timeouts >= 3 && slot.timeouts % 2 == 1;
  const Way way = rack_phase == RackPhase::kWelcome && !past ? Way::kRack : Way::kDecider;
  transmit(number, way == Way::kRack && slot.timeouts >= 2 ? flag::kFlush : uint8_t{0}, way, sink);
  note_sent(slot, now);
}

void SwitchClient::Lane::note_sent(Slot& slot, TimeNs now) {
  slot.order = ++orders;
  slot.overtaken = 0;
  slot.fast_retransmitted = false;
  if (slot.sends++ == 0) slot.sent_at = now;
  slot.last_sent_at = now;
  slot.due = now + round_trip.timeout(slot.timeouts);
}

void SwitchClient::Lane::transmit(uint16_t number, uint8_t flags, Way way, protocol::PacketSink& sink) {
  const auto fragments = static_cast<uint16_t>(slots[number].sent.fragments.size());
  for (uint16_t at = 0; at < fragments; ++at) transmit_fragment(number, at, flags, way, sink);
}

void SwitchClient::Lane::transmit_fragment(uint16_t number, uint16_t at, uint8_t flags, Way way,
                                           protocol::PacketSink& sink) {
  const Slot& slot = slots[number];
  const Fragment& fragment = slot.sent.fragments[at];
  protocol::DatagramHeader header = fragment.header;
  header.flags |= flags;
  header.epoch = epoch.epoch;
  protocol::SentLog::Packet packet{.turn = slot.turn, .slot = number, .fragment = at};
  if (way == Way::kRack) {
    packet.sequence = rack_link.send(header, {}, fragment.payload, epoch.rack, sink);
    ++counters.sent_to_rack;
  } else {
    packet.sequence = link.send(header, {}, fragment.payload, epoch.decider, sink);
  }
  if (packet.sequence != 0) (way == Way::kRack ? rack_log : decider_log).note(packet);
  if (slot.sends > 0) ++counters.resends;
}

/// Sends the packets again that an aggregator lacks, at once. The notice names the packets, so that no other worker
/// sends anything and this worker does not wait for a time-out.
void SwitchClient::Lane::send_lost(const protocol::Notice& notice, Way way, TimeNs now, protocol::PacketSink& sink) {
  const protocol::SentLog& log = way == Way::kRack ? rack_log : decider_log;
  protocol::lost_of(notice).for_each([&](uint64_t sequence) {
    const protocol::SentLog::Packet* packet = log.find(sequence);
    if (packet != nullptr) send_lost_packet(*packet, way, now, sink);
  });
}

/// packet  a copy: the retransmission may overwrite its entry in the log.
void SwitchClient::Lane::send_lost_packet(protocol::SentLog::Packet packet, Way way, TimeNs now,
                                          protocol::PacketSink& sink) {
  Slot& slot = slots[packet.slot];
  if (slot.state != SlotState::kWaiting || slot.turn != packet.turn) return;
  if (packet.fragment >= slot.sent.fragments.size()) return;  // of a step that was abandoned
  if (slot.sends == 1) congestion.lost(now, round_trip.smoothed());
  transmit_fragment(packet.slot, packet.fragment, 0, way, sink);
  lossy_steps = kLossySteps;
  ++counters.sent_on_notice;
  note_sent(slot, now);
}

void SwitchClient::Lane::send_delayed(TimeNs now, protocol::PacketSink& sink) {
  if (phase != SwitchPhase::kRunning) return;
  for (uint32_t under_way = waiting(); under_way < congestion.active(); ++under_way) {
    // The longest waiting one goes first: other workers see results in the order in which they sent the turns.
    const Slot* oldest = nullptr;
    for (const Slot& slot : slots) {
      if (slot.state == SlotState::kDelayed && (oldest == nullptr || slot.order < oldest->order)) oldest = &slot;
    }
    if (oldest == nullptr) return;
    send_turn(static_cast<uint16_t>(oldest - slots.data()), now, sink);
  }
}

/// Notes the result of a turn that was sent as number `order`. Packets of one way mostly stay in order, and aggregators
/// close turns in the order of their last contributions. So an earlier turn that is still out has lost a packet. A
/// notice names this worker's own lost packet. Another worker recovers its own packets. A lost result shows in the
/// sequence numbers of the results to all. So an overtaken turn waits for a round trip, and is then sent again, since
/// no notice may arrive. A turn with a lost result is sent at once.
void SwitchClient::Lane::note_overtaken(uint64_t order, TimeNs now) {
  for (Slot& slot : slots) {
    if (slot.state != SlotState::kWaiting || slot.sends > kHastySendsMax || slot.order > order) continue;
    if (++slot.overtaken != kOvertakenMax) continue;
    slot.due = std::min(slot.due, now + std::max(round_trip.smoothed(), kStillMin));
  }
  hasten_results(now);
}

/// Handles lost packets to all workers. Their turns are unknown. Chooses a turn that has arrived in part, or else the
/// one that is out for longest.
void SwitchClient::Lane::hasten_results(TimeNs now) {
  results_lost += link.take_lost();
  for (; results_lost != 0; --results_lost) {
    Slot* lacking = nullptr;
    for (Slot& slot : slots) {
      if (slot.state != SlotState::kWaiting || slot.overtaken < kOvertakenMax || slot.fast_retransmitted) continue;
      if (lacking == nullptr || slot.result.begun() > lacking->result.begun() ||
          (slot.result.begun() == lacking->result.begun() && slot.order < lacking->order)) {
        lacking = &slot;
      }
    }
    if (lacking == nullptr) return;
    lacking->fast_retransmitted = true;
    lossy_steps = kLossySteps;
    lacking->due = now;
  }
}

}  // namespace millrace::worker
