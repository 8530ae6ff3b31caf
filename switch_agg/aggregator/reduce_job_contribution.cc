// S4: an arriving CONTRIB, rule by rule. S4.1 to S4.4 are the door's (job_machine.cc).
#include "switch_agg/aggregator/reduce_job.h"

namespace millrace::switch_agg {

using protocol::Datagram;
using protocol::DatagramHeader;
using protocol::NoticeCode;
using Event = AggregatorEvent;
namespace flag = protocol::datagram_flag;

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
  if ((live_ >> header.worker & 1) == 0 || header.slot >= epoch_slots_) return out.count(Event::kStranger);
  if (header.extension_words != 0 || !is_unit_well_formed(header, epoch_slots_)) return out.count(Event::kBadFields);
  contributed_ |= uint64_t{1} << header.worker;
  unit(datagram, out);
}

/// One worker's fragment, from itself or through its rack: header.worker is whose it is.
void ReduceJob::unit(const Datagram& datagram, const Outbox& out) {
  const DatagramHeader& header = datagram.header;
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
  if ((slot.grouped & bit) != 0) return out.count(Event::kDuplicate);
  const bool bound = header.step == slot.step && header.window == slot.window && header.exponent == slot.exponent;
  if (!bound || ((slot.begun & bit) != 0 && contradicts(slot.parts[header.worker], header))) {
    return out.count(Event::kWrongBinding);
  }
  if ((slot.have[header.fragment] & bit) != 0) return out.count(Event::kDuplicate);
  protocol::WindowEntries entries;
  if (decode(header, datagram.payload, entries, out)) add(slot, datagram, entries, out);
}

void ReduceJob::claim(Slot& slot, const Datagram& datagram, const Outbox& out) {
  const DatagramHeader& header = datagram.header;
  if (slot.successor_known && (header.step != slot.successor_step || header.window != slot.successor_window)) {
    return out.count(Event::kWrongBinding);
  }
  // What does not decode claims nothing: the result that the claim overwrites may still be asked for.
  protocol::WindowEntries entries;
  if (!decode(header, datagram.payload, entries, out)) return;
  claim_turn(slot, header, out);
  add(slot, datagram, entries, out);
}

void ReduceJob::claim_turn(Slot& slot, const DatagramHeader& header, const Outbox& out) {
  slot.claim(header);
  if (open_turns_++ == 0) waits_since_ = out.now();
  ended_.reset(header.slot);
  reselection_.on_claim(header.step);
  if (groups_) groups_->begin_turn(header.slot);
}

void ReduceJob::add(Slot& slot, const Datagram& datagram, const protocol::WindowEntries& entries, const Outbox& out) {
  const DatagramHeader& header = datagram.header;
  slot.sum.add(entries, headroom_);
  slot.take_unit(header);
  out.count(Event::kAdded);
  close_if_whole(slot, header.slot, out);
}

void ReduceJob::close_if_whole(Slot& slot, uint16_t number, const Outbox& out) {
  if (slot.whole == live_) close(slot, number, out);
}

}  // namespace millrace::switch_agg
