#include "switch_agg/aggregator/job_machine.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/base/check.h"

namespace millrace::switch_agg {

using protocol::Datagram;
using protocol::DatagramHeader;
using protocol::DatagramType;
using protocol::kDatagramHeaderBytes;
using protocol::kDatagramMacBytes;
using protocol::kNoWindow;
using protocol::NoticeCode;
using Event = AggregatorEvent;
namespace flag = protocol::datagram_flag;

namespace {

/// Header, code, epoch, incarnation, nonce, MAC.
constexpr size_t kNoticeBytes = kDatagramHeaderBytes + 32 + kDatagramMacBytes;
/// UDP payload in an MTU of 1500, which every path carries.
constexpr uint32_t kDefaultPacketBytes = 1472;

SwitchJob with_packet_bytes(SwitchJob job, const AggregatorOptions& options) {
  if (job.packet_bytes == 0) job.packet_bytes = std::min(kDefaultPacketBytes, options.packet_bytes_max);
  return job;
}

}  // namespace

Scratch::Scratch(uint32_t window_indices_max, uint32_t packet_bytes_max)
    : entry_indices(protocol::kFragmentEntriesMax),
      entry_values(protocol::kFragmentEntriesMax),
      indices(window_indices_max),
      values(window_indices_max),
      decoded(window_indices_max),
      packet(packet_bytes_max) {}

JobMachine::JobMachine(const SwitchJob& job, const AggregatorOptions& options, SlotPool& pool, Scratch& scratch)
    : job_(with_packet_bytes(job, options)),
      options_(&options),
      pool_(&pool),
      scratch_(&scratch),
      headroom_(std::numeric_limits<int32_t>::max() / static_cast<int32_t>(job.workers)),
      sessions_(job.job, job.key, static_cast<uint32_t>(job.racks.size())) {
  slots_.reserve(job.slots);
}

JobMachine::~JobMachine() { free_slots(); }

bool JobMachine::reserve_slots() {
  const SlotShape shape{.window_indices = job_.window_indices, .packet_bytes = job_.packet_bytes};
  return has_slots() || pool_->reserve(job_.slots, shape, slots_);
}

void JobMachine::free_slots() { pool_->give_back(slots_); }

void JobMachine::begin_incarnation(uint64_t incarnation, TimeNs now) {
  sessions_.begin_incarnation(incarnation);
  for (uint32_t number = 0; number < slots_.size(); ++number) slot(number).set_closed(0);
  phase_ = Phase::kClosed;
  epoch_ = 0;
  live_ = 0;
  membership_hash_ = 0;
  greeted_ = 0;
  heard_ = now;
  waits_since_ = now;
  needs_incarnation_ = false;
  forget();
}

uint32_t JobMachine::slots_in_use() const {
  uint32_t in_use = 0;
  for (const uint16_t number : slots_) in_use += (*pool_)[number].open ? 1 : 0;
  return in_use;
}

bool JobMachine::lease_is_over(TimeNs now) const { return has_slots() && now - heard_ >= job_.lease_ns; }

/// Says whether a worker's CHALREQ is as long as this job's longest datagram, or not padded (S5.6). Workers of another
/// length would drop our results, or send packets that have no room here. They get no answer, so shard 0 decides for
/// them, or they go past this rack. Of a rack's CHALREQ: whether its groups have room here.
bool JobMachine::has_the_length(const Datagram& request, const Outbox& out) const {
  const size_t bytes = out.handled_bytes();
  if (request.header.worker >= protocol::kSwitchWorkersMax) return bytes <= options_->packet_bytes_max;
  return bytes == job_.packet_bytes || bytes == request.signed_bytes.size() + kDatagramMacBytes;
}

void JobMachine::challenge(const Datagram& datagram, const protocol::Endpoint& from, const Outbox& out) {
  const uint16_t worker = datagram.header.worker;
  const auto request = protocol::read_challenge_request(datagram.extension);
  if (!request || !datagram.payload.empty()) return out.count(Event::kBadFields);
  if (!sessions_.check_handshake(datagram)) return reject(worker, out);
  if (!has_the_length(datagram, out)) {
    out.count(Event::kOtherPacketBytes);
    if (worker >= doors_.size()) return;
    doors_[worker].other_bytes = static_cast<uint32_t>(out.handled_bytes());
    doors_[worker].other_bytes_at = out.now();
    return;
  }
  if (!has_slots() && pool_->free_slots() < job_.slots) {
    out.count(Event::kNoSlots);
    return notice_stranger(datagram, NoticeCode::kNoSlots, request->worker_nonce, from, out);
  }
  // As long as the request: a path that loses the job's longest datagrams on the way to the worker is silent, too.
  const size_t least = datagram.signed_bytes.size() + kDatagramMacBytes;
  const size_t bytes = std::max(least, std::min<size_t>(out.handled_bytes(), job_.packet_bytes));
  const std::span<uint8_t> room = out.room(bytes);
  if (room.empty()) return;
  const protocol::Challenge answer{request->worker_nonce, sessions_.challenge_for(worker, request->worker_nonce)};
  DatagramHeader header = header_of(DatagramType::kChallenge);
  header.extension_words = static_cast<uint8_t>(put_challenge(answer, room.subspan(kDatagramHeaderBytes)) / 8);
  const size_t sealed = sessions_.seal_handshake(worker, header, room);
  std::ranges::fill(room.subspan(sealed, bytes - sealed), uint8_t{0});
  out.send(bytes, from);
  out.count(Event::kChallenged);
}

bool JobMachine::admit(const Datagram& datagram, const Outbox& out) {
  const WorkerSessions::Verdict verdict = sessions_.check(datagram);
  note(verdict, datagram.header.worker, out);
  if (verdict != WorkerSessions::Verdict::kGood) return false;
  if (phase_ != Phase::kClosed && datagram.header.epoch == epoch_) heard_ = out.now();
  note_mark(out);
  return true;
}

/// Of an authentic packet.
void JobMachine::note_mark(const Outbox& out) {
  if (out.ecn() != protocol::Ecn::kCe) return;
  marked_ = true;
  out.count(Event::kCongestionMark);
}

void JobMachine::note(WorkerSessions::Verdict verdict, uint16_t worker, const Outbox& out) {
  switch (verdict) {
    case WorkerSessions::Verdict::kGood:
    case WorkerSessions::Verdict::kOtherSession:
      if (worker < doors_.size()) doors_[worker].heard_at = out.now();
      return;
    case WorkerSessions::Verdict::kNoSession: return out.count(Event::kNoSession);
    case WorkerSessions::Verdict::kBadMac: return reject(worker, out);
    case WorkerSessions::Verdict::kReplay: return out.count(Event::kReplay);
  }
}

void JobMachine::reject(uint16_t worker, const Outbox& out) {
  out.count(Event::kBadMac);
  if (worker >= doors_.size()) return;
  ++doors_[worker].rejected;
  doors_[worker].rejected_at = out.now();
}

DatagramHeader JobMachine::header_of(DatagramType type) const {
  DatagramHeader header;
  header.type = type;
  header.job = job_.job;
  header.incarnation = sessions_.incarnation();
  header.epoch = epoch_;
  return header;
}

void JobMachine::notice(uint16_t worker, NoticeCode code, const Outbox& out) {
  if (!sessions_.may_notice(worker, code, out.now(), options_->answer_gap_ns)) return out.count(Event::kNoticeLimited);
  say_notice(worker, {.code = code, .epoch = epoch_, .incarnation = sessions_.incarnation(), .worker_nonce = {}}, out);
}

void JobMachine::tell_lost(uint16_t worker, const Outbox& out) {
  const protocol::LostSequences lost = sessions_.take_lost(worker);
  if (lost.first == 0) return;
  out.count(Event::kLossNotices, 1 + static_cast<uint64_t>(std::popcount(lost.others)));
  say_notice(worker,
             {.code = NoticeCode::kLost,
              .epoch = epoch_,
              .incarnation = sessions_.incarnation(),
              .worker_nonce = protocol::put_lost(lost)},
             out);
}

void JobMachine::say_notice(uint16_t worker, const protocol::Notice& said, const Outbox& out) {
  const std::span<uint8_t> room = out.room(kNoticeBytes);
  if (room.empty()) return;
  DatagramHeader header = header_of(DatagramType::kNotice);
  header.extension_words = static_cast<uint8_t>(put_notice(said, room.subspan(kDatagramHeaderBytes)) / 8);
  out.send(sessions_.seal_to_worker(worker, header, room), sessions_.endpoint(worker));
  out.count(Event::kNoticeSent);
}

/// Sends a notice to the sender's address, which is not verified. It is no larger than the request, and limited in
/// rate.
void JobMachine::notice_stranger(const Datagram& datagram, NoticeCode code, const protocol::Nonce& nonce,
                                 const protocol::Endpoint& from, const Outbox& out) {
  const uint16_t worker = datagram.header.worker;
  std::array<uint8_t, kNoticeBytes> packet;
  DatagramHeader header = header_of(DatagramType::kNotice);
  const protocol::Notice said{
      .code = code, .epoch = epoch_, .incarnation = sessions_.incarnation(), .worker_nonce = nonce};
  header.extension_words = static_cast<uint8_t>(put_notice(said, std::span(packet).subspan(kDatagramHeaderBytes)) / 8);
  if (datagram_bytes(header) > datagram.signed_bytes.size() + kDatagramMacBytes ||
      !sessions_.may_notice(worker, code, out.now(), options_->answer_gap_ns)) {
    return out.count(Event::kNoticeLimited);
  }
  out.send_copy(std::span(packet).first(sessions_.seal_handshake(worker, header, packet)), from);
  out.count(Event::kNoticeSent);
}

std::optional<protocol::HelloTerms> JobMachine::admit_hello(const Datagram& datagram, const protocol::Endpoint& from,
                                                            const Outbox& out) {
  auto hello = protocol::read_hello(datagram.extension);
  if (!hello || !datagram.payload.empty()) {
    out.count(Event::kBadFields);
    return std::nullopt;
  }
  using Former = WorkerSessions::Former;
  const bool is_ours = fits(datagram.header, *hello);
  const WorkerSessions::Verdict verdict =
      sessions_.check_hello(datagram, *hello, from, is_ours ? Former::kEnds : Former::kStays);
  note(verdict, datagram.header.worker, out);
  if (verdict != WorkerSessions::Verdict::kGood && verdict != WorkerSessions::Verdict::kOtherSession)
    return std::nullopt;
  if (!is_ours) {
    back_off(datagram, *hello, verdict, from, out);
    return std::nullopt;
  }
  if (datagram.header.worker < protocol::kSwitchWorkersMax) heard_ = out.now();
  note_mark(out);
  return hello;
}

/// Refuses a HELLO of another job of this number, or of this one's past. While this job is alive it keeps its sessions
/// and its epoch, and such packets do not extend its lease. Its end gives all workers a new incarnation. State of the
/// old incarnation is void then, as after a restart (S6.6, S6.9). So no data of one job gets into another.
void JobMachine::back_off(const Datagram& datagram, const protocol::HelloTerms& hello, WorkerSessions::Verdict verdict,
                          const protocol::Endpoint& from, const Outbox& out) {
  if (has_ended(out.now())) {
    needs_incarnation_ = true;
    return;
  }
  const bool is_old = datagram.header.epoch < epoch_;
  out.count(is_old ? Event::kOldEpoch : Event::kHelloRefused);
  const NoticeCode why = is_old ? NoticeCode::kOldEpoch : NoticeCode::kOtherMembership;
  if (verdict == WorkerSessions::Verdict::kGood) return notice(datagram.header.worker, why, out);
  notice_stranger(datagram, why, hello.worker_nonce, from, out);
}

void JobMachine::send_welcome(uint16_t worker, uint32_t epoch, const protocol::WelcomeTerms& said, const Outbox& out) {
  const std::span<uint8_t> room = out.room(kDatagramHeaderBytes + 8 + size_t{8} * said.slots + kDatagramMacBytes);
  if (room.empty()) return;
  DatagramHeader header = header_of(DatagramType::kWelcome);
  header.epoch = epoch;
  header.extension_words = static_cast<uint8_t>(put_welcome(said, room.subspan(kDatagramHeaderBytes)) / 8);
  out.send(sessions_.seal_to_worker(worker, header, room), sessions_.endpoint(worker));
}

bool JobMachine::decode(const DatagramHeader& header, ByteSpan payload, protocol::WindowEntries& entries,
                        const Outbox& out) const {
  entries = {};
  if ((header.flags & flag::kEmpty) != 0) return true;
  const protocol::WindowRoom room{scratch_->entry_indices, scratch_->entry_values};
  const auto count = decode_window(header, payload, job_.window_indices, room);
  if (!count) {
    out.count(Event::kMalformedPayload);
    return false;
  }
  entries = {std::span(scratch_->entry_indices).first(*count), std::span(scratch_->entry_values).first(*count)};
  return true;
}

bool is_unit_well_formed(const DatagramHeader& header, uint32_t slots) {
  constexpr uint8_t kPossible = flag::kLast | flag::kEmpty | flag::kDense | flag::kFlush | flag::kFin;
  if ((header.flags & ~kPossible) != 0) return false;
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

bool contradicts(const Slot::Part& part, const DatagramHeader& header) {
  if (header.next != part.next) return true;
  const bool last = (header.flags & flag::kLast) != 0;
  if (part.last != Slot::kUnknown) return last != (header.fragment == part.last) || header.fragment > part.last;
  return last && header.fragment < part.top;
}

protocol::WindowCodecs exact_codecs(protocol::WindowCodecs codecs, uint32_t magnitude_or) {
  if (std::bit_width(magnitude_or) < 16) codecs.value = protocol::WindowValueCodec::kFixed16;
  return codecs;
}

}  // namespace millrace::switch_agg
