#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/check.h"
#include "worker/switch/client_state.h"

/// Steps and turns: what is offered, in which order windows have their turns, what is sent.
namespace millrace::worker {

namespace flag = protocol::datagram_flag;

namespace {

/// A window's indices as the window numbers them. One turn's at a time.
std::span<const uint16_t> in_window(IndexSpan indices, uint32_t begin) {
  thread_local Buffer<uint16_t> room;
  room.resize(indices.size());
  std::ranges::transform(indices, room.begin(),
                         [begin](uint32_t index) { return static_cast<uint16_t>(index - begin); });
  return room;
}

/// The payload's room in a packet: a contribution has no extension; a rack that hands it on gives it one.
size_t payload_room(const SwitchClientOptions& options) {
  const size_t spared = options.through_racks ? protocol::kPartialTermsBytes : 0;
  return options.packet_bytes_max - protocol::kDatagramHeaderBytes - protocol::kDatagramMacBytes - spared;
}

}  // namespace

Status SwitchClient::State::begin_step(uint32_t number, std::shared_ptr<StepOffer> own_offer) {
  const auto refuse = [](const char* sentence) {
    return std::unexpected(Error{ErrorCode::kInvalidArgument, sentence});
  };
  if (stepping) return refuse("the step before is not over");
  if (number != next_step) return refuse("another step than the next");
  if (number == UINT32_MAX) return refuse("steps are numbered in 32 bits, and these are used up");
  const StreamView<float>& entries = own_offer->entries.view;
  MILLRACE_CHECK(entries.indices.size() == entries.values.size() && own_offer->sent.size() == entries.indices.size(),
                 entries.indices.size(), entries.values.size(), own_offer->sent.size());
  step = number;
  next_step = number + 1;
  stepping = true;
  offer = std::move(own_offer);
  share_out_pieces();
  return {};
}

/// Each slot its windows.
void SwitchClient::State::share_out_pieces() {
  const IndexSpan indices = offer->entries.view.indices;
  pieces.clear();
  for (Slot& slot : slots) {
    slot.pieces.clear();
    slot.piece = 0;
  }
  for (size_t first = 0; first < indices.size();) {
    const uint32_t window = indices[first] / options.window_indices;
    const uint64_t end = (uint64_t{window} + 1) * options.window_indices;
    const auto rest = indices.subspan(first, std::min<size_t>(indices.size() - first, options.window_indices));
    const auto beyond = std::ranges::lower_bound(rest, end, {}, [](uint32_t index) { return uint64_t{index}; });
    const size_t last = first + static_cast<size_t>(beyond - rest.begin());
    slots[window % options.slots].pieces.push_back(static_cast<uint32_t>(pieces.size()));
    pieces.push_back({.window = window, .first = first, .last = last});
    first = last;
  }
}

void SwitchClient::State::open_step(TimeNs now, protocol::PacketSink& sink) {
  step_is_answered = false;
  results_lost = 0;
  if (lossy_steps != 0) --lossy_steps;
  unopened = false;
  for (uint16_t number = 0; number < slot_count(); ++number) {
    slots[number].ended = false;
    open_turn(number, number, now, sink);
  }
}

void SwitchClient::State::open_turn(uint16_t number, uint32_t window, TimeNs now, protocol::PacketSink& sink) {
  Slot& slot = slots[number];
  slot.window = window;
  slot.first = slot.last = 0;
  if (slot.piece < slot.pieces.size() && pieces[slot.pieces[slot.piece]].window == window) {
    const Piece& piece = pieces[slot.pieces[slot.piece++]];
    slot.first = piece.first;
    slot.last = piece.last;
  }
  slot.next = slot.piece < slot.pieces.size() ? pieces[slot.pieces[slot.piece]].window : protocol::kNoWindow;
  MILLRACE_CHECK(slot.next > window, slot.next, window);

  ContributionTerms terms{.header = {}, .codecs = options.codecs, .window_indices = options.window_indices};
  terms.payload_bytes_max = payload_room(options);
  terms.limit = limit;
  terms.header.type = protocol::DatagramType::kContribution;
  terms.header.flags = finishing && window == number ? flag::kFin : uint8_t{0};
  terms.header.turn = slot.turn;
  terms.header.step = step;
  terms.header.window = window;
  terms.header.next = slot.next;
  terms.header.slot = number;
  terms.header.exponent = static_cast<int8_t>(exponents.of(window));
  const StreamView<float>& entries = offer->entries.view;
  const size_t count = slot.last - slot.first;
  const auto indices = in_window(entries.indices.subspan(slot.first, count), window * options.window_indices);
  make_contribution({indices, entries.values.subspan(slot.first, count)}, terms,
                    std::span(offer->sent).subspan(slot.first, count), slot.sent);
  counters.entries_left_over += slot.sent.left_over;
  counters.entries_saturated += slot.sent.saturated;
  slot.result.clear();
  slot.sends = 0;
  slot.timeouts = 0;
  send_or_hold(number, now, sink);
}

uint32_t SwitchClient::State::waiting() const {
  return static_cast<uint32_t>(std::ranges::count(slots, SlotState::kWaiting, &Slot::state));
}

void SwitchClient::State::send_or_hold(uint16_t number, TimeNs now, protocol::PacketSink& sink) {
  Slot& slot = slots[number];
  slot.state = SlotState::kHeld;
  slot.order = ++orders;
  slot.due = now + round_trip.smoothed();
  send_held(now, sink);
  if (slot.state == SlotState::kHeld) ++counters.held_back;
}

void SwitchClient::State::send_turn(uint16_t number, TimeNs now, protocol::PacketSink& sink) {
  Slot& slot = slots[number];
  slot.state = SlotState::kWaiting;
  // In a rack the second time-out asks for what the switch has, and from the third on every other resend goes past it.
  const bool past = slot.timeouts >= 3 && slot.timeouts % 2 == 1;
  const Way way = rack_phase == RackPhase::kWelcome && !past ? Way::kRack : Way::kDecider;
  transmit(number, way == Way::kRack && slot.timeouts >= 2 ? flag::kFlush : uint8_t{0}, way, sink);
  note_sent(slot, now);
}

void SwitchClient::State::note_sent(Slot& slot, TimeNs now) {
  slot.order = ++orders;
  slot.overtaken = 0;
  slot.hastened = false;
  if (slot.sends++ == 0) slot.sent_at = now;
  slot.last_sent_at = now;
  slot.due = now + round_trip.timeout(slot.timeouts);
}

void SwitchClient::State::transmit(uint16_t number, uint8_t flags, Way way, protocol::PacketSink& sink) {
  const auto fragments = static_cast<uint16_t>(slots[number].sent.fragments.size());
  for (uint16_t at = 0; at < fragments; ++at) transmit_fragment(number, at, flags, way, sink);
}

void SwitchClient::State::transmit_fragment(uint16_t number, uint16_t at, uint8_t flags, Way way,
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

/// What an aggregator lacks is sent again at once: it names the packets, so that no other worker sends anything, and nobody waits
/// for a time-out.
void SwitchClient::State::send_lost(const protocol::Notice& notice, Way way, TimeNs now, protocol::PacketSink& sink) {
  const protocol::SentLog& log = way == Way::kRack ? rack_log : decider_log;
  protocol::lost_of(notice).for_each([&](uint64_t sequence) {
    const protocol::SentLog::Packet* packet = log.find(sequence);
    if (packet != nullptr) send_lost_packet(*packet, way, now, sink);
  });
}

/// packet  a copy: what is sent again may take its place in the log.
void SwitchClient::State::send_lost_packet(protocol::SentLog::Packet packet, Way way, TimeNs now,
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

void SwitchClient::State::send_held(TimeNs now, protocol::PacketSink& sink) {
  if (phase != SwitchPhase::kRunning) return;
  for (uint32_t under_way = waiting(); under_way < congestion.active(); ++under_way) {
    // Who has waited longest goes first: other workers see turns come back in the order in which they sent them.
    const Slot* oldest = nullptr;
    for (const Slot& slot : slots) {
      if (slot.state == SlotState::kHeld && (oldest == nullptr || slot.order < oldest->order)) oldest = &slot;
    }
    if (oldest == nullptr) return;
    send_turn(static_cast<uint16_t>(oldest - slots.data()), now, sink);
  }
}

/// A turn came back that was sent as number `order`. Packets of one way stay in order, mostly, and aggregators close turns in the
/// order in which their last contributions come: what was sent before and is still out has lost a packet. This worker's own is
/// named by a notice; another worker's is that one's concern; what is left, its result, shows in the numbers of those to all. So
/// a turn that is overtaken waits for a round trip, and is sent again then (no notice may come), but where a result is lost.
void SwitchClient::State::note_overtaken(uint64_t order, TimeNs now) {
  for (Slot& slot : slots) {
    if (slot.state != SlotState::kWaiting || slot.sends > kHastySendsMax || slot.order > order) continue;
    if (++slot.overtaken != kOvertakenMax) continue;
    slot.due = std::min(slot.due, now + std::max(round_trip.smoothed(), kStillMin));
  }
  hasten_results(now);
}

/// Packets to all are lost: which turns' they were nobody says. One that has come in part, or else the one that is out for
/// longest.
void SwitchClient::State::hasten_results(TimeNs now) {
  results_lost += link.take_lost();
  for (; results_lost != 0; --results_lost) {
    Slot* lacking = nullptr;
    for (Slot& slot : slots) {
      if (slot.state != SlotState::kWaiting || slot.overtaken < kOvertakenMax || slot.hastened) continue;
      if (lacking == nullptr || slot.result.begun() > lacking->result.begun() ||
          (slot.result.begun() == lacking->result.begun() && slot.order < lacking->order)) {
        lacking = &slot;
      }
    }
    if (lacking == nullptr) return;
    lacking->hastened = true;
    lossy_steps = kLossySteps;
    lacking->due = now;
  }
}

}  // namespace millrace::worker
