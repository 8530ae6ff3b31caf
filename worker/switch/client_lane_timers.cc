#include <algorithm>
#include <limits>

#include "worker/switch/client_state.h"

/// Time-outs of turns and hellos (S5.4), an aggregator's silence (S5.6, S5.7).
namespace millrace::worker {
namespace {

/// An idle worker repeats its HELLO this often (S5.7).
constexpr TimeNs kGreetAgainAfter = kNsPerS / 2;

}  // namespace

void SwitchClient::Lane::tick(TimeNs now, protocol::PacketSink& sink) {
  if (phase == SwitchPhase::kOutside) return;
  tick_rack(now, sink);
  if (phase == SwitchPhase::kAsking || phase == SwitchPhase::kHello) {
    if (now < hello_due) return;
    ++hello_timeouts;
    ++counters.timeouts;
    const bool asking = phase == SwitchPhase::kAsking;
    if (asking) {
      ++silent_timeouts;
      return ask_incarnation(now, sink);
    }
    say_hello(now, sink);
    return note_silence(now, sink);
  }
  if (idle()) return probe_idly(now, sink);
  for (uint16_t number = 0; number < slot_count(); ++number) {
    Slot& slot = slots[number];
    if (slot.state == SlotState::kDone || now < slot.due) continue;
    if (slot.state == SlotState::kDelayed) {
      send_turn(number, now, sink);
    } else if (slot.overtaken >= kOvertakenMax && slot.sends <= kHastySendsMax) {
      ++counters.overtaken;
      if (slot.fast_retransmitted) congestion.lost(now, round_trip.smoothed());
      send_turn(number, now, sink);
    } else {
      time_out(number, now, sink);
    }
  }
  if (now >= still_due()) probe_idle(now, sink);
}

/// Sends turns again that are out for longer than a turn takes, after a time without results. The last turns of a step
/// are not overtaken, and no sequence number shows a gap. It does not count as congestion (as the tail loss probe of
/// [RFC8985]).
void SwitchClient::Lane::probe_idle(TimeNs now, protocol::PacketSink& sink) {
  const TimeNs timeout = idle_timeout();
  moved_at = now;
  for (uint16_t number = 0; number < slot_count(); ++number) {
    if (!may_probe(slots[number]) || now - slots[number].last_sent_at < timeout) continue;
    ++counters.probes;
    send_turn(number, now, sink);
  }
}

bool SwitchClient::Lane::may_probe(const Slot& slot) const {
  return step_is_answered && slot.state == SlotState::kWaiting && slot.sends <= kHastySendsMax;
}

TimeNs SwitchClient::Lane::idle_timeout() const {
  const TimeNs expected = round_trip.expected(waiting(), slot_count());
  return std::max(expected + expected / 2, still_min());
}

TimeNs SwitchClient::Lane::still_due() const {
  TimeNs oldest = std::numeric_limits<TimeNs>::max();
  for (const Slot& slot : slots) {
    if (may_probe(slot)) oldest = std::min(oldest, slot.last_sent_at);
  }
  if (oldest == std::numeric_limits<TimeNs>::max()) return oldest;
  return std::max(oldest + idle_timeout(), moved_at + still_min());
}

void SwitchClient::Lane::time_out(uint16_t number, TimeNs now, protocol::PacketSink& sink) {
  Slot& slot = slots[number];
  // No result of this step has arrived, so a worker has not begun it. That is no congestion, and one slot asks for all.
  const auto asks = std::ranges::find(slots, SlotState::kWaiting, &Slot::state);
  if (!step_is_answered && asks - slots.begin() != number) {
    slot.due = asks->due;
    return;
  }
  ++slot.timeouts;
  ++counters.timeouts;
  if (step_is_answered) congestion.backed_off(now, round_trip.smoothed());
  send_turn(number, now, sink);
  if (slot.timeouts >= 2) suspect_rack(now, sink);
  note_silence(now, sink);
}

/// Nothing authentic has come for several time-outs: slow workers, a dead aggregator, or a new address of this worker.
/// A challenge tells whether the aggregator lives: it goes to the request's address. Results go to that of the latest
/// HELLO.
void SwitchClient::Lane::note_silence(TimeNs now, protocol::PacketSink& sink) {
  // Slots time out together: that is one silence.
  if (now - silence_counted_at < round_trip.timeout(0) / 2) return;
  silence_counted_at = now;
  if (++silent_timeouts < options.silent_timeouts_to_probe) return;
  if (asked_at != INT64_MIN && now - asked_at < round_trip.timeout(0)) return;
  link.request_challenge(epoch.epoch, sink);
  ++counters.challenge_requests;
  asked_at = now;
  if (phase == SwitchPhase::kRunning) say_hello(now, sink);
}

/// Notes a congestion mark. Only of authentic packets that are neither replays nor hints: otherwise an attacker could
/// slow this worker down. The mark may be of this worker's way from the aggregator. Or it is of another worker's way
/// there, and the aggregator passes it on: a turn waits for all.
void SwitchClient::Lane::note_mark(protocol::Ecn ecn, TimeNs now) {
  if (ecn != protocol::Ecn::kCe) return;
  ++counters.congestion_marks;
  congestion.marked(now, round_trip.smoothed());
}

void SwitchClient::Lane::heard(TimeNs now) {
  silent_timeouts = 0;
  heard_at = now;
}

bool SwitchClient::Lane::idle() const {
  return std::ranges::all_of(slots, [](const Slot& slot) { return slot.state == SlotState::kDone; });
}

TimeNs SwitchClient::Lane::idle_probe_due() const { return std::max(heard_at, asked_at) + options.idle_probe_ns; }

/// Between steps, or finished, nothing of this worker's times out: but a restarted aggregator waits for the hellos of
/// all.
void SwitchClient::Lane::probe_idly(TimeNs now, protocol::PacketSink& sink) {
  if (now < idle_probe_due()) return;
  if (asked_at > heard_at) ++silent_timeouts;
  link.request_challenge(epoch.epoch, sink);
  ++counters.challenge_requests;
  asked_at = now;
  // The lease ends without authentic packets of the epoch, and a CHALREQ is none: it may be a replay. A worker that
  // finishes does not hold the number of its job.
  if (!steps.finishing && now - greeted_at >= kGreetAgainAfter) say_hello(now, sink);
}

TimeNs SwitchClient::Lane::next_deadline() const { return std::min(turn_deadline(), rack_deadline()); }

TimeNs SwitchClient::Lane::turn_deadline() const {
  constexpr TimeNs kNever = std::numeric_limits<TimeNs>::max();
  if (phase == SwitchPhase::kOutside) return kNever;
  if (phase != SwitchPhase::kRunning) return hello_due;
  if (idle()) return idle_probe_due();
  TimeNs soonest = still_due();
  for (const Slot& slot : slots) {
    if (slot.state != SlotState::kDone) soonest = std::min(soonest, slot.due);
  }
  return soonest;
}

}  // namespace millrace::worker
