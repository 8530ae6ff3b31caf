// A turn closes (S4.15): its sum is frozen, truncated, encoded once, and sent. It is retained for workers that missed
// it.
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "kernels/base/check.h"
#include "switch_agg/aggregator/reduce_job.h"

namespace millrace::switch_agg {

using protocol::DatagramHeader;
using protocol::DatagramType;
using protocol::kDatagramHeaderBytes;
using Event = AggregatorEvent;
namespace flag = protocol::datagram_flag;

void ReduceJob::close(Slot& slot, uint16_t number, const Outbox& out) {
  const WindowSum::Taken taken = slot.sum.take(scratch_->indices, scratch_->values);
  const std::span<uint16_t> indices = std::span(scratch_->indices).first(taken.count);
  const std::span<int32_t> values = std::span(scratch_->values).first(taken.count);
  const uint32_t stay = reselection_.on_close(slot.step, slot.exponent, indices, values);
  if (stay != taken.count) out.count(Event::kReselected);

  DatagramHeader header = header_of(DatagramType::kResult);
  header.turn = slot.cur;
  header.step = slot.step;
  header.window = slot.window;
  header.next = slot.next;
  header.slot = number;
  header.exponent = slot.exponent;
  if (slot.all_fin) header.flags |= flag::kFin;
  if (stay == 0) header.flags |= flag::kVoid;
  protocol::ResultTerms terms{.contributors = live_, .selected = 0, .decided_epoch = epoch_};
  const std::span<const RackEntries> racks = groups_ ? groups_->reduced_racks(number) : std::span<const RackEntries>();
  for (const RackEntries& rack : racks) terms.selected |= rack.workers;
  KeptResult& result = slot.kept_of(slot.cur);
  const uint32_t left_out = result.encode(
      header, terms, exact_codecs(job_.result_codecs, taken.magnitude_or), job_.window_indices,
      {.indices = indices.first(stay), .values = values.first(stay), .decoded = scratch_->decoded, .racks = racks});

  slot.open = false;
  --open_turns_;
  waits_since_ = out.now();
  ended_.set(number, slot.all_fin);
  slot.set_successor(number, slot.step, slot.next);
  out.count(Event::kClosed);
  if (stay == 0) out.count(Event::kVoid);
  if (taken.omitted != 0) out.count(Event::kOmittedOverflow, taken.omitted);
  if (left_out != 0) out.count(Event::kOmittedNoRoom, left_out);
  send_to_all(result, out);
}

/// One sequence number and one MAC for all: each live worker gets the same datagram, and the port one buffer.
void ReduceJob::send_to_all(KeptResult& result, const Outbox& out) {
  std::array<protocol::Endpoint, protocol::kSwitchWorkersMax> to;
  size_t receivers = 0;
  for (uint64_t left = live_; left != 0; left &= left - 1) {
    to[receivers++] = sessions_.endpoint(static_cast<uint16_t>(std::countr_zero(left)));
  }
  if (std::exchange(marked_, false)) out.set_ecn(protocol::Ecn::kCe);
  for (uint32_t fragment = 0; fragment < result.fragments(); ++fragment) {
    const std::span<uint8_t> packet = result.packet(fragment);
    const size_t bytes = sessions_.seal_to_all(result.header(fragment), packet);
    out.send_to_each(packet.first(bytes), std::span(to).first(receivers));
  }
  out.set_ecn(protocol::Ecn::kEct0);
}

void ReduceJob::send_kept(Slot& slot, uint64_t turn, uint16_t worker, const Outbox& out) {
  const KeptResult& result = slot.kept_of(turn);
  if (result.turn() != turn || result.fragments() == 0) return out.count(Event::kKeptNone);
  TimeNs& after = slot.answer_after[worker];
  if (out.now() < after) return out.count(Event::kKeptLimited);
  after = out.now() + options_->answer_gap_ns;
  for (uint32_t fragment = 0; fragment < result.fragments(); ++fragment) {
    const DatagramHeader header = result.header(fragment);
    const std::span<uint8_t> room = out.room(datagram_bytes(header));
    if (room.empty()) return;
    const std::span<const uint8_t> body = result.body(fragment);
    std::memcpy(room.data() + kDatagramHeaderBytes, body.data(), body.size());
    out.send(sessions_.seal_to_worker(worker, header, room), sessions_.endpoint(worker));
  }
  out.count(Event::kKeptSent);
}

}  // namespace millrace::switch_agg
