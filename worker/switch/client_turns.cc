#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "worker/switch/client_state.h"

/// Steps and turns: what is offered, in which order windows have their turns, what is sent.
namespace millrace::worker {

namespace flag = protocol::datagram_flag;

namespace {

constexpr size_t kPartialTermsBytes = 24;

/// The payload's room in a packet: a contribution has no extension; a rack that hands it on gives it one.
size_t payload_room(const SwitchClientOptions& options) {
  const size_t spared = options.through_racks ? kPartialTermsBytes : 0;
  return options.packet_bytes_max - protocol::kDatagramHeaderBytes - protocol::kDatagramMacBytes - spared;
}

}  // namespace

Status SwitchClient::State::begin_step(uint32_t number, IndexSpan own_indices, std::span<const float> own_values) {
  const auto refuse = [](const char* sentence) {
    return std::unexpected(Error{ErrorCode::kInvalidArgument, sentence});
  };
  if (stepping) return refuse("the step before is not over");
  if (number != next_step) return refuse("another step than the next");
  if (number == UINT32_MAX) return refuse("steps are numbered in 32 bits, and these are used up");
  if (own_indices.size() != own_values.size()) return refuse("as many values as indices");
  for (size_t i = 0; i < own_indices.size(); ++i) {
    if (own_indices[i] >= options.dimension || (i > 0 && own_indices[i] <= own_indices[i - 1])) {
      return refuse("indices are strictly increasing and within the tensor");
    }
    if (!std::isfinite(own_values[i])) return refuse("values are finite");
  }
  step = number;
  next_step = number + 1;
  stepping = true;
  indices.assign(own_indices.begin(), own_indices.end());
  values.assign(own_values.begin(), own_values.end());
  pieces.clear();
  for (Slot& slot : slots) {
    slot.pieces.clear();
    slot.piece = 0;
  }
  for (size_t i = 0; i < indices.size(); ++i) {
    const uint32_t window = indices[i] / options.window_indices;
    if (pieces.empty() || pieces.back().window != window) {
      slots[window % options.slots].pieces.push_back(static_cast<uint32_t>(pieces.size()));
      pieces.push_back({.window = window, .first = i, .last = i});
    }
    pieces.back().last = i + 1;
  }
  return {};
}

void SwitchClient::State::open_step(TimeNs now, protocol::PacketSink& sink) {
  unopened = false;
  for (uint16_t number = 0; number < slot_count(); ++number) {
    slots[number].ended = false;
    open_turn(number, number, now, sink);
  }
}

void SwitchClient::State::open_turn(uint16_t number, uint32_t window, TimeNs now, protocol::PacketSink& sink) {
  Slot& slot = slots[number];
  slot.window = window;
  slot.offer.indices.clear();
  slot.offer.values.clear();
  if (slot.piece < slot.pieces.size() && pieces[slot.pieces[slot.piece]].window == window) {
    const Piece& piece = pieces[slot.pieces[slot.piece++]];
    for (size_t i = piece.first; i < piece.last; ++i) {
      slot.offer.indices.push_back(static_cast<uint16_t>(indices[i] - window * options.window_indices));
      slot.offer.values.push_back(values[i]);
    }
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
  slot.sent = make_contribution(slot.offer, terms);
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
  if (phase != SwitchPhase::kRunning) return;  // its welcome sends it
  if (waiting() < congestion.active()) return send_turn(number, now, sink);
  ++counters.held_back;
  slot.due = now + round_trip.smoothed();
}

void SwitchClient::State::send_turn(uint16_t number, TimeNs now, protocol::PacketSink& sink) {
  Slot& slot = slots[number];
  slot.state = SlotState::kWaiting;
  // In a rack the second time-out asks for what the switch has, and from the third on every other resend goes past it.
  const bool past = slot.timeouts >= 3 && slot.timeouts % 2 == 1;
  const Way way = rack_phase == RackPhase::kWelcome && !past ? Way::kRack : Way::kDecider;
  transmit(slot, way == Way::kRack && slot.timeouts >= 2 ? flag::kFlush : uint8_t{0}, way, sink);
  if (slot.sends++ == 0) slot.sent_at = now;
  slot.due = now + round_trip.timeout(slot.timeouts);
}

void SwitchClient::State::transmit(const Slot& slot, uint8_t flags, Way way, protocol::PacketSink& sink) {
  for (const Fragment& fragment : slot.sent.fragments) {
    protocol::DatagramHeader header = fragment.header;
    header.flags |= flags;
    header.epoch = epoch.epoch;
    if (way == Way::kRack) {
      rack_link.send(header, {}, fragment.payload, epoch.rack, sink);
      ++counters.sent_to_rack;
    } else {
      link.send(header, {}, fragment.payload, epoch.decider, sink);
    }
    if (slot.sends > 0) ++counters.resends;
  }
}

void SwitchClient::State::send_held(TimeNs now, protocol::PacketSink& sink) {
  if (phase != SwitchPhase::kRunning) return;
  while (waiting() < congestion.active()) {
    const auto held = std::ranges::find(slots, SlotState::kHeld, &Slot::state);
    if (held == slots.end()) return;
    send_turn(static_cast<uint16_t>(held - slots.begin()), now, sink);
  }
}

}  // namespace millrace::worker
