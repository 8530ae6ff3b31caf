#include "switch_agg/reduce_job.h"

#include <limits>

#include "kernels/base/check.h"

namespace millrace::switch_agg {

using protocol::Datagram;
using protocol::DatagramHeader;
using protocol::DatagramType;
using protocol::kDatagramHeaderBytes;
using protocol::kDatagramMacBytes;
using protocol::kSwitchWorkersMax;
using protocol::NoticeCode;
using Event = AggregatorEvent;

namespace {

/// Header, code, epoch, life, nonce, MAC.
constexpr size_t kNoticeBytes = kDatagramHeaderBytes + 32 + kDatagramMacBytes;

}  // namespace

Scratch::Scratch(uint32_t window_indices_max)
    : entry_indices(protocol::kFragmentEntriesMax),
      entry_values(protocol::kFragmentEntriesMax),
      indices(window_indices_max),
      values(window_indices_max),
      decoded(window_indices_max) {}

ReduceJob::ReduceJob(const SwitchJob& job, const AggregatorOptions& options, SlotPool& pool, Scratch& scratch)
    : job_(job),
      options_(&options),
      pool_(&pool),
      scratch_(&scratch),
      headroom_(std::numeric_limits<int32_t>::max() / static_cast<int32_t>(job.workers)),
      sessions_(job.job, job.key),
      reselection_(job.reselect_k) {
  slots_.reserve(job.slots);
}

ReduceJob::~ReduceJob() { free_slots(); }

bool ReduceJob::reserve_slots() { return has_slots() || pool_->reserve(job_.slots, job_.window_indices, slots_); }

void ReduceJob::free_slots() { pool_->give_back(slots_); }

void ReduceJob::begin_life(uint64_t life, TimeNs now) {
  sessions_.begin_life(life);
  reselection_.reset();
  for (uint32_t number = 0; number < slots_.size(); ++number) slot(number).set_closed(0);
  phase_ = Phase::kClosed;
  epoch_ = 0;
  live_ = 0;
  membership_ = 0;
  greeted_ = 0;
  fetches_left_ = 0;
  heard_ = now;
}

bool ReduceJob::lease_is_over(TimeNs now) const { return has_slots() && now - heard_ >= job_.lease_ns; }

void ReduceJob::receive(const Datagram& datagram, const protocol::Endpoint& from, const Outbox& out) {
  const DatagramHeader& header = datagram.header;
  if (header.worker >= kSwitchWorkersMax) return out.count(Event::kStranger);
  if (header.type == DatagramType::kChallengeRequest) return challenge(datagram, from, out);
  const bool known = header.type == DatagramType::kHello || header.type == DatagramType::kKept ||
                     header.type == DatagramType::kContribution;
  if (!known) return out.count(Event::kUnexpectedType);
  // Before the MAC, whose key is of a life: somebody who knows another one cannot sign for ours.
  if (header.life != sessions_.life()) {
    out.count(Event::kWrongLife);
    return notice_stranger(datagram, NoticeCode::kUnknownLife, {}, from, out);
  }
  if (header.type == DatagramType::kHello) return hello(datagram, from, out);
  if (!admit(datagram, out)) return;
  if (header.type == DatagramType::kKept) return kept(datagram, out);
  contribution(datagram, out);
}

void ReduceJob::challenge(const Datagram& datagram, const protocol::Endpoint& from, const Outbox& out) {
  const uint16_t worker = datagram.header.worker;
  const auto request = protocol::read_challenge_request(datagram.extension);
  if (!request || !datagram.payload.empty()) return out.count(Event::kBadFields);
  if (!sessions_.check_handshake(datagram)) return out.count(Event::kBadMac);
  if (!has_slots() && pool_->free_slots() < job_.slots) {
    out.count(Event::kNoSlots);
    return notice_stranger(datagram, NoticeCode::kNoSlots, request->worker_nonce, from, out);
  }
  const std::span<uint8_t> room = out.room(datagram.signed_bytes.size() + kDatagramMacBytes);
  if (room.empty()) return;
  const protocol::Challenge answer{request->worker_nonce, sessions_.challenge_for(worker, request->worker_nonce)};
  DatagramHeader header = header_of(DatagramType::kChallenge);
  header.extension_words = static_cast<uint8_t>(put_challenge(answer, room.subspan(kDatagramHeaderBytes)) / 8);
  out.send(sessions_.seal_handshake(worker, header, room), from);
  out.count(Event::kChallenged);
}

bool ReduceJob::admit(const Datagram& datagram, const Outbox& out) {
  const WorkerSessions::Verdict verdict = sessions_.check(datagram);
  note(verdict, out);
  if (verdict != WorkerSessions::Verdict::kGood) return false;
  heard_ = out.now();
  return true;
}

void ReduceJob::note(WorkerSessions::Verdict verdict, const Outbox& out) const {
  switch (verdict) {
    case WorkerSessions::Verdict::kGood: return;
    case WorkerSessions::Verdict::kNoSession: return out.count(Event::kNoSession);
    case WorkerSessions::Verdict::kBadMac: return out.count(Event::kBadMac);
    case WorkerSessions::Verdict::kReplay: return out.count(Event::kReplay);
  }
}

DatagramHeader ReduceJob::header_of(DatagramType type) const {
  DatagramHeader header;
  header.type = type;
  header.job = job_.job;
  header.life = sessions_.life();
  header.epoch = epoch_;
  return header;
}

void ReduceJob::notice(uint16_t worker, NoticeCode code, const Outbox& out) {
  if (!sessions_.may_notice(worker, code, out.now(), options_->answer_gap_ns)) return out.count(Event::kNoticeLimited);
  const std::span<uint8_t> room = out.room(kNoticeBytes);
  if (room.empty()) return;
  DatagramHeader header = header_of(DatagramType::kNotice);
  const protocol::Notice said{.code = code, .epoch = epoch_, .life = sessions_.life(), .worker_nonce = {}};
  header.extension_words = static_cast<uint8_t>(put_notice(said, room.subspan(kDatagramHeaderBytes)) / 8);
  out.send(sessions_.seal_to_worker(worker, header, room), sessions_.endpoint(worker));
  out.count(Event::kNoticeSent);
}

/// To whom it came from, whoever that is: not larger than what was asked, and limited in rate.
void ReduceJob::notice_stranger(const Datagram& datagram, NoticeCode code, const protocol::Nonce& nonce,
                                const protocol::Endpoint& from, const Outbox& out) {
  const uint16_t worker = datagram.header.worker;
  std::array<uint8_t, kNoticeBytes> packet;
  DatagramHeader header = header_of(DatagramType::kNotice);
  const protocol::Notice said{.code = code, .epoch = epoch_, .life = sessions_.life(), .worker_nonce = nonce};
  header.extension_words = static_cast<uint8_t>(put_notice(said, std::span(packet).subspan(kDatagramHeaderBytes)) / 8);
  if (datagram_bytes(header) > datagram.signed_bytes.size() + kDatagramMacBytes ||
      !sessions_.may_notice(worker, code, out.now(), options_->answer_gap_ns)) {
    return out.count(Event::kNoticeLimited);
  }
  out.send_copy(std::span(packet).first(sessions_.seal_handshake(worker, header, packet)), from);
  out.count(Event::kNoticeSent);
}

void ReduceJob::tick(const Outbox& out) {
  if (phase_ == Phase::kFetching && out.now() >= fetch_after_) fetch(out);
}

}  // namespace millrace::switch_agg
