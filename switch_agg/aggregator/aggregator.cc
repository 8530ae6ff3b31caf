#include "switch_agg/aggregator/aggregator.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/random.h"
#include "switch_agg/aggregator/combine_job.h"
#include "switch_agg/aggregator/outbox.h"
#include "switch_agg/aggregator/reduce_job.h"
#include "switch_agg/slot/kept_result.h"
#include "switch_agg/slot/slot.h"

namespace millrace::switch_agg {

using protocol::DatagramFault;
using protocol::WindowIndexCodec;
using protocol::WindowValueCodec;
using Event = AggregatorEvent;

namespace {

static_assert(kAggregatorPacketBytesMin >= kFragmentBytesMin);

Event event_of(DatagramFault fault) {
  switch (fault) {
    case DatagramFault::kTooShort: return Event::kTooShort;
    case DatagramFault::kWrongMagic: return Event::kWrongMagic;
    case DatagramFault::kUnknownType: return Event::kUnknownType;
    case DatagramFault::kWrongLength: return Event::kWrongLength;
    case DatagramFault::kOutOfBounds: return Event::kOutOfBounds;
  }
  return Event::kOutOfBounds;
}

}  // namespace

Status judge_job(const SwitchJob& job, const AggregatorOptions& options) {
  const auto refuse = [&job](const std::string& why) {
    return fail(ErrorCode::kInvalidArgument, "job " + std::to_string(job.job) + ": " + why);
  };
  if (job.workers == 0 || job.workers > protocol::kSwitchWorkersMax) return refuse("give 1 to 64 workers");
  if (job.window_indices == 0 || job.window_indices % 64 != 0 || job.window_indices > options.window_indices_max) {
    return refuse("window indices must be a multiple of 64, at most " + std::to_string(options.window_indices_max));
  }
  if (job.slots == 0 || job.slots > protocol::kSlotsMax) return refuse("give 1 to 128 slots");
  if (job.packet_bytes != 0 &&
      (job.packet_bytes < kAggregatorPacketBytesMin || job.packet_bytes > options.packet_bytes_max)) {
    return refuse("packets have 1200 bytes to --packet-bytes-max, " + std::to_string(options.packet_bytes_max));
  }
  if (job.lanes != 1) return refuse("each of its lanes is a job of its own here (split_by_lanes())");
  // Every worker counts a result's entries as applied: its indices and values must be the sum's own.
  const WindowIndexCodec index = job.result_codecs.index;
  if (index != WindowIndexCodec::kRaw && index != WindowIndexCodec::kGap && index != WindowIndexCodec::kBitmap) {
    return refuse("results need an exact index codec: raw, gap or bitmap");
  }
  if (job.result_codecs.value != WindowValueCodec::kFixed32) return refuse("results need the value codec fixed32");
  if (job.lease_ns <= 0) return refuse("give a lease");
  if (job.racks.size() > protocol::kSwitchWorkersMax || job.rack_number >= protocol::kSwitchWorkersMax) {
    return refuse("give at most 64 racks");
  }
  if (job.role == Role::kCombine && job.rack == 0) return refuse("role combine: give the rack's workers");
  if (job.role == Role::kCombine && job.shard.port == 0) return refuse("role combine: give the shard's address");
  if (job.role == Role::kCombine && !job.racks.empty()) return refuse("a rack has no racks");
  uint64_t named = 0;
  for (const uint64_t rack : job.racks) {
    if (rack == 0 || (named & rack) != 0) return refuse("racks have workers, and none in common");
    named |= rack;
  }
  return {};
}

struct Aggregator::State {
  struct Entry {
    AggregatorCounters counters;
    PreparedJob machine;
  };

  State(const AggregatorOptions& given, uint64_t incarnation_seed)
      : options(given),
        incarnations(RandomKey::from(incarnation_seed)),
        uplink_nonces(random_key(incarnation_seed, kUplinkStream)),
        pool(given.slots_max, given.window_indices_max, given.packet_bytes_max),
        scratch(given.window_indices_max, given.packet_bytes_max) {
    ids.reserve(given.jobs_max);
    jobs.reserve(given.jobs_max);
  }

  static constexpr uint64_t kUplinkStream = 1;

  uint64_t draw_incarnation() {
    uint64_t incarnation = 0;
    while (incarnation == 0) incarnation = incarnations.next_u64();
    return incarnation;
  }
  size_t find(uint32_t job) const { return static_cast<size_t>(std::ranges::find(ids, job) - ids.begin()); }
  EventBook book(Entry& entry) { return {.total = &counters, .job = &entry.counters}; }

  AggregatorOptions options;
  RandomSequence incarnations;
  RandomSequence uplink_nonces;  ///< of prepare(), whose thread may be another
  AggregatorCounters counters;
  SlotPool pool;
  Scratch scratch;
  std::vector<uint32_t> ids;                 ///< of `jobs`, in one array: packets are looked up in it
  std::vector<std::unique_ptr<Entry>> jobs;  ///< destroyed before the pool
};

Aggregator::Aggregator(const AggregatorOptions& options, uint64_t incarnation_seed) {
  MILLRACE_CHECK(
      options.packet_bytes_max >= kAggregatorPacketBytesMin && options.packet_bytes_max <= protocol::kDatagramBytesMax,
      options.packet_bytes_max);
  MILLRACE_CHECK(options.window_indices_max % 64 == 0 && options.window_indices_max <= protocol::kWindowIndicesMax,
                 options.window_indices_max);
  MILLRACE_CHECK(options.slots_max <= kAggregatorSlotsMax, options.slots_max);
  state_ = std::make_unique<State>(options, incarnation_seed);
}

Aggregator::~Aggregator() = default;
Aggregator::Aggregator(Aggregator&&) noexcept = default;

Result<PreparedJob> Aggregator::prepare(const SwitchJob& job) {
  State& state = *state_;
  if (Status valid = judge_job(job, state.options); !valid) return std::unexpected(valid.error());
  if (job.role == Role::kReduce) return std::make_shared<ReduceJob>(job, state.options, state.pool, state.scratch);
  return std::make_shared<CombineJob>(job, state.options, state.pool, state.scratch, state.uplink_nonces.next_u64());
}

Status Aggregator::add_job(const SwitchJob& job, TimeNs now) {
  Result<PreparedJob> prepared = prepare(job);
  return prepared ? add_job(std::move(*prepared), now) : std::unexpected(prepared.error());
}

Status Aggregator::add_job(PreparedJob prepared, TimeNs now) {
  const SwitchJob& job = prepared->job();
  if (state_->find(job.job) != state_->jobs.size()) {
    return fail(ErrorCode::kInvalidArgument, "job " + std::to_string(job.job) + " is here already");
  }
  if (state_->jobs.size() >= state_->options.jobs_max) {
    return fail(ErrorCode::kLimitExceeded,
                "the switch has " + std::to_string(state_->jobs.size()) + " jobs, its limit");
  }
  auto entry = std::make_unique<State::Entry>(AggregatorCounters(), std::move(prepared));
  const bool has_slots = entry->machine->reserve_slots();
  entry->machine->begin_incarnation(state_->draw_incarnation(), now);
  state_->ids.push_back(job.job);
  state_->jobs.push_back(std::move(entry));
  if (has_slots) return {};
  return fail(ErrorCode::kLimitExceeded, "job " + std::to_string(job.job) + " wants " + std::to_string(job.slots) +
                                             " slots, the switch has " + std::to_string(state_->pool.free_slots()) +
                                             " free");
}

PreparedJob Aggregator::remove_job(uint32_t job) {
  const size_t at = state_->find(job);
  if (at == state_->jobs.size()) return nullptr;
  PreparedJob removed = std::move(state_->jobs[at]->machine);
  removed->free_slots();
  state_->jobs.erase(state_->jobs.begin() + static_cast<std::ptrdiff_t>(at));
  state_->ids.erase(state_->ids.begin() + static_cast<std::ptrdiff_t>(at));
  return removed;
}

void Aggregator::receive(const protocol::ReceivedPacket& packet, TimeNs now, protocol::PacketSink& sink) {
  state_->counters.add(Event::kReceived);
  state_->counters.add(Event::kReceivedBytes, packet.bytes.size());
  const auto datagram = protocol::parse_datagram(packet.bytes);
  if (!datagram) return state_->counters.add(event_of(datagram.error()));
  const size_t at = state_->find(datagram->header.job);
  if (at == state_->jobs.size()) return state_->counters.add(Event::kWrongJob);
  State::Entry& entry = *state_->jobs[at];
  entry.counters.add(Event::kReceived);
  entry.counters.add(Event::kReceivedBytes, packet.bytes.size());
  const Outbox out(sink, now, state_->book(entry), packet);
  entry.machine->receive(*datagram, packet.from, out);
  if (!entry.machine->needs_incarnation()) return;
  entry.machine->begin_incarnation(state_->draw_incarnation(), now);
  out.count(Event::kBegunAnew);
  entry.machine->receive(*datagram, packet.from, out);  // its sender learns the new incarnation
}

void Aggregator::tick(TimeNs now, protocol::PacketSink& sink) {
  for (const std::unique_ptr<State::Entry>& entry : state_->jobs) {
    const Outbox out(sink, now, state_->book(*entry));
    if (entry->machine->lease_is_over(now)) {
      entry->machine->free_slots();
      entry->machine->begin_incarnation(state_->draw_incarnation(), now);
      out.count(Event::kLeaseExpired);
    }
    entry->machine->tick(out);
  }
}

const AggregatorCounters& Aggregator::counters() const { return state_->counters; }

const AggregatorCounters* Aggregator::counters(uint32_t job) const {
  const size_t at = state_->find(job);
  return at == state_->jobs.size() ? nullptr : &state_->jobs[at]->counters;
}

std::vector<SwitchJobStatus> Aggregator::status() const {
  std::vector<SwitchJobStatus> all;
  for (const std::unique_ptr<State::Entry>& entry : state_->jobs) {
    const JobMachine& job = *entry->machine;
    all.push_back({.job = job.job().job,
                   .packet_bytes = job.job().packet_bytes,
                   .slots = job.has_slots() ? job.job().slots : 0,
                   .slots_in_use = job.slots_in_use(),
                   .incarnation = job.incarnation(),
                   .epoch = job.epoch(),
                   .phase = job.phase(),
                   .live = job.live(),
                   .rack = job.rack_status(),
                   .greeted = job.greeted(),
                   .waiting = job.waiting(),
                   .doors = job.doors()});
  }
  return all;
}

}  // namespace millrace::switch_agg
