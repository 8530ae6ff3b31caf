#include "worker/peer/simulation/simulation.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/hash.h"

namespace millrace::peer {
namespace {

constexpr uint64_t kJitterDraws = 0x6a697474;

// Distance, in ranks, at which the memory of a rank is prefetched, by the member that has to be there before.
constexpr size_t kAheadOfRank = 12;
constexpr size_t kAheadOfQueues = 8;
constexpr size_t kAheadOfBody = 4;
constexpr size_t kAheadOfCode = 2;

/// A shorter body is not worth being looked for.
constexpr size_t kSharedBodyBytesMin = 4096;

/// From this number of updates on, updating a tree takes longer than building a new one.
constexpr uint32_t kRebuildFrom = 4;

}  // namespace

/// First in, first out, in one piece of memory that is used again.
template <typename T>
class Simulation::Queue {
 public:
  bool empty() const { return first_ == items_.size(); }
  size_t size() const { return items_.size() - first_; }
  T& operator[](size_t at) { return items_[first_ + at]; }
  T& front() { return items_[first_]; }
  const T& front() const { return items_[first_]; }
  const T* next_place() const { return items_.data() + items_.size(); }
  void push(T item) {
    // Uses the room of removed items before it takes more.
    if (items_.size() == items_.capacity() && first_ > items_.size() / 2) {
      items_.erase(items_.begin(), items_.begin() + static_cast<ptrdiff_t>(first_));
      first_ = 0;
    }
    items_.push_back(std::move(item));
  }
  void pop() {
    items_[first_] = T();
    if (++first_ == items_.size()) clear();
  }
  void clear() {
    items_.clear();
    first_ = 0;
  }

 private:
  std::vector<T> items_;
  size_t first_ = 0;
};

struct Simulation::Arriving {
  TimeNs at = 0;
  uint32_t from = 0;
  PeerMessage message;
};

/// Holds a message from the begin of its sending until its receiver has it.
struct Simulation::Transfer {
  TimeNs at = 0;
  TimeNs takes = 0;
  uint32_t from = 0;
  uint32_t to = 0;
  PeerMessage message;
};

/// Holds the live bodies, by their content.
class Simulation::Bodies {
 public:
  /// The same bytes: those of an earlier body where there is one that has them.
  void share(SharedBytes& body) {
    // Readers of a body may rely on the alignment that it was made with.
    if (body.bytes.size() < kSharedBodyBytesMin || !body.owner || !is_aligned(body.bytes.data())) return;
    if (known_.size() >= sweep_at_) sweep();
    Known& known = known_[hash64(body.bytes)];
    if (const std::shared_ptr<const void> owner = known.owner.lock()) {
      const bool same = known.bytes.size() == body.bytes.size() &&
                        std::memcmp(known.bytes.data(), body.bytes.data(), body.bytes.size()) == 0;
      if (same) body = {owner, known.bytes};
      return;
    }
    known = {body.owner, body.bytes};
  }

 private:
  struct Known {
    std::weak_ptr<const void> owner;
    ByteSpan bytes;  ///< while the owner is there
  };

  static bool is_aligned(const uint8_t* at) { return std::bit_cast<uintptr_t>(at) % alignof(std::max_align_t) == 0; }

  void sweep() {
    std::erase_if(known_, [](const auto& one) { return one.second.owner.expired(); });
    sweep_at_ = std::max(sweep_at_, 2 * known_.size());
  }

  std::unordered_map<uint64_t, Known> known_;
  size_t sweep_at_ = 1024;
};

/// Sends of one call of the core, and when that was.
struct Simulation::Batch {
  TimeNs base = 0;
  std::vector<Outgoing> sends;
};

struct Simulation::Start {
  TimeNs at = 0;
  std::function<Collective()> make;
};

/// Holds the members of a rank that each message touches. With thousands of ranks, memory access is the cost of a
/// message, so they lie in one place.
struct alignas(64) Simulation::Hot {
  TimeNs send = kNever;      ///< when the next transfer begins
  TimeNs delivery = kNever;  ///< when what arrives first is there
  TimeNs start = kNever;
  TimeNs tick = kNever;  ///< not after the core's next deadline
  TimeNs processor_free = 0;
  TimeNs port_out_free = 0;
  TimeNs port_in_free = 0;
  // Of the sends of one call of the core that come next.
  Outgoing* out = nullptr;
  Outgoing* out_end = nullptr;
  TimeNs out_base = 0;
  Queue<Arriving> arriving;  ///< by time
  Counts counts;

  TimeNs next_delivery() const { return std::max(delivery, processor_free); }
  TimeNs next_start() const { return std::max(start, processor_free); }
  TimeNs next() const { return std::min(std::min(send, tick), std::min(next_delivery(), next_start())); }
};

struct Simulation::Rank {
  Rank(uint32_t rank, const SimulationOptions& options) : core(rank, options.ranks, options.group) {}

  // The members that each message touches come first, up to the last such member of the core.
  bool stopped = false;
  std::vector<uint32_t> open;  ///< collectives that have not ended
  Queue<Batch> sending;
  PeerCore core;
  Queue<Start> starts;
  std::vector<std::optional<Ended>> ended;

  static constexpr size_t kHotBytes = 320;
};

Simulation::Simulation(const SimulationOptions& options)
    : options_(options),
      hot_(std::max(options.ranks, 1u)),
      earliest_(std::max(options.ranks, 1u)),
      bodies_(std::make_unique<Bodies>()),
      stops_(options.faults),
      draws_(RandomKey::from(options.seed), kJitterDraws) {
  MILLRACE_CHECK(options.ranks >= 1 && options.bytes_per_s > 0, options.ranks, options.bytes_per_s);
  MILLRACE_CHECK(options.latency >= 0 && options.propagation >= 0 && options.jitter_max >= 0, options.latency);
  for (uint32_t rank = 0; rank < options.ranks; ++rank) ranks_.push_back(std::make_unique<Rank>(rank, options_));
  for (const SimulatedFault& fault : stops_) {
    MILLRACE_CHECK(fault.rank < options.ranks, fault.rank, options.ranks);
    if (fault.noticed_after) notices_.push_back(fault);
  }
  // Links of their own may be of any rate.
  const TimeNs header = options.link_bytes_per_s ? options.latency : transfer_time(0, 0, kMessageHeaderBytes);
  lookahead_ = std::max<TimeNs>(1, options.propagation + header);
  std::ranges::sort(stops_, std::greater<>(), &SimulatedFault::at);
  std::ranges::sort(notices_, std::greater<>(), [](const SimulatedFault& one) { return one.at + *one.noticed_after; });
}

Simulation::~Simulation() = default;

const std::vector<std::optional<Simulation::Ended>>& Simulation::ended(uint32_t rank) const {
  return ranks_[rank]->ended;
}

const std::optional<GroupFailure>& Simulation::failure(uint32_t rank) const { return ranks_[rank]->core.failure(); }

const Simulation::Counts& Simulation::counts(uint32_t rank) const { return hot_[rank].counts; }

void Simulation::start(uint32_t rank, TimeNs at, std::function<Collective()> make) {
  MILLRACE_CHECK(rank < size(), rank, size());
  ranks_[rank]->ended.emplace_back();
  if (ranks_[rank]->stopped) return;
  Queue<Start>& starts = ranks_[rank]->starts;
  starts.push({std::max(at, now_), std::move(make)});
  hot_[rank].start = starts.front().at;
  schedule(rank);
}

Status Simulation::run() {
  for (;;) {
    const TimeNs next = earliest_.time();
    if (!stops_.empty() && stops_.back().at <= next) {
      const SimulatedFault stop = stops_.back();
      stops_.pop_back();
      fault(stop);
      continue;
    }
    if (!notices_.empty() && notices_.back().at + *notices_.back().noticed_after <= next) {
      const SimulatedFault stop = notices_.back();
      notices_.pop_back();
      notice(stop);
      continue;
    }
    if (next == kNever) return {};
    if (next > options_.end_at_max) {
      return fail(ErrorCode::kTimeout, "rank " + std::to_string(earliest_.slot()) + " is not done at " +
                                           std::to_string(options_.end_at_max) + " ns of the virtual clock");
    }
    run_window(end_of_window(next));
  }
}

/// Until then no rank gets anything that is not on its way already, and nothing else happens.
TimeNs Simulation::end_of_window(TimeNs begin) const {
  TimeNs end = begin + std::min(lookahead_, kNever - begin);
  end = std::min(end, std::min(options_.end_at_max, kNever - 1) + 1);
  if (!stops_.empty()) end = std::min(end, stops_.back().at);
  if (!notices_.empty()) end = std::min(end, notices_.back().at + *notices_.back().noticed_after);
  return end;
}

void Simulation::run_window(TimeNs end) {
  earliest_.before(end, active_);
  touched_ = active_;
  const TimeNs begin = now_;
  TimeNs last = begin;
  for (size_t place = 0; place < active_.size(); ++place) {
    prefetch(place);
    now_ = begin;
    run_rank(active_[place], end);
    last = std::max(last, now_);
  }
  now_ = last;
  hand_over();
  schedule_touched();
}

/// What happens to one rank before `end`.
void Simulation::run_rank(uint32_t at, TimeNs end) {
  const Hot& rank = hot_[at];
  for (TimeNs next = rank.next(); next < end; next = rank.next()) {
    now_ = next;
    // Of one time: sends first, so that the order of ports is that of the sends.
    if (rank.send <= now_) {
      begin_transfer(at);
    } else if (rank.next_delivery() <= now_) {
      deliver(at);
    } else if (rank.next_start() <= now_) {
      start_next(at);
    } else {
      tick(at);
    }
  }
}

/// Of the ranks whose turn comes after that of the one at `place`.
void Simulation::prefetch(size_t place) const {
  if (place + kAheadOfRank < active_.size()) {
    prefetch_lines(&hot_[active_[place + kAheadOfRank]], sizeof(Hot));
    prefetch_lines(ranks_[active_[place + kAheadOfRank]].get(), Rank::kHotBytes);
  }
  if (place + kAheadOfQueues < active_.size()) {
    const Hot& hot = hot_[active_[place + kAheadOfQueues]];
    if (hot.out != nullptr) prefetch_lines(hot.out, 2 * sizeof(Outgoing));
    if (!hot.arriving.empty()) prefetch_lines(&hot.arriving.front(), sizeof(Arriving));
    ranks_[active_[place + kAheadOfQueues]]->core.prefetch_state();
  }
  if (place + kAheadOfBody < active_.size()) {
    const Hot& hot = hot_[active_[place + kAheadOfBody]];
    if (!hot.arriving.empty()) prefetch_lines(hot.arriving.front().message.body.bytes.data(), 1);
  }
  if (place + kAheadOfCode < active_.size()) ranks_[active_[place + kAheadOfCode]]->core.prefetch_code();
}

/// Takes the transfers that began in this window, in the order of the ports: by time, of one time the lower rank's
/// first.
void Simulation::hand_over() {
  order_.clear();
  for (const Transfer& transfer : transfers_) order_.emplace_back(transfer.at, static_cast<uint32_t>(order_.size()));
  if (!std::ranges::is_sorted(order_)) std::ranges::sort(order_);
  constexpr size_t kAhead = 8;
  for (size_t i = 0; i < order_.size(); ++i) {
    if (i + 2 * kAhead < order_.size()) {
      prefetch_lines(&hot_[transfers_[order_[i + 2 * kAhead].second].to], sizeof(Hot));
    }
    if (i + kAhead < order_.size()) {
      prefetch_lines(hot_[transfers_[order_[i + kAhead].second].to].arriving.next_place(), sizeof(Arriving));
    }
    receive(std::move(transfers_[order_[i].second]));
  }
  transfers_.clear();
}

void Simulation::schedule_touched() {
  if (touched_.size() * kRebuildFrom < size()) {
    for (const uint32_t at : touched_) schedule(at);
  } else {
    for (const uint32_t at : touched_) earliest_.put(at, ranks_[at]->stopped ? kNever : hot_[at].next());
    earliest_.rebuild();
  }
}

void Simulation::schedule(uint32_t at) { earliest_.set(at, ranks_[at]->stopped ? kNever : hot_[at].next()); }

/// The time of the next transfer, after the sends or the port have changed.
void Simulation::look_at_sends(uint32_t at) {
  Hot& hot = hot_[at];
  Rank& rank = *ranks_[at];
  if (hot.out == hot.out_end) {
    if (hot.out != nullptr) rank.sending.pop();
    hot.out = hot.out_end = nullptr;
    hot.send = kNever;
    if (rank.sending.empty()) return;
    Batch& batch = rank.sending.front();
    hot.out = batch.sends.data();
    hot.out_end = hot.out + batch.sends.size();
    hot.out_base = batch.base;
  }
  hot.send = std::max(hot.port_out_free, hot.out_base + scaled(hot.out->work_before));
}

TimeNs Simulation::scaled(TimeNs work) const {
  return work == 0 ? 0 : static_cast<TimeNs>(static_cast<double>(work) * options_.work_scale);
}

TimeNs Simulation::transfer_time(uint32_t from, uint32_t to, uint64_t bytes) const {
  const double rate = options_.link_bytes_per_s ? options_.link_bytes_per_s(from, to) : options_.bytes_per_s;
  return options_.latency + static_cast<TimeNs>(std::ceil(static_cast<double>(bytes) * kNsPerS / rate));
}

void Simulation::begin_transfer(uint32_t from) {
  Hot& sender = hot_[from];
  Outgoing out = std::move(*sender.out++);
  const uint64_t body = out.message.body.bytes.size();
  const TimeNs takes = transfer_time(from, out.to, kMessageHeaderBytes + body);
  sender.port_out_free = now_ + takes;
  ++sender.counts.traffic.messages_sent;
  sender.counts.traffic.bytes_sent += kMessageHeaderBytes + body;
  sender.counts.body_bytes_sent += body;
  transfers_.push_back({now_, takes, from, out.to, std::move(out.message)});
  look_at_sends(from);
}

void Simulation::receive(Transfer&& transfer) {
  Hot& receiver = hot_[transfer.to];
  receiver.port_in_free = std::max(receiver.port_in_free, transfer.at + options_.propagation) + transfer.takes;
  if (ranks_[transfer.to]->stopped) return;
  TimeNs at = receiver.port_in_free;
  if (options_.jitter_max > 0) {
    at += static_cast<TimeNs>(draws_.next_below(static_cast<uint64_t>(options_.jitter_max) + 1));
  }
  Queue<Arriving>& queue = receiver.arriving;
  queue.push({at, transfer.from, std::move(transfer.message)});
  for (size_t place = queue.size() - 1; place > 0 && queue[place - 1].at > at; --place) {
    std::swap(queue[place - 1], queue[place]);
  }
  if (queue.front().at == receiver.delivery) return;
  receiver.delivery = queue.front().at;
  touched_.push_back(transfer.to);
}

void Simulation::deliver(uint32_t to) {
  Hot& hot = hot_[to];
  Arriving next = std::move(hot.arriving.front());
  hot.arriving.pop();
  hot.delivery = hot.arriving.empty() ? kNever : hot.arriving.front().at;
  const uint64_t body = next.message.body.bytes.size();
  ++messages_;
  hot.counts.traffic.bytes_received += kMessageHeaderBytes + body;
  hot.counts.body_bytes_received += body;
  Actions actions;
  ranks_[to]->core.on_message(next.from, std::move(next.message), now_, actions);
  take(to, std::move(actions));
}

void Simulation::start_next(uint32_t at) {
  Rank& rank = *ranks_[at];
  const std::function<Collective()> make = std::move(rank.starts.front().make);
  const size_t started = rank.ended.size() - rank.starts.size();
  rank.starts.pop();
  hot_[at].start = rank.starts.empty() ? kNever : rank.starts.front().at;
  Actions actions;
  const Result<uint32_t> number = rank.core.start(make(), now_, actions);
  if (number) {
    rank.open.push_back(*number);
  } else {
    rank.ended[started] = Ended{std::unexpected(number.error()), now_};
  }
  take(at, std::move(actions));
}

void Simulation::tick(uint32_t at) {
  Rank& rank = *ranks_[at];
  Actions actions;
  if (rank.core.next_deadline() <= now_) rank.core.on_tick(now_, actions);
  hot_[at].tick = kNever;
  take(at, std::move(actions));
}

void Simulation::take(uint32_t at, Actions&& actions) {
  Rank& rank = *ranks_[at];
  Hot& hot = hot_[at];
  const TimeNs work = scaled(actions.work);
  hot.counts.work += work;
  if (work > 0) hot.processor_free = std::max(hot.processor_free, now_) + work;
  if (!actions.sends.empty()) {
    for (Outgoing& out : actions.sends) bodies_->share(out.message.body);
    rank.sending.push({now_, std::move(actions.sends)});
    if (hot.out == nullptr) look_at_sends(at);
  }
  record_ended(at);
  // It only moves later while something waits, so that it is looked at when it comes, not with each message.
  if (!rank.core.busy()) {
    hot.tick = kNever;
  } else if (hot.tick == kNever) {
    hot.tick = rank.core.next_deadline();
  }
}

/// A collective that ended in this call ends when its work is done. Numbers are given in the order of the starts.
void Simulation::record_ended(uint32_t at) {
  Rank& rank = *ranks_[at];
  if (rank.core.running() == rank.open.size()) return;
  std::erase_if(rank.open, [&](uint32_t number) {
    if (!rank.core.ended(number)) return false;
    rank.ended[number] = Ended{rank.core.take_status(number), std::max(now_, hot_[at].processor_free)};
    return true;
  });
}

void Simulation::fault(const SimulatedFault& fault) {
  now_ = std::max(now_, fault.at);
  Rank& rank = *ranks_[fault.rank];
  rank.stopped = true;
  rank.sending.clear();
  rank.starts.clear();
  hot_[fault.rank].arriving.clear();
  hot_[fault.rank].out = hot_[fault.rank].out_end = nullptr;
  schedule(fault.rank);
}

void Simulation::notice(const SimulatedFault& fault) {
  now_ = std::max(now_, fault.at + *fault.noticed_after);
  for (uint32_t at = 0; at < size(); ++at) {
    Rank& rank = *ranks_[at];
    if (rank.stopped) continue;
    Actions actions;
    rank.core.on_lost(fault.rank, now_, actions);
    take(at, std::move(actions));
    schedule(at);
  }
}

}  // namespace millrace::peer
