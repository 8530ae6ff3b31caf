#include "switch_agg/aggregator/reduce_job.h"

namespace millrace::switch_agg {

using protocol::Datagram;
using protocol::DatagramHeader;
using protocol::DatagramType;
using protocol::kSwitchWorkersMax;
using protocol::NoticeCode;
using Event = AggregatorEvent;

ReduceJob::ReduceJob(const SwitchJob& job, const AggregatorOptions& options, SlotPool& pool, Scratch& scratch)
    : JobMachine(job, options, pool, scratch), reselection_(job.reselect_k) {
  if (job.racks.empty()) return;
  groups_ = std::make_unique<RackGroups>(RackGroups::Shape{.slots = job.slots,
                                                           .racks = static_cast<uint32_t>(job.racks.size()),
                                                           .window_indices = job.window_indices,
                                                           .packet_bytes_max = options.packet_bytes_max});
}

void ReduceJob::forget() {
  reselection_.reset();
  fetches_left_ = 0;
  contributed_ = 0;
  open_turns_ = 0;
  epoch_slots_ = 0;
  ended_.reset();
  if (groups_) groups_->clear();
}

/// Says that no worker has more to send, and none asks for its closing turn's result any more.
bool ReduceJob::has_ended(TimeNs now) const {
  return epoch_slots_ != 0 && ended_.count() == epoch_slots_ && is_quiet(now);
}

void ReduceJob::receive(const Datagram& datagram, const protocol::Endpoint& from, const Outbox& out) {
  const DatagramHeader& header = datagram.header;
  if (!sessions_.knows(header.worker)) return out.count(Event::kStranger);
  const bool is_rack = header.worker >= kSwitchWorkersMax;
  if (header.type == DatagramType::kChallengeRequest) return challenge(datagram, from, out);
  const bool known = header.type == DatagramType::kHello ||
                     (is_rack ? header.type == DatagramType::kPartial
                              : header.type == DatagramType::kKept || header.type == DatagramType::kContribution);
  if (!known) return out.count(Event::kUnexpectedType);
  // Before the MAC check, whose key is of an incarnation: a holder of another one's key cannot sign for ours.
  if (header.incarnation != sessions_.incarnation()) {
    out.count(Event::kWrongIncarnation);
    return notice_stranger(datagram, NoticeCode::kUnknownIncarnation, {}, from, out);
  }
  if (header.type == DatagramType::kHello)
    return is_rack ? rack_hello(datagram, from, out) : hello(datagram, from, out);
  if (!admit(datagram, out)) return;
  if (header.type == DatagramType::kKept) return on_kept(datagram, out);
  is_rack ? partial(datagram, out) : contribution(datagram, out);
  if (phase_ == Phase::kOpen && header.epoch == epoch_) tell_lost(header.worker, out);
}

void ReduceJob::tick(const Outbox& out) {
  if (phase_ == Phase::kFetching && out.now() >= fetch_after_) fetch(out);
}

}  // namespace millrace::switch_agg
