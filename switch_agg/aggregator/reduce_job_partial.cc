// Packets that racks forward: units as received, and groups (S7.2, S7.3).
#include <bit>
#include <limits>

#include "switch_agg/aggregator/reduce_job.h"

namespace millrace::switch_agg {

using protocol::Datagram;
using protocol::DatagramHeader;
using protocol::PartialTerms;
using Event = AggregatorEvent;
namespace flag = protocol::datagram_flag;

namespace {

/// Fields of a group's part that no state is needed for: as a unit's, but that a rack may have cut it.
bool is_part_well_formed(DatagramHeader header, uint32_t slots) {
  if ((header.flags & flag::kFlush) != 0) return false;
  header.flags &= static_cast<uint8_t>(~flag::kReselected);
  return is_unit_well_formed(header, slots);
}

/// A unit as its worker would have sent it. `last` says of a unit what its flag says.
bool is_unit(const DatagramHeader& header, const PartialTerms& terms) {
  return std::has_single_bit(terms.have) && terms.last == ((header.flags & flag::kLast) != 0 ? terms.have : 0);
}

}  // namespace

void ReduceJob::partial(const Datagram& datagram, const Outbox& out) {
  const DatagramHeader& header = datagram.header;
  if (header.epoch != epoch_ || phase_ != Phase::kOpen) {
    return out.count(header.epoch < epoch_ ? Event::kOldEpoch : Event::kNotOpen);
  }
  const uint32_t rack = header.worker - uint32_t{protocol::kRackWorkers};
  const auto terms = protocol::read_partial_terms(datagram.extension);
  if (!terms) return out.count(Event::kBadFields);
  const uint64_t workers = job_.racks[rack] & live_;
  if (terms->have == 0 || (terms->have & ~workers) != 0 || header.slot >= epoch_slots_) {
    return out.count(Event::kStranger);
  }
  if (terms->hash != 0) {
    if (terms->have != workers || !is_part_well_formed(header, epoch_slots_)) return out.count(Event::kBadFields);
    return group_part(rack, datagram, *terms, out);
  }
  if (!is_unit(header, *terms) || !is_unit_well_formed(header, epoch_slots_)) return out.count(Event::kBadFields);
  Datagram alone = datagram;
  alone.header.worker = static_cast<uint16_t>(std::countr_zero(terms->have));
  unit(alone, out);
}

void ReduceJob::group_part(uint32_t rack, const Datagram& datagram, const PartialTerms& terms, const Outbox& out) {
  const DatagramHeader& header = datagram.header;
  Slot& slot = this->slot(header.slot);
  const bool is_open = header.turn == slot.cur && slot.open;
  const bool is_next = header.turn == slot.cur + 1 && !slot.open;
  if (!is_open && !is_next) {
    if (header.turn > slot.cur) return out.count(Event::kFuture);
    if (slot.cur - header.turn > 1) return out.count(Event::kPast);
    out.count(header.turn == slot.cur ? Event::kCurrentClosed : Event::kPrevious);
    for (uint64_t left = terms.last; left != 0; left &= left - 1) {
      send_kept(slot, header.turn, static_cast<uint16_t>(std::countr_zero(left)), out);
    }
    return;
  }
  const bool bound =
      is_open ? header.step == slot.step && header.window == slot.window && header.exponent == slot.exponent
              : !slot.successor_known || (header.step == slot.successor_step && header.window == slot.successor_window);
  if (!bound) return out.count(Event::kWrongBinding);
  if (is_open && (slot.begun & terms.have) != 0) return out.count(Event::kGroupOverlap);
  protocol::WindowEntries entries;
  if (!decode(header, datagram.payload, entries, out)) return;
  const KeptResult::Kept taken = groups_->take(header.slot, rack, header, terms, datagram.payload);
  if (taken == KeptResult::Kept::kRefused) return out.count(Event::kDuplicate);
  out.count(Event::kGroupPart);
  if (taken == KeptResult::Kept::kTaken) return;
  if (is_group_right(rack, header.slot, terms.have, out)) {
    if (is_next) claim_turn(slot, header, out);
    add_group(rack, header.slot, terms.have, out);
  }
  groups_->forget(header.slot, rack);
}

/// Says whether a group is valid: indices increase from part to part, and no sum is larger than its workers can make
/// it. A group counts only when all of it is valid.
bool ReduceJob::is_group_right(uint32_t rack, uint32_t number, uint64_t workers, const Outbox& out) {
  const int64_t most = int64_t{headroom_} * std::popcount(workers);
  const KeptResult& parts = groups_->parts(number, rack);
  int32_t before = -1;
  for (uint32_t part = 0; part < parts.fragments(); ++part) {
    protocol::WindowEntries entries;
    if (!decode(parts.header(part), groups_->payload(number, rack, part), entries, out)) return false;
    bool right = entries.indices.empty() || entries.indices.front() > before;
    for (const int32_t value : entries.values) right = right && value >= -most && value <= most;
    if (!right) {
      out.count(Event::kMalformedPayload);
      return false;
    }
    if (!entries.indices.empty()) before = entries.indices.back();
  }
  return true;
}

void ReduceJob::add_group(uint32_t rack, uint32_t number, uint64_t workers, const Outbox& out) {
  const KeptResult& parts = groups_->parts(number, rack);
  const DatagramHeader first = parts.header(0);
  const bool cut = (first.flags & flag::kReselected) != 0;
  Slot& slot = this->slot(number);
  if (cut) groups_->mark_reduced(number, rack, workers);
  for (uint32_t part = 0; part < parts.fragments(); ++part) {
    protocol::WindowEntries entries;
    decode(parts.header(part), groups_->payload(number, rack, part), entries, out);
    slot.sum.add(entries, std::numeric_limits<int32_t>::max());
    if (cut) groups_->mark_entries(number, rack, entries.indices);
  }
  slot.take_group(workers, first);
  out.count(Event::kGroupAdded);
  close_if_whole(slot, static_cast<uint16_t>(number), out);
}

}  // namespace millrace::switch_agg
