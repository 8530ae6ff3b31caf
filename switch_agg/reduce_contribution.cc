// Section 4: an arriving CONTRIB, case by case, in the order of its table. Rows up to "wrong life" are the door's
// (reduce_job.cc).
#include <algorithm>
#include <limits>

#include "switch_agg/reduce_job.h"

namespace millrace::switch_agg {

using protocol::Datagram;
using protocol::DatagramHeader;
using protocol::kNoWindow;
using protocol::NoticeCode;
using Event = AggregatorEvent;
namespace flag = protocol::datagram_flag;

namespace {

/// Fields that no state is needed for to see that they cannot be.
bool is_well_formed(const Datagram& datagram, uint32_t slots) {
  const DatagramHeader& header = datagram.header;
  constexpr uint8_t kPossible = flag::kLast | flag::kEmpty | flag::kDense | flag::kFlush | flag::kFin;
  if (header.extension_words != 0 || (header.flags & ~kPossible) != 0) return false;
  if ((header.flags & flag::kEmpty) != 0 &&
      ((header.flags & flag::kLast) == 0 || header.fragment != 0 || header.entries != 0 || header.payload_bytes != 0)) {
    return false;
  }
  if ((header.flags & flag::kFin) != 0 && ((header.flags & flag::kEmpty) == 0 || header.next != kNoWindow))
    return false;
  // A slot's windows are those of its stripe, in order. Steps do not wrap: there is none after the last.
  if (header.window == kNoWindow || header.step == std::numeric_limits<uint32_t>::max()) return false;
  const bool in_order = header.next == kNoWindow || (header.next > header.window && header.next % slots == header.slot);
  return in_order && header.window % slots == header.slot;
}

/// LAST or `next` contradicts what this worker said in an earlier fragment.
bool contradicts(const Slot::Part& part, const DatagramHeader& header) {
  if (header.next != part.next) return true;
  const bool last = (header.flags & flag::kLast) != 0;
  if (part.last != Slot::kUnknown) return last != (header.fragment == part.last) || header.fragment > part.last;
  return last && header.fragment < part.top;
}

}  // namespace

void ReduceJob::contribution(const Datagram& datagram, const Outbox& out) {
  const DatagramHeader& header = datagram.header;
  if (header.epoch < epoch_) {
    out.count(Event::kOldEpoch);
    return notice(header.worker, NoticeCode::kOldEpoch, out);
  }
  if (header.epoch > epoch_ || phase_ != Phase::kOpen) {
    out.count(Event::kNotOpen);
    return notice(header.worker, NoticeCode::kSayHello, out);
  }
  if ((live_ >> header.worker & 1) == 0 || header.slot >= slots_.size()) return out.count(Event::kStranger);
  if (!is_well_formed(datagram, job_.slots)) return out.count(Event::kBadFields);
  Slot& slot = this->slot(header.slot);
  if (header.turn > slot.cur) {
    if (slot.open || header.turn - slot.cur > 1) return out.count(Event::kFuture);
    return claim(slot, datagram, out);
  }
  if (slot.cur - header.turn > 1) return out.count(Event::kPast);
  if (header.turn == slot.cur && slot.open) return current(slot, datagram, out);
  out.count(header.turn == slot.cur ? Event::kCurrentClosed : Event::kPrevious);
  send_kept(slot, header.turn, header.worker, out);
}

void ReduceJob::current(Slot& slot, const Datagram& datagram, const Outbox& out) {
  const DatagramHeader& header = datagram.header;
  const uint64_t bit = uint64_t{1} << header.worker;
  const bool bound = header.step == slot.step && header.window == slot.window && header.exponent == slot.exponent;
  if (!bound || ((slot.begun & bit) != 0 && contradicts(slot.parts[header.worker], header))) {
    return out.count(Event::kWrongBinding);
  }
  if ((slot.have[header.fragment] & bit) != 0) return out.count(Event::kDuplicate);
  protocol::WindowEntries entries;
  if (decode(datagram, entries, out)) add(slot, datagram, entries, out);
}

void ReduceJob::claim(Slot& slot, const Datagram& datagram, const Outbox& out) {
  const DatagramHeader& header = datagram.header;
  if (slot.successor_known && (header.step != slot.successor_step || header.window != slot.successor_window)) {
    return out.count(Event::kWrongBinding);
  }
  // What does not decode claims nothing: the result that the claim overwrites may still be asked for.
  protocol::WindowEntries entries;
  if (!decode(datagram, entries, out)) return;
  slot.claim(header);
  reselection_.on_claim(header.step);
  add(slot, datagram, entries, out);
}

bool ReduceJob::decode(const Datagram& datagram, protocol::WindowEntries& entries, const Outbox& out) const {
  if ((datagram.header.flags & flag::kEmpty) != 0) return true;
  const protocol::WindowRoom room{scratch_->entry_indices, scratch_->entry_values};
  const auto count = decode_window(datagram.header, datagram.payload, job_.window_indices, room);
  if (!count) {
    out.count(Event::kMalformedPayload);
    return false;
  }
  entries = {std::span(scratch_->entry_indices).first(*count), std::span(scratch_->entry_values).first(*count)};
  return true;
}

void ReduceJob::add(Slot& slot, const Datagram& datagram, const protocol::WindowEntries& entries, const Outbox& out) {
  const DatagramHeader& header = datagram.header;
  const uint64_t bit = uint64_t{1} << header.worker;
  slot.sum.add(entries, headroom_);
  Slot::Part& part = slot.parts[header.worker];
  if ((slot.begun & bit) == 0) {
    part = {.next = header.next};
    slot.begun |= bit;
    slot.next = std::min(slot.next, header.next);  // kNoWindow is the largest number
    slot.all_fin = slot.all_fin && (header.flags & flag::kFin) != 0;
  }
  slot.have[header.fragment] |= bit;
  ++part.fragments;
  part.top = std::max(part.top, header.fragment);
  if ((header.flags & flag::kLast) != 0) part.last = header.fragment;
  out.count(Event::kAdded);
  if (part.last == Slot::kUnknown || part.fragments != part.last + 1) return;
  slot.whole |= bit;
  if (slot.whole == live_) close(slot, header.slot, out);
}

}  // namespace millrace::switch_agg
