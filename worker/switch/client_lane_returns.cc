#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/base/check.h"
#include "worker/switch/applied_entries.h"
#include "worker/switch/client_state.h"

/// Workers that leave and join. A step waits while a joiner takes over this worker's state. Contributions of a removed
/// worker that may have been counted (S6.8) are remembered, and resolve its step when it rejoins.
namespace millrace::worker {

/// Notes the workers that the opening removed: those of the last opening that left, or have another incarnation.
void SwitchClient::Lane::note_removal(const protocol::WelcomeTerms& welcome) {
  SwitchRemoval removal{.epoch = epoch.epoch, .gone = {}, .slots = {}};
  for (uint16_t worker = 0; worker < protocol::kSwitchWorkersMax; ++worker) {
    if ((opened_live >> worker & 1) == 0) continue;
    const bool stays = (epoch.live >> worker & 1) != 0 && epoch.incarnations[worker] == opened_incarnations[worker];
    if (!stays) removal.gone.emplace_back(worker, opened_incarnations[worker]);
  }
  // The workers with a removal's result T are gone as well, and the remaining ones did not have it yet: it is computed
  // again.
  for (SwitchRemoval& one : removals) {
    for (size_t at = 0; at < slots.size(); ++at) {
      if (welcome.turns[at] >= one.slots[at].turn) continue;
      one.slots[at] = {.turn = welcome.turns[at], .result = {}};
    }
  }
  opened_live = epoch.live;
  opened_incarnations = epoch.incarnations;
  if (removal.gone.empty()) return;
  for (size_t at = 0; at < slots.size(); ++at) {
    SwitchRemoval::Slot& slot = removal.slots.emplace_back();
    slot.turn = welcome.turns[at];
    // A worker that is a turn behind gets that result next.
    if (slots[at].turn == slot.turn + 1) slot.result = slots[at].kept;
  }
  removals.insert(removals.begin(), std::move(removal));
  if (removals.size() > kSwitchRemovalsMax) removals.pop_back();
}

SwitchHandover::Lane SwitchClient::Lane::handover() const {
  SwitchHandover::Lane out{
      .slots = {}, .removals = removals, .opened_live = opened_live, .opened_incarnations = opened_incarnations};
  for (const Slot& slot : slots) out.slots.push_back({slot.turn, slot.kept});
  return out;
}

void SwitchClient::Lane::take_over(const SwitchHandover::Lane& handover) {
  MILLRACE_CHECK(handover.slots.size() == slots.size(), handover.slots.size(), slots.size());
  for (size_t at = 0; at < slots.size(); ++at) {
    slots[at].turn = handover.slots[at].turn;
    slots[at].kept = handover.slots[at].last_result;
  }
  removals = handover.removals;
  opened_live = handover.opened_live;
  opened_incarnations = handover.opened_incarnations;
}

/// The slot's turn is settled, and not counted up yet.
void SwitchClient::Lane::note_result_of_removal(uint16_t number) {
  for (SwitchRemoval& removal : removals) {
    SwitchRemoval::Slot& of = removal.slots[number];
    if (of.turn == slots[number].turn && of.result.empty()) of.result = slots[number].kept;
  }
}

/// Says that all workers have sent FIN under their present incarnations: a later joiner has not.
bool SwitchClient::Lane::all_ended() const {
  return std::ranges::all_of(slots, [this](const Slot& slot) {
    if (!slot.ended || (epoch.live & ~slot.ended_by) != 0) return false;
    for (uint64_t left = epoch.live; left != 0; left &= left - 1) {
      if (steps.live_since[static_cast<size_t>(std::countr_zero(left))] > slot.ended_epoch) return false;
    }
    return true;
  });
}

SwitchRevoked SwitchClient::Lane::revoke(const Applied& applied) {
  SwitchRevoked revoked;
  revoked.exponent = applied.exponent;
  if (!applied.offer) return revoked;
  const size_t count = applied.last - applied.first;
  const IndexSpan indices = applied.offer->entries.view.indices.subspan(applied.first, count);
  const auto sent = std::span(applied.offer->sent).subspan(applied.first, count);
  revoked.indices.assign(indices.begin(), indices.end());
  revoked.integers.resize(count);
  take_applied(indices, applied.begin, sent, applied.applied, revoked.integers);
  return revoked;
}

/// removal  the one that names the incarnation with which this worker left.
void SwitchClient::Lane::revoke_behind(const SwitchRemoval& removal, std::vector<SwitchRevoked>& revoked) {
  for (uint16_t number = 0; number < slot_count(); ++number) {
    // This worker has results behind T that no other remaining worker has. One turn, where it alone had it. Two, where
    // another worker that had the one before was removed later.
    std::array<Applied, 2>& applied = slots[number].applied;
    const uint64_t behind = slots[number].turn - std::min(slots[number].turn, removal.slots[number].turn + 1);
    for (uint64_t at = 0; at < std::min<uint64_t>(behind, applied.size()); ++at)
      revoked.push_back(revoke(std::exchange(applied[at], {})));
  }
}

/// removal  as above; null: no worker knows of one.
void SwitchClient::Lane::abandon_turns(const SwitchRemoval* removal) {
  for (uint16_t number = 0; number < slot_count(); ++number) {
    if (!steps.unopened && slots[number].state != SlotState::kDone) abandon_turn(number, removal);
    return_pieces(number);
    slots[number].state = SlotState::kDone;
  }
}

/// A turn that was out, or was about to be. REQUIRES: the slot is not done.
void SwitchClient::Lane::abandon_turn(uint16_t number, const SwitchRemoval* removal) {
  Slot& slot = slots[number];
  const auto returns_all = [&] { return_window(number, slot.window, slot.first, slot.last); };
  if (slot.sends == 0) return returns_all();
  if (removal == nullptr) return;
  const SwitchRemoval::Slot& of = removal->slots[number];
  if (slot.turn > of.turn) return returns_all();
  slot.result.clear();
  for (const Fragment& fragment : of.result) {
    slot.result.take({fragment.header, fragment.extension, fragment.payload, {}, {}}, options.window_indices);
  }
  const bool is_it = slot.turn == of.turn && slot.result.whole() && keeps_the_rules(slot, number, slot.result.header());
  slot.timeouts = 1;  // no sample of a round trip
  if (is_it) complete_if_whole(number, 0);
}

/// Returns entries to the residual: those of windows that have not had their turn in this step.
void SwitchClient::Lane::return_pieces(uint16_t number) {
  Slot& slot = slots[number];
  for (; slot.piece < slot.pieces.size(); ++slot.piece) {
    const State::Piece& piece = steps.pieces[slot.pieces[slot.piece]];
    return_window(number, piece.window, piece.first, piece.last);
  }
}

/// first, last  of the step's entries.
void SwitchClient::Lane::return_window(uint16_t number, uint32_t window, size_t first, size_t last) {
  std::fill(steps.offer->sent.begin() + static_cast<std::ptrdiff_t>(first),
            steps.offer->sent.begin() + static_cast<std::ptrdiff_t>(last), 0);
  steps.outcome.on_completed(completed_window(number, window, first, last));
}

}  // namespace millrace::worker
