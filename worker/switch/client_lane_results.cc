#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/base/check.h"
#include "worker/switch/client_state.h"

/// Results of turns: the fragments of a result, its settlement, the turn after it (S5.1 to S5.3).
namespace millrace::worker {

using protocol::Datagram;
using protocol::DatagramHeader;

namespace flag = protocol::datagram_flag;

namespace {

int exponent_of(const DatagramHeader& header) { return header.exponent; }

/// Returns the entries of the update that this worker's rack retained, where it truncated its sum.
std::optional<std::vector<uint16_t>> kept_of(const Gathering& result, uint16_t worker) {
  for (const RackSelection& rack : result.racks()) {
    if ((rack.workers >> worker & 1) == 0) continue;
    std::vector<uint16_t> kept;
    for (size_t i = 0; i < rack.kept.size(); ++i) {
      if (rack.kept[i] != 0) kept.push_back(result.indices()[i]);
    }
    return kept;
  }
  return std::nullopt;
}

}  // namespace

/// Says whether a RESULT is of the turn that is out, in this epoch and incarnation. The client ignores all others.
bool SwitchClient::Lane::fits_turn(const DatagramHeader& header) {
  if (header.slot >= slots.size()) {
    ++counters.contradiction;
    return false;
  }
  const Slot& slot = slots[header.slot];
  if (slot.state == SlotState::kDone || header.turn != slot.turn) {
    ++counters.other_turn;
    return false;
  }
  return true;
}

/// Says whether an authentic result follows the rules, so that this worker may proceed by it.
bool SwitchClient::Lane::keeps_the_rules(const Slot& slot, uint16_t number, const DatagramHeader& header) const {
  if (header.step != steps.step || header.window != slot.window) return false;
  if (header.exponent != slot.sent.fragments.front().header.exponent) return false;
  if (header.next > slot.next) return false;  // a window that this worker asked for would be left out
  if (header.next == protocol::kNoWindow) return true;
  return header.next > slot.window && header.next < windows && header.next % slots.size() == number;
}

void SwitchClient::Lane::count_taken(Gathering::Taken taken) {
  if (taken == Gathering::Taken::kDuplicate) ++counters.duplicates;
  if (taken == Gathering::Taken::kContradiction) ++counters.contradiction;
  if (taken == Gathering::Taken::kBadPayload) ++counters.bad_payload;
}

void SwitchClient::Lane::on_result(const Datagram& datagram, TimeNs now, protocol::PacketSink& sink) {
  if (!fits_turn(datagram.header)) return;
  const uint16_t number = datagram.header.slot;
  Slot& slot = slots[number];
  const std::optional<protocol::ResultTerms> terms = protocol::read_result_terms(datagram.extension);
  if (!terms || !keeps_the_rules(slot, number, datagram.header)) {
    ++counters.contradiction;
    return;
  }
  const Gathering::Taken taken = slot.result.take(datagram, options.window_indices);
  count_taken(taken);
  // The same short fragment again ends no silence: the others may be too long for the path.
  if (taken == Gathering::Taken::kMore || taken == Gathering::Taken::kWhole) heard(now);
  const bool once = slot.sends == 1;
  const uint64_t order = slot.order;
  if (!complete_if_whole(number, now)) return;
  if (!std::exchange(step_is_answered, true)) {
    // From now on silence means loss, and each slot asks for itself.
    for (Slot& other : slots) other.due = std::min(other.due, now + round_trip.timeout(0));
  }
  slot.state = SlotState::kDone;
  moved_at = now;
  if (once) note_overtaken(order, now);
  advance(number, datagram.header.next, now, sink);
}

/// Settles the turn once its result is whole: once, and all of it.
bool SwitchClient::Lane::complete_if_whole(uint16_t number, TimeNs now) {
  Slot& slot = slots[number];
  if (!slot.result.whole()) return false;
  slot.result.take_packets(slot.kept);
  const protocol::ResultTerms terms = *protocol::read_result_terms(slot.kept.front().extension);
  const bool contributed = (terms.contributors >> options.worker & 1) != 0;
  const std::optional<std::vector<uint16_t>> kept = kept_of(slot.result, options.worker);
  steps.exponents.observe(window_of_all(slot.window), slot.result.header().exponent, slot.result.integers());
  note_result_of_removal(number);
  if (slot.window == number) {
    slot.ended = (slot.result.header().flags & flag::kFin) != 0;
    slot.ended_by = terms.contributors;
    slot.ended_epoch = terms.decided_epoch;
  }
  ++counters.results;
  if (!contributed) ++counters.not_contributor;
  if (slot.sends == 1 && slot.timeouts == 0) {
    // How long an opening takes says when the other workers began the step, and nothing of the network.
    if (slot.window != number || windows == slots.size()) round_trip.sample(now - slot.sent_at);
    congestion.clean_result();
  }
  CompletedWindow completed = completed_window(number, slot.window, slot.first, slot.last);
  completed.exponent = exponent_of(slot.result.header());
  completed.contributors = terms.contributors;
  completed.decided_epoch = terms.decided_epoch;
  completed.indices = slot.result.indices();
  completed.sums = slot.result.integers();
  completed.racks = slot.result.racks();
  if (contributed) completed.applied = kept ? *kept : slot.result.indices();
  steps.outcome.on_completed(completed);
  keep_applied(slot, completed.applied);
  slot.result.drop_entries();
  ++slot.turn;
  return true;
}

/// Returns the owner's report on these entries of the step, as not applied.
CompletedWindow SwitchClient::Lane::completed_window(uint16_t number, uint32_t window, size_t first,
                                                     size_t last) const {
  CompletedWindow completed;
  completed.step = steps.step;
  completed.window = window_of_all(window);
  completed.slot = static_cast<uint16_t>(number * options.lanes + lane);
  completed.turn = slots[number].turn;
  completed.begin = completed.window * options.window_indices;
  completed.first = first;
  completed.offered = steps.offer->entries.view.indices.subspan(first, last - first);
  completed.values = steps.offer->entries.view.values.subspan(first, last - first);
  completed.sent = std::span<const int32_t>(steps.offer->sent).subspan(first, last - first);
  return completed;
}

void SwitchClient::Lane::keep_applied(Slot& slot, std::span<const uint16_t> where) {
  std::swap(slot.applied[0], slot.applied[1]);
  Applied& applied = slot.applied[0];
  applied.exponent = exponent_of(slot.result.header());
  applied.begin = window_of_all(slot.window) * options.window_indices;
  applied.offer = steps.offer;
  applied.first = slot.first;
  applied.last = slot.last;
  applied.applied.assign(where.begin(), where.end());
}

/// The turn after a settled one: at once, or with the next step.
void SwitchClient::Lane::advance(uint16_t number, uint32_t next, TimeNs now, protocol::PacketSink& sink) {
  if (next != protocol::kNoWindow) {
    open_turn(number, next, now, sink);
  } else {
    slots[number].state = SlotState::kDone;
    steps.end_step_if_over(now, sink);
  }
  send_delayed(now, sink);
}

}  // namespace millrace::worker
