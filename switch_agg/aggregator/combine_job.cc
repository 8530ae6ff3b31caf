#include "switch_agg/aggregator/combine_job.h"

#include <algorithm>
#include <bit>

namespace millrace::switch_agg {

using protocol::Datagram;
using protocol::DatagramHeader;
using protocol::DatagramType;
using protocol::NoticeCode;
using protocol::SwitchLink;
using Event = AggregatorEvent;

namespace {

/// A request to the shard without an answer is sent again after this number of answer gaps, doubling this often.
constexpr TimeNs kAskGaps = 8;
constexpr uint32_t kDoublingsMax = 5;

}  // namespace

CombineJob::CombineJob(const SwitchJob& job, const AggregatorOptions& options, SlotPool& pool, Scratch& scratch,
                       uint64_t nonce_seed)
    : JobMachine(job, options, pool, scratch),
      link_({.job = job.job,
             .key = job.key,
             .worker = static_cast<uint16_t>(protocol::kRackWorkers + job.rack_number),
             .nonce_seed = nonce_seed,
             .packet_bytes = job_.packet_bytes}),
      reselection_(job.reselect_k),
      cells_(job.slots) {
  link_.aim(job.shard);
}

void CombineJob::forget() {
  reselection_.reset();
  forget_sums();
}

void CombineJob::forget_sums() {
  for (uint32_t number = 0; number < slots_.size(); ++number) slot(number).set_closed(0);
  std::ranges::fill(cells_, Cell{});
}

void CombineJob::receive(const Datagram& datagram, const protocol::Endpoint& from, const Outbox& out) {
  const DatagramHeader& header = datagram.header;
  if (header.worker == protocol::kRackWorkers + job_.rack_number) return from_shard(datagram, out);
  if (!sessions_.knows(header.worker) || (job_.rack >> header.worker & 1) == 0) return out.count(Event::kStranger);
  if (header.type == DatagramType::kChallengeRequest) return challenge(datagram, from, out);
  if (header.type != DatagramType::kHello && header.type != DatagramType::kContribution)
    return out.count(Event::kUnexpectedType);
  if (header.incarnation != sessions_.incarnation()) {
    out.count(Event::kWrongIncarnation);
    return notice_stranger(datagram, NoticeCode::kUnknownIncarnation, {}, from, out);
  }
  if (header.type == DatagramType::kHello) return hello(datagram, from, out);
  if (!admit(datagram, out)) return;
  contribution(datagram, out);
  if (uplink_ == Uplink::kWelcome && header.epoch == epoch_) tell_lost(header.worker, out);
}

bool CombineJob::fits(const DatagramHeader& header, const protocol::HelloTerms& hello) const {
  if (phase_ == Phase::kClosed || header.epoch > epoch_) return true;
  return header.epoch == epoch_ && hello.membership_hash == membership_hash_ && hello.live == live_;
}

void CombineJob::hello(const Datagram& datagram, const protocol::Endpoint& from, const Outbox& out) {
  const uint16_t worker = datagram.header.worker;
  const uint64_t bit = uint64_t{1} << worker;
  const auto said = admit_hello(datagram, from, out);
  if (!said) return;
  const uint32_t epoch = datagram.header.epoch;
  if (said->slots != 0 || (said->live & bit) == 0) return out.count(Event::kHelloRefused);
  if (!reserve_slots()) {
    out.count(Event::kNoSlots);
    return notice(worker, NoticeCode::kNoSlots, out);
  }
  if (phase_ == Phase::kClosed || epoch > epoch_) {
    forget_sums();
    phase_ = Phase::kOpen;
    epoch_ = epoch;
    live_ = said->live;
    membership_hash_ = said->membership_hash;
    greeted_ = 0;
    out.count(Event::kOpened);
  }
  if (met_[worker] != said->worker_nonce) {
    // Perhaps another process: of a job that restarted under this number, with the same epochs, turns and members as
    // the job before. No sum and no retained group may have entries of another process.
    met_[worker] = said->worker_nonce;
    forget();
  }
  out.count((greeted_ & bit) == 0 ? Event::kHello : Event::kHelloAgain);
  greeted_ |= bit;
  if (uplink_ == Uplink::kWelcome) return welcome(worker, out);
  if (uplink_ == Uplink::kNone) ask_shard(out);
}

/// Which turn is open, the shard says.
void CombineJob::welcome(uint16_t worker, const Outbox& out) {
  protocol::WelcomeTerms said{
      .slots = static_cast<uint32_t>(slots_.size()), .window_indices = job_.window_indices, .turns = {}};
  send_welcome(worker, epoch_, said, out);
}

void CombineJob::ask_shard(const Outbox& out) {
  if (uplink_ == Uplink::kNone || uplink_ == Uplink::kWelcome) waits_since_ = out.now();
  uplink_ = Uplink::kAsking;
  asked_at_ = out.now();
  ask_after_ = out.now() + (kAskGaps << std::min(tries_, kDoublingsMax)) * options_->answer_gap_ns;
  CountedSink up(out);
  link_.request_challenge(epoch_, up);
}

void CombineJob::greet_shard(const Outbox& out) {
  uplink_ = Uplink::kHello;
  ask_after_ = out.now() + (kAskGaps << std::min(tries_, kDoublingsMax)) * options_->answer_gap_ns;
  const protocol::HelloTerms said{.membership_hash = membership_hash_,
                                  .live = live_,
                                  .worker_nonce = link_.session_nonce(),
                                  .slots = 0,
                                  .positions = {}};
  std::array<uint8_t, 64> extension;
  const size_t bytes = put_hello(said, extension);
  DatagramHeader header;
  header.type = DatagramType::kHello;
  header.epoch = epoch_;
  CountedSink up(out);
  link_.send(header, ByteSpan(extension).first(bytes), {}, job_.shard, up);
}

void CombineJob::from_shard(const Datagram& datagram, const Outbox& out) {
  const DatagramHeader& header = datagram.header;
  if (uplink_ == Uplink::kNone) return out.count(Event::kNoSession);
  if (header.type == DatagramType::kChallenge) {
    const SwitchLink::Renew renew =
        uplink_ == Uplink::kWelcome ? SwitchLink::Renew::kNewIncarnationOnly : SwitchLink::Renew::kAlways;
    const SwitchLink::Challenge told = link_.take_challenge(datagram, renew);
    if (told == SwitchLink::Challenge::kRefused) return out.count(Event::kBadMac);
    if (told == SwitchLink::Challenge::kSameIncarnation && uplink_ == Uplink::kWelcome) return;
    tries_ = 0;
    return greet_shard(out);
  }
  const bool is_hint = SwitchLink::is_hint(datagram);
  if (header.type != DatagramType::kNotice && (is_hint || header.type != DatagramType::kWelcome)) {
    return out.count(Event::kUnexpectedType);
  }
  if (!is_hint && header.incarnation != link_.incarnation()) return out.count(Event::kWrongIncarnation);
  const SwitchLink::Verdict verdict = link_.judge(datagram);
  if (verdict == SwitchLink::Verdict::kForged) return out.count(Event::kBadMac);
  if (verdict == SwitchLink::Verdict::kReplayed) return out.count(Event::kReplay);
  if (header.type == DatagramType::kWelcome) {
    const auto said = protocol::read_welcome(datagram.extension);
    if (!said || said->window_indices != job_.window_indices) return out.count(Event::kBadFields);
    if (uplink_ != Uplink::kHello) return;
    uplink_ = Uplink::kWelcome;
    for (uint64_t left = greeted_; left != 0; left &= left - 1)
      welcome(static_cast<uint16_t>(std::countr_zero(left)), out);
    return;
  }
  const auto said = protocol::read_notice(datagram.extension);
  if (said && said->code == NoticeCode::kLost && !is_hint) return shard_lacks(protocol::lost_of(*said), out);
  // A challenge verifies any notice (mostly of another incarnation). It may be a replay.
  doubt_shard(out);
}

/// Requests a challenge, which shows whether the shard has the same incarnation. Packets to the shard may be shorter
/// than the notice that would report it, and then get no answer. Limited in rate.
void CombineJob::doubt_shard(const Outbox& out) {
  if (uplink_ != Uplink::kWelcome || out.now() - asked_at_ < kAskGaps * options_->answer_gap_ns) return;
  asked_at_ = out.now();
  CountedSink up(out);
  link_.request_challenge(epoch_, up);
}

/// A turn whose sum was sent up, or whose units are, is open at the shard, if anywhere.
uint32_t CombineJob::slots_in_use() const {
  uint32_t gathering = 0;
  for (uint32_t number = 0; number < slots_.size(); ++number)
    gathering += cells_[number].state == CellState::kGathering && slot(number).open ? 1 : 0;
  return gathering;
}

std::optional<RackStatus> CombineJob::rack_status() const {
  RackStatus status{.uplink = uplink_, .gathering = slots_in_use()};
  for (uint32_t number = 0; number < slots_.size(); ++number) {
    const Cell& cell = cells_[number];
    if (slot(number).cur == 0) continue;
    status.in_flight += cell.state == CellState::kSent ? 1 : 0;
    status.raw += cell.state == CellState::kRaw ? 1 : 0;
  }
  return status;
}

SwitchWaiting CombineJob::waiting() const {
  const bool asks = uplink_ == Uplink::kAsking || uplink_ == Uplink::kHello;
  return asks ? SwitchWaiting{.what = SwitchWait::kDecider, .workers = 0, .since = waits_since_} : SwitchWaiting{};
}

void CombineJob::tick(const Outbox& out) {
  if (uplink_ == Uplink::kWelcome) send_groups_asked_for(out);
  if (uplink_ == Uplink::kNone || uplink_ == Uplink::kWelcome || out.now() < ask_after_) return;
  ++tries_;
  // A HELLO without an answer may be of keys that the shard has left.
  ask_shard(out);
}

}  // namespace millrace::switch_agg
