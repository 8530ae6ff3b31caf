// S6 at the aggregator. It collects HELLOs, then fetches results that some worker lacks from one that has them. Only
// then does an epoch open.
#include <algorithm>
#include <bit>
#include <limits>

#include "switch_agg/aggregator/reduce_job.h"

namespace millrace::switch_agg {

using protocol::Datagram;
using protocol::DatagramHeader;
using protocol::DatagramType;
using protocol::HelloTerms;
using protocol::kDatagramHeaderBytes;
using protocol::kDatagramMacBytes;
using protocol::NoticeCode;
using Event = AggregatorEvent;
namespace flag = protocol::datagram_flag;

namespace {

/// A FETCH without an answer is sent again after this number of answer gaps. After this number of tries it goes to
/// another worker that has the result.
constexpr TimeNs kFetchGaps = 8;
constexpr uint32_t kFetchTries = 4;

uint64_t bit_of(uint16_t worker) { return uint64_t{1} << worker; }

/// Says whether a worker that keeps the rules can send the HELLO.
bool can_be(const HelloTerms& hello, uint16_t worker) {
  const auto positions = std::span(hello.positions).first(std::min<size_t>(hello.slots, hello.positions.size()));
  return !positions.empty() && (hello.live & bit_of(worker)) != 0 && std::ranges::all_of(positions, [](uint64_t at) {
    return at >= 1 && at < std::numeric_limits<uint64_t>::max() / 2;
  });
}

/// The lowest bit of `mask` above `after`, else the lowest of all. REQUIRES: mask != 0.
uint8_t next_bit(uint64_t mask, uint8_t after) {
  const uint64_t above = after >= 63 ? 0 : mask & ~uint64_t{0} << (after + 1);
  return static_cast<uint8_t>(std::countr_zero(above != 0 ? above : mask));
}

}  // namespace

/// S6.9: in one epoch and incarnation, a worker begins another session only before it was welcome. So it has
/// contributed nothing, and its positions are the same. A sender with other positions is another process under its
/// name, and no sum or result here is of its job.
bool ReduceJob::fits(const DatagramHeader& header, const HelloTerms& hello) const {
  if (header.worker >= protocol::kSwitchWorkersMax) return true;  // a rack says nothing of epochs
  if (phase_ == Phase::kClosed || header.epoch > epoch_) return true;
  if (header.epoch < epoch_ || hello.membership_hash != membership_hash_ || hello.live != live_) return false;
  if (phase_ == Phase::kCollecting || sessions_.is_session(header.worker, hello.worker_nonce)) return true;
  if ((contributed_ & bit_of(header.worker)) != 0 || hello.slots != epoch_slots_) return false;
  for (uint32_t number = 0; number < hello.slots; ++number) {
    const uint64_t at = hello.positions[number];
    if (at != positions_[number].most && at + 1 != positions_[number].most) return false;
  }
  return true;
}

void ReduceJob::hello(const Datagram& datagram, const protocol::Endpoint& from, const Outbox& out) {
  const uint16_t worker = datagram.header.worker;
  const auto hello = admit_hello(datagram, from, out);
  if (!hello) return;
  const uint32_t epoch = datagram.header.epoch;
  if (!can_be(*hello, worker)) return out.count(Event::kHelloRefused);
  if (!has_the_shape(datagram, *hello, out)) return;
  if (!reserve_slots()) {
    out.count(Event::kNoSlots);
    return notice(worker, NoticeCode::kNoSlots, out);
  }
  if (phase_ == Phase::kClosed || epoch > epoch_) {
    begin_collecting(epoch, *hello);
    waits_since_ = out.now();
  }
  if (phase_ == Phase::kCollecting && (greeted_ & bit_of(worker)) == 0) return collect(worker, *hello, out);
  out.count(Event::kHelloAgain);
  if (phase_ == Phase::kOpen) welcome(worker, out);
  if (phase_ == Phase::kFetching && out.now() >= fetch_after_) fetch(out);
}

/// Says whether the HELLO is of a job that this one can be (S6.3.3). Otherwise its sender gets the reason, and leaves
/// the path: no retransmission cures it.
bool ReduceJob::has_the_shape(const Datagram& datagram, const HelloTerms& hello, const Outbox& out) {
  const DatagramHeader& header = datagram.header;
  const bool is_new = phase_ == Phase::kClosed || header.epoch > epoch_;
  if (std::popcount(hello.live) > static_cast<int>(job_.workers)) {
    out.count(Event::kHelloRefused);
    notice(header.worker, NoticeCode::kNoSlots, out);
    return false;
  }
  if (is_new ? hello.slots <= job_.slots : hello.slots == epoch_slots_) return true;
  out.count(Event::kHelloRefused);
  const uint32_t slots = is_new ? job_.slots : epoch_slots_;
  send_welcome(header.worker, header.epoch, {.slots = slots, .window_indices = job_.window_indices, .turns = {}}, out);
  return false;
}

/// A rack's session begins. It has no positions, and what epoch it is in is its workers' to say.
void ReduceJob::rack_hello(const Datagram& datagram, const protocol::Endpoint& from, const Outbox& out) {
  const auto hello = admit_hello(datagram, from, out);
  if (!hello) return;
  if (hello->slots != 0) return out.count(Event::kHelloRefused);
  out.count(Event::kHello);
  send_welcome(datagram.header.worker, epoch_, {.slots = 0, .window_indices = job_.window_indices, .turns = {}}, out);
}

void ReduceJob::begin_collecting(uint32_t epoch, const HelloTerms& hello) {
  // Open turns are recomputed from nothing: half of a dead worker's fragments never stays in a sum.
  for (uint32_t number = 0; number < slots_.size(); ++number) slot(number).set_closed(slot(number).cur);
  if (groups_) groups_->clear();
  open_turns_ = 0;
  // Slots that no later turn closes must not count as ended.
  if (epoch_slots_ != hello.slots) ended_.reset();
  epoch_slots_ = hello.slots;
  phase_ = Phase::kCollecting;
  epoch_ = epoch;
  live_ = hello.live;
  membership_hash_ = hello.membership_hash;
  greeted_ = 0;
  contributed_ = 0;
  fetches_left_ = 0;
}

void ReduceJob::collect(uint16_t worker, const HelloTerms& hello, const Outbox& out) {
  for (uint32_t number = 0; number < hello.slots; ++number) {
    const uint64_t at = hello.positions[number];
    Position& position = positions_[number];
    if (greeted_ == 0) position = {.least = at, .most = at, .at_most = 0};
    if (at > position.most) position.at_most = 0;
    position.least = std::min(position.least, at);
    position.most = std::max(position.most, at);
    if (at == position.most) position.at_most |= bit_of(worker);
  }
  greeted_ |= bit_of(worker);
  out.count(Event::kHello);
  if (greeted_ == live_) all_collected(out);
}

void ReduceJob::all_collected(const Outbox& out) {
  const auto positions = std::span(positions_).first(epoch_slots_);
  const bool apart = std::ranges::any_of(positions, [](const Position& at) { return at.most - at.least > 1; });
  if (apart) {
    // One retained result cannot repair it, so a worker has a bug. Nothing opens; all workers get a notice, and HELLOs
    // are collected again.
    out.count(Event::kPositionsApart);
    greeted_ = 0;
    for (uint64_t left = live_; left != 0; left &= left - 1) {
      notice(static_cast<uint16_t>(std::countr_zero(left)), NoticeCode::kPositionsTooFarApart, out);
    }
    return;
  }
  // Nothing was before, so no step was counted that these workers know of.
  if (std::ranges::all_of(positions, [](const Position& at) { return at.most == 1; })) reselection_.reset();
  fetches_left_ = 0;
  for (uint32_t number = 0; number < epoch_slots_; ++number) {
    const Position& position = positions_[number];
    slot(number).set_closed(position.most - 1);
    fetched_from_[number] = kNobody;
    if (position.most == position.least) continue;
    fetched_from_[number] = next_bit(position.at_most, 63);
    ++fetches_left_;
  }
  if (fetches_left_ == 0) return open(out);
  phase_ = Phase::kFetching;
  waits_since_ = out.now();
  fetch_tries_ = 0;
  fetch(out);
}

void ReduceJob::fetch(const Outbox& out) {
  fetch_after_ = out.now() + kFetchGaps * options_->answer_gap_ns;
  const bool ask_another = ++fetch_tries_ % kFetchTries == 0;
  for (uint32_t number = 0; number < epoch_slots_; ++number) {
    if (fetched_from_[number] == kNobody) continue;
    if (ask_another) {
      // Fragments of the other upload are discarded: fragments of two uploads are never mixed.
      fetched_from_[number] = next_bit(positions_[number].at_most, fetched_from_[number]);
      slot(number).kept_of(slot(number).cur).begin(slot(number).cur);
    }
    const std::span<uint8_t> room = out.room(kDatagramHeaderBytes + kDatagramMacBytes);
    if (room.empty()) return;
    DatagramHeader header = header_of(DatagramType::kFetch);
    header.slot = static_cast<uint16_t>(number);
    header.turn = slot(number).cur;
    const uint16_t source = fetched_from_[number];
    out.send(sessions_.seal_to_worker(source, header, room), sessions_.endpoint(source));
  }
}

void ReduceJob::on_kept(const Datagram& datagram, const Outbox& out) {
  DatagramHeader header = datagram.header;
  if (header.epoch < epoch_) {
    out.count(Event::kOldEpoch);
    return notice(header.worker, NoticeCode::kOldEpoch, out);
  }
  const bool asked = header.epoch == epoch_ && phase_ == Phase::kFetching && header.slot < epoch_slots_ &&
                     fetched_from_[header.slot] == header.worker && header.turn == slot(header.slot).cur;
  if (!asked) return out.count(Event::kKeptUnasked);
  const bool is_void = (header.flags & flag::kVoid) != 0;
  const uint8_t possible = flag::kLast | flag::kDense | flag::kFin | flag::kVoid;
  uint32_t entries = 0;
  if (!protocol::read_result_terms(datagram.extension) || (header.flags & ~possible) != 0 ||
      (is_void && (header.entries != 0 || !datagram.payload.empty()))) {
    return out.count(Event::kBadFields);
  }
  if (!is_void) {
    const protocol::WindowRoom room{scratch_->entry_indices, scratch_->entry_values};
    const auto count = decode_window(header, datagram.payload, job_.window_indices, room);
    if (!count) return out.count(Event::kMalformedPayload);
    entries = *count;
  }
  if (!protocol::RetainedMarks::read(datagram.extension, entries)) return out.count(Event::kBadFields);
  header.type = DatagramType::kResult;
  header.worker = protocol::kAllWorkers;
  Slot& slot = this->slot(header.slot);
  const KeptResult::Kept kept = slot.kept_of(slot.cur).keep(header, datagram.extension, datagram.payload);
  if (kept == KeptResult::Kept::kRefused) return out.count(Event::kKeptUnasked);
  if (kept == KeptResult::Kept::kTaken) return;
  out.count(Event::kFetched);
  slot.set_successor(header.slot, header.step, header.next);
  fetched_from_[header.slot] = kNobody;
  if (--fetches_left_ == 0) open(out);
}

SwitchWaiting ReduceJob::waiting() const {
  SwitchWaiting waiting{.since = waits_since_};
  if (phase_ == Phase::kCollecting) {
    waiting.what = SwitchWait::kGreetings;
    waiting.workers = live_ & ~greeted_;
  } else if (phase_ == Phase::kFetching) {
    waiting.what = SwitchWait::kKeptResults;
    for (const uint8_t worker : std::span(fetched_from_).first(epoch_slots_))
      waiting.workers |= worker == kNobody ? 0 : bit_of(worker);
  } else if (phase_ == Phase::kOpen && open_turns_ != 0) {
    waiting.what = SwitchWait::kContributions;
    for (uint32_t number = 0; number < epoch_slots_; ++number)
      waiting.workers |= slot(number).open ? live_ & ~slot(number).whole : 0;
  }
  return waiting;
}

void ReduceJob::open(const Outbox& out) {
  phase_ = Phase::kOpen;
  out.count(Event::kOpened);
  for (uint64_t left = live_; left != 0; left &= left - 1) welcome(static_cast<uint16_t>(std::countr_zero(left)), out);
  // A laggard needs it (S6.4); the others drop it.
  for (uint32_t number = 0; number < epoch_slots_; ++number) {
    KeptResult& result = slot(number).kept_of(slot(number).cur);
    if (result.fragments() != 0) send_to_all(result, out);
  }
}

void ReduceJob::welcome(uint16_t worker, const Outbox& out) {
  protocol::WelcomeTerms said{.slots = epoch_slots_, .window_indices = job_.window_indices, .turns = {}};
  for (uint32_t number = 0; number < epoch_slots_; ++number) said.turns[number] = positions_[number].most - 1;
  send_welcome(worker, epoch_, said, out);
}

}  // namespace millrace::switch_agg
