// Units at a rack: each is added up (S7.1), or sent up as it is (S7.3).
#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/hash.h"
#include "switch_agg/aggregator/combine_job.h"

namespace millrace::switch_agg {

using protocol::Datagram;
using protocol::DatagramHeader;
using protocol::DatagramType;
using protocol::kDatagramHeaderBytes;
using protocol::kDatagramMacBytes;
using protocol::kFragmentsMax;
using protocol::kPartialTermsBytes;
using protocol::NoticeCode;
using protocol::PartialTerms;
using protocol::WindowEntries;
using Event = AggregatorEvent;
namespace flag = protocol::datagram_flag;

namespace {

/// After a group that was too long its slot's turns go raw at once: waiting for time-outs would cost more.
constexpr uint32_t kRawTurns = 15;
/// Limit in answer gaps after which a group is sent up again, if a worker asks. Workers may compute for long between
/// two turns.
constexpr TimeNs kAgainGapsMax = 8;

bool combine_sums_is_over(const WindowEntries& entries, int32_t headroom) {
  for (const int32_t value : entries.values) {
    if (value > headroom || value < -headroom) return true;
  }
  return false;
}

bool is_bound(const Slot& slot, const DatagramHeader& header) {
  return header.step == slot.step && header.window == slot.window && header.exponent == slot.exponent;
}

}  // namespace

void CombineJob::contribution(const Datagram& datagram, const Outbox& out) {
  const DatagramHeader& header = datagram.header;
  if (phase_ != Phase::kOpen || header.epoch > epoch_ || uplink_ != Uplink::kWelcome) {
    out.count(Event::kNotOpen);
    return notice(header.worker, NoticeCode::kSayHello, out);
  }
  if (header.epoch < epoch_) {
    out.count(Event::kOldEpoch);
    return notice(header.worker, NoticeCode::kOldEpoch, out);
  }
  if ((live_ >> header.worker & 1) == 0 || header.slot >= slots_.size()) return out.count(Event::kStranger);
  if (header.extension_words != 0 || header.turn == 0 || !is_unit_well_formed(header, job_.slots)) {
    return out.count(Event::kBadFields);
  }
  unit(datagram, out);
}

void CombineJob::unit(const Datagram& datagram, const Outbox& out) {
  const DatagramHeader& header = datagram.header;
  Slot& slot = this->slot(header.slot);
  Cell& cell = cells_[header.slot];
  if (header.turn < slot.cur) {
    out.count(Event::kPast);
    return forward(datagram, out);
  }
  // What claims a cell must decode: gather() sees to that, for a slot that another turn has too.
  if (header.turn > slot.cur || cell.state == CellState::kGathering) return gather(datagram, out);
  if (cell.state == CellState::kRaw) return forward(datagram, out);
  sent_again(datagram, out);
}

void CombineJob::gather(const Datagram& datagram, const Outbox& out) {
  const DatagramHeader& header = datagram.header;
  const uint64_t bit = uint64_t{1} << header.worker;
  Slot& slot = this->slot(header.slot);
  Cell& cell = cells_[header.slot];
  WindowEntries entries;
  if (!decode(header, datagram.payload, entries, out)) return;
  if (header.turn > slot.cur) {
    if (cell.state == CellState::kSent && header.turn == slot.cur + 1) record_turnaround(cell, out.now());
    claim(slot, cell, header);
    if (cell.state == CellState::kRaw) return forward(datagram, out);
  } else if (!is_bound(slot, header)) {
    out.count(Event::kWrongBinding);
    return forward(datagram, out);
  }
  if ((slot.begun & bit) != 0 && contradicts(slot.parts[header.worker], header)) return out.count(Event::kWrongBinding);
  const bool is_in = (slot.have[header.fragment] & bit) != 0;
  const bool flushes = (header.flags & flag::kFlush) != 0;
  if (is_in && !flushes) return out.count(Event::kDuplicate);
  if (is_in || combine_sums_is_over(entries, headroom_)) {
    flush(slot, cell, CellState::kRaw, out);
    return forward(datagram, out);
  }
  slot.sum.add(entries, headroom_);
  slot.take_unit(header);
  out.count(Event::kAdded);
  if (slot.whole == (job_.rack & live_)) return complete(header.slot, out);
  if (!flushes) return;
  flush(slot, cell, CellState::kRaw, out);
  forward(datagram, out);
}

/// Its worker has no result of the turn: the group may be lost, or the result.
void CombineJob::sent_again(const Datagram& datagram, const Outbox& out) {
  const DatagramHeader& header = datagram.header;
  Cell& cell = cells_[header.slot];
  cell.askers |= uint64_t{1} << header.worker;
  out.count(Event::kDuplicate);
  if (out.now() >= cell.again_after) send_group_again(header.slot, out);
  if ((header.flags & flag::kFlush) != 0) forward(datagram, out);
}

void CombineJob::send_group_again(uint16_t number, const Outbox& out) {
  out.count(Event::kGroupAgain);
  send_group(number, out);
  cells_[number].askers = 0;
  doubt_shard(out);
}

/// All that asked while the group was on its way are answered by one more.
void CombineJob::send_groups_asked_for(const Outbox& out) {
  for (size_t number = 0; number < slots_.size(); ++number) {
    const Cell& cell = cells_[number];
    if (cell.state != CellState::kSent || cell.askers == 0 || out.now() < cell.again_after) continue;
    send_group_again(static_cast<uint16_t>(number), out);
  }
}

/// Averages the time of an answer, which includes a little computing of the workers.
void CombineJob::record_turnaround(const Cell& cell, TimeNs now) {
  const TimeNs taken = now - cell.sent_at;
  turnaround_ += turnaround_ == 0 ? taken : (taken - turnaround_) / 8;
}

void CombineJob::claim(Slot& slot, Cell& cell, const DatagramHeader& header) {
  // The sender of a turn has the result of the one before. So that one was complete at the shard, with any sum here.
  slot.set_closed(header.turn - 1);
  slot.claim(header);
  reselection_.on_claim(header.step);
  cell.askers = 0;
  cell.state = cell.raw_turns > 0 ? CellState::kRaw : CellState::kGathering;
  if (cell.raw_turns > 0) --cell.raw_turns;
}

void CombineJob::flush(Slot& slot, Cell& cell, CellState then, const Outbox& out) {
  slot.sum.clear();
  cell.state = then;
  out.count(Event::kFlushed);
}

void CombineJob::forward(const Datagram& datagram, const Outbox& out) {
  DatagramHeader header = datagram.header;
  header.flags &= static_cast<uint8_t>(~flag::kFlush);
  const uint64_t bit = uint64_t{1} << header.worker;
  // Its worker was not asked to leave room for the extension; its packets past the rack arrive.
  if (datagram.signed_bytes.size() + kDatagramMacBytes + kPartialTermsBytes > job_.packet_bytes) {
    return out.count(Event::kNoRoom);
  }
  out.count(Event::kForwarded);
  send_up(header, {.have = bit, .last = (header.flags & flag::kLast) != 0 ? bit : 0, .hash = 0}, datagram.payload, out);
}

void CombineJob::complete(uint16_t number, const Outbox& out) {
  Slot& slot = this->slot(number);
  Cell& cell = cells_[number];
  const WindowSum::Taken taken = slot.sum.take(scratch_->indices, scratch_->values);
  const std::span<uint16_t> indices = std::span(scratch_->indices).first(taken.count);
  const std::span<int32_t> values = std::span(scratch_->values).first(taken.count);
  // A worker that names an index in several fragments can leave the range; the shard has a rule for such values.
  const int64_t most = int64_t{headroom_} * std::popcount(job_.rack & live_);
  bool over = taken.omitted != 0;
  for (const int32_t value : values) over = over || value > most || value < -most;
  if (over) return flush(slot, cell, CellState::kRaw, out);

  const uint32_t stay = reselection_.on_close(slot.step, slot.exponent, indices, values);
  uint8_t flags = slot.all_fin ? flag::kFin : uint8_t{0};
  if (stay != taken.count) {
    flags |= flag::kReselected;
    out.count(Event::kReselected);
  }
  const protocol::WindowCodecs codecs = exact_codecs(job_.result_codecs, taken.magnitude_or);
  if (!encode_group(number, indices.first(stay), values.first(stay), codecs, flags)) {
    out.count(Event::kGroupTooLong);
    cell.raw_turns = kRawTurns;
    return flush(slot, cell, CellState::kRaw, out);
  }
  cell.state = CellState::kSent;
  cell.askers = 0;
  cell.sent_at = out.now();
  out.count(Event::kGroupSent);
  out.count(Event::kEntriesSelected, stay);
  out.count(Event::kEntriesNotSelected, taken.count - stay);
  send_group(number, out);
}

/// Into the slot's kept results, as it goes up. False: it takes more than kFragmentsMax parts.
bool CombineJob::encode_group(uint16_t number, std::span<const uint16_t> indices, std::span<const int32_t> values,
                              const protocol::WindowCodecs& codecs, uint8_t flags) {
  Slot& slot = this->slot(number);
  KeptResult& parts = slot.kept_of(slot.cur);
  parts.begin(slot.cur);
  DatagramHeader header;
  header.type = DatagramType::kPartial;
  header.job = job_.job;
  header.epoch = epoch_;
  header.turn = slot.cur;
  header.step = slot.step;
  header.window = slot.window;
  header.next = slot.next;
  header.slot = number;
  header.exponent = slot.exponent;
  header.extension_words = kPartialTermsBytes / 8;
  if (indices.empty()) flags |= flag::kEmpty;
  const std::array<uint8_t, kPartialTermsBytes> extension{};
  const size_t room = job_.packet_bytes - kDatagramHeaderBytes - kPartialTermsBytes - kDatagramMacBytes;
  const std::span<uint8_t> payload = std::span(scratch_->packet).first(room);
  uint64_t hash = hash64(ByteSpan(), incarnation() ^ slot.cur << 8 ^ number);
  size_t at = 0;
  for (uint32_t part = 0; part < kFragmentsMax; ++part) {
    header.fragment = static_cast<uint8_t>(part);
    header.flags = flags;
    header.entries = 0;
    header.payload_bytes = 0;
    if (!indices.empty()) {
      at += encode_window({indices.subspan(at), values.subspan(at)}, codecs, job_.window_indices, header, payload,
                          scratch_->decoded);
    }
    const bool last = at == indices.size();
    if (last) header.flags |= flag::kLast;
    const std::span<const uint8_t> written = payload.first(header.payload_bytes);
    hash = hash64(written, hash);
    const KeptResult::Kept kept = parts.keep(header, extension, written);
    MILLRACE_CHECK(kept != KeptResult::Kept::kRefused, part);
    if (!last) continue;
    cells_[number].hash = hash | (hash == 0 ? 1 : 0);
    return true;
  }
  return false;
}

void CombineJob::send_group(uint16_t number, const Outbox& out) {
  Slot& slot = this->slot(number);
  Cell& cell = cells_[number];
  const KeptResult& parts = slot.kept_of(slot.cur);
  for (uint32_t part = 0; part < parts.fragments(); ++part) send_part(number, part, out);
  // Sooner than an answer can be here it would be the same packets twice, once for each of its workers that asks.
  cell.again_after = out.now() + answer_takes();
}

TimeNs CombineJob::answer_takes() const {
  const TimeNs gap = options_->answer_gap_ns;
  return std::clamp(turnaround_, gap, kAgainGapsMax * gap);
}

void CombineJob::send_part(uint16_t number, uint32_t part, const Outbox& out) {
  Slot& slot = this->slot(number);
  const Cell& cell = cells_[number];
  const KeptResult& parts = slot.kept_of(slot.cur);
  const uint64_t sequence =
      send_up(parts.header(part), {.have = job_.rack & live_, .last = cell.askers, .hash = cell.hash},
              parts.body(part).subspan(kPartialTermsBytes), out);
  if (sequence != 0)
    sent_.note({.sequence = sequence, .turn = slot.cur, .slot = number, .fragment = static_cast<uint16_t>(part)});
}

/// Parts alone: of those that are there the shard has the hash. Units that went up raw their workers send again.
void CombineJob::shard_lacks(const protocol::LostSequences& lost, const Outbox& out) {
  if (uplink_ != Uplink::kWelcome || !has_slots()) return;  // a late one may come after the lease
  lost.for_each([&](uint64_t sequence) {
    const protocol::SentLog::Packet* packet = sent_.find(sequence);
    if (packet != nullptr) send_part_again(*packet, out);
  });
}

/// packet  a copy: the retransmission may overwrite its entry in the log.
void CombineJob::send_part_again(protocol::SentLog::Packet packet, const Outbox& out) {
  Slot& slot = this->slot(packet.slot);
  Cell& cell = cells_[packet.slot];
  if (cell.state != CellState::kSent || slot.cur != packet.turn ||
      packet.fragment >= slot.kept_of(slot.cur).fragments())
    return;
  send_part(packet.slot, packet.fragment, out);
  out.count(Event::kPartAgain);
  cell.again_after = out.now() + answer_takes();
}

uint64_t CombineJob::send_up(DatagramHeader header, const PartialTerms& terms, ByteSpan payload, const Outbox& out) {
  header.type = DatagramType::kPartial;
  header.magic = protocol::kDatagramMagic;
  std::array<uint8_t, kPartialTermsBytes> extension;
  put_partial_terms(terms, extension);
  const size_t bytes = kDatagramHeaderBytes + kPartialTermsBytes + payload.size() + kDatagramMacBytes;
  if (out.room(bytes).empty()) return 0;
  CountedSink up(out);
  if (std::exchange(marked_, false)) out.set_ecn(protocol::Ecn::kCe);
  const uint64_t sequence = link_.send(header, extension, payload, job_.shard, up);
  out.set_ecn(protocol::Ecn::kEct0);
  out.count(Event::kSentUp);
  out.count(Event::kSentUpBytes, bytes);
  return sequence;
}

}  // namespace millrace::switch_agg
