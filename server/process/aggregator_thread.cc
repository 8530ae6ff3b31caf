#include "server/process/aggregator_thread.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "kernels/base/bytes.h"
#include "protocol/address/endpoint_text.h"
#include "protocol/datagram/header.h"
#include "protocol/datagram/key.h"
#include "server/process/racks_file.h"
#include "switch_agg/aggregator/aggregator_counters.h"
#include "switch_agg/aggregator/split_by_lanes.h"
#include "switch_agg/aggregator/waiting_text.h"

namespace millrace::server {
namespace {

using switch_agg::AggregatorEvent;

/// Time that the thread waits for packets: with jobs, the timers of their epochs run beside it; without, it looks for
/// commands.
constexpr int kWaitMs = 1;
constexpr int kIdleWaitMs = 20;
/// Slots are freed for other jobs after a silence: here no other job could have them, and the job's end frees them.
constexpr TimeNs kNoLease = TimeNs{1'000'000} * kNsPerS;

std::string_view phase_text(switch_agg::SwitchPhase phase) {
  switch (phase) {
    case switch_agg::SwitchPhase::kClosed: return "closed";
    case switch_agg::SwitchPhase::kCollecting: return "collecting";
    case switch_agg::SwitchPhase::kFetching: return "fetching";
    case switch_agg::SwitchPhase::kOpen: return "open";
  }
  return "unknown";
}

switch_agg::AggregatorOptions options_of(const protocol::JobSpec& spec, const protocol::SwitchLayout& layout) {
  switch_agg::AggregatorOptions options;
  options.jobs_max = layout.lanes;
  options.slots_max = layout.slots;
  options.window_indices_max = layout.window_indices;
  options.packet_bytes_max = spec.switch_path.packet_bytes_max;
  return options;
}

switch_agg::SwitchJob switch_job_of(const protocol::JobSpec& spec, const protocol::SwitchLayout& layout,
                                    const protocol::JobKey& key, const std::vector<uint64_t>& racks) {
  switch_agg::SwitchJob job;
  job.job = spec.switch_path.job;
  job.name = spec.name;
  job.key = key;
  job.workers = spec.workers;
  job.window_indices = layout.window_indices;
  job.lanes = layout.lanes;
  job.slots = layout.slots;
  job.packet_bytes = spec.switch_path.packet_bytes_max;
  job.reselect_k = layout.reselect_k;
  job.lease_ns = kNoLease;
  job.racks = racks;
  return job;
}

}  // namespace

uint64_t random_incarnation_seed() {
  const protocol::Nonce nonce = protocol::random_nonce();
  uint64_t seed = 0;
  std::memcpy(&seed, nonce.data(), sizeof seed);
  return seed;
}

uint64_t aggregator_bytes(const protocol::JobSpec& spec, const protocol::SwitchLayout& layout, size_t racks) {
  constexpr uint64_t kSlotBytes = 3 << 10;
  constexpr uint64_t kSessionBytes = 3'900;
  constexpr uint64_t kHistogramBytes = 73 << 10;
  constexpr uint64_t kScratchBytes = 108'000;
  const uint64_t window = layout.window_indices;
  const uint64_t results = 2 * protocol::kFragmentsMax * uint64_t{spec.switch_path.packet_bytes_max};
  const uint64_t groups = racks * (results / 2 + window / 8);
  return layout.slots * (window * 4 + window / 4 + window * 3 / 2 + results + groups + kSlotBytes) + 10 * window +
         kScratchBytes + layout.lanes * (kHistogramBytes + kSessionBytes * (protocol::kSwitchWorkersMax + racks));
}

Result<std::unique_ptr<DatagramThread>> DatagramThread::start(const DatagramOptions& options,
                                                              uint64_t incarnation_seed) {
  Result<protocol::Endpoint> listen = protocol::parse_endpoint(options.listen);
  if (!listen) return fail(listen.error().code, "--datagrams: " + listen.error().message);
  if (protocol::is_every_host(protocol::parse_host_port(options.listen)->host)) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("--datagrams {}: workers receive this address; give the one that they reach", options.listen));
  }
  // Each job has its own packet_bytes_max: the port takes the longest there is.
  auto port = switch_agg::UdpPort::open({.listen = *listen, .packet_bytes_max = protocol::kDatagramBytesMax});
  if (!port) return std::unexpected(port.error());
  return std::unique_ptr<DatagramThread>(new DatagramThread(options, std::move(*port), incarnation_seed));
}

DatagramThread::DatagramThread(const DatagramOptions& options, std::unique_ptr<switch_agg::UdpPort> port,
                               uint64_t incarnation_seed)
    : options_(options),
      address_(protocol::endpoint_text(port->address())),
      incarnation_seed_(incarnation_seed),
      keys_(options.key_folder),
      port_(std::move(port)),
      thread_([this] { run(); }) {}

DatagramThread::~DatagramThread() {
  stop_.store(true);
  thread_.join();
}

AggregatorStatus DatagramThread::report_of(const Served& served, TimeNs now) {
  AggregatorStatus report;
  std::optional<switch_agg::SwitchPhase> farthest_behind;
  switch_agg::SwitchJobStatus all;
  for (const switch_agg::SwitchJobStatus& lane : served.aggregator.status()) {
    report.slots += lane.slots;
    all.epoch = std::max(all.epoch, lane.epoch);
    add_waiting(lane, all);
    if (farthest_behind && lane.phase >= *farthest_behind) continue;
    farthest_behind = lane.phase;
    report.phase = phase_text(lane.phase);
    report.epoch = lane.epoch;
  }
  const switch_agg::AggregatorCounters& counters = served.aggregator.counters();
  report.memory_bytes = served.memory_bytes;
  report.received = counters[AggregatorEvent::kReceived];
  report.received_bytes = served.received_bytes;
  report.racks = served.racks;
  report.groups = counters[AggregatorEvent::kGroupAdded];
  report.closed = counters[AggregatorEvent::kClosed];
  report.resent = counters[AggregatorEvent::kDuplicate] + counters[AggregatorEvent::kPrevious] +
                  counters[AggregatorEvent::kCurrentClosed];
  report.rejected = counters[AggregatorEvent::kBadMac];
  for (size_t at = 0; at < switch_agg::kAggregatorEvents; ++at) {
    if (counters.events[at] == 0) continue;
    const auto event = static_cast<AggregatorEvent>(at);
    report.events.push_back({std::string(switch_agg::aggregator_event_name(event)), counters.events[at]});
  }
  report.waiting_for = wait_name(all.waiting.what);
  for (uint32_t worker = 0; worker < protocol::kSwitchWorkersMax; ++worker)
    if ((all.waiting.workers >> worker & 1) != 0) report.waited_for.push_back(worker);
  if (!report.waiting_for.empty()) report.waiting_ms = (now - all.waiting.since) / kNsPerMs;
  report.waiting_because = waiting_sentence(all, now);
  return report;
}

Result<protocol::JobKey> DatagramThread::key_of(uint32_t number) {
  Result<protocol::JobKey> key = keys_.key_of(number);
  if (key) return key;
  return fail(
      ErrorCode::kInvalidArgument,
      fmt::format("shard 0 decides in place of the switch of jobs of path switch and has no key of job {}: {}; put the "
                  "switch's key of that job there (--job-keys), or start shard 0 without --datagrams",
                  number, key.error().message));
}

Result<std::vector<uint64_t>> DatagramThread::racks_of(uint32_t number) const {
  const std::string path = fmt::format("{}/{}.racks", options_.key_folder, number);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::vector<uint64_t>();
  return read_racks_file(path);
}

Status DatagramThread::judge(const protocol::JobSpec& spec, const protocol::SwitchLayout& layout) {
  const Result<std::vector<uint64_t>> racks = racks_of(spec.switch_path.job);
  if (!racks) return std::unexpected(racks.error());
  const uint64_t bytes = aggregator_bytes(spec, layout, racks->size());
  if (bytes > options_.memory_bytes_max) {
    return fail(
        ErrorCode::kLimitExceeded,
        fmt::format("{} slots of {} indices take {} bytes of shard 0, over its limit of {} "
                    "(--job-memory-bytes-max); fewer switch_slots or switch_lanes, or smaller blocks of the grid",
                    layout.slots, layout.window_indices, bytes, options_.memory_bytes_max));
  }
  const Result<protocol::JobKey> key = key_of(spec.switch_path.job);
  if (!key) return std::unexpected(key.error());
  for (const switch_agg::SwitchJob& lane : switch_agg::split_by_lanes(switch_job_of(spec, layout, *key, *racks))) {
    if (const Status can = switch_agg::judge_job(lane, options_of(spec, layout)); !can) return can;
  }
  return {};
}

Status DatagramThread::begin(uint64_t job, const protocol::JobSpec& spec, const protocol::SwitchLayout& layout) {
  const Result<protocol::JobKey> key = key_of(spec.switch_path.job);
  if (!key) return std::unexpected(key.error());
  Result<std::vector<uint64_t>> racks = racks_of(spec.switch_path.job);
  if (!racks) return std::unexpected(racks.error());
  const uint64_t bytes = aggregator_bytes(spec, layout, racks->size());
  auto served =
      std::make_unique<Served>(Served{job,
                                      {spec.switch_path.job, layout.lanes},
                                      bytes,
                                      static_cast<uint32_t>(racks->size()),
                                      switch_agg::Aggregator(options_of(spec, layout), incarnation_seed_ + begun_++)});
  for (const switch_agg::SwitchJob& lane : switch_agg::split_by_lanes(switch_job_of(spec, layout, *key, *racks))) {
    if (const Status added = served->aggregator.add_job(lane, monotonic_now_ns()); !added) return added;
  }
  const std::lock_guard lock(mutex_);
  reports_[job] = report_of(*served, monotonic_now_ns());
  commands_.push_back({job, std::move(served)});
  has_commands_.store(true);
  return {};
}

void DatagramThread::end(uint64_t job) {
  const std::lock_guard lock(mutex_);
  reports_.erase(job);
  commands_.push_back({job, nullptr});
  has_commands_.store(true);
}

std::optional<AggregatorStatus> DatagramThread::report(uint64_t job) const {
  const std::lock_guard lock(mutex_);
  const auto at = reports_.find(job);
  return at == reports_.end() ? std::nullopt : std::optional(at->second);
}

std::vector<NamedCount> DatagramThread::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

void DatagramThread::run() {
  TimeNs next_tick = 0;
  TimeNs next_report = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    const TimeNs now = monotonic_now_ns();
    if (has_commands_.load(std::memory_order_relaxed)) run_commands();
    const size_t packets = serve_burst(now);
    if (now >= next_tick) {
      next_tick = now + kTickEvery;
      for (const std::unique_ptr<Served>& one : served_) one->aggregator.tick(now, *port_);
      port_->flush();
    }
    if (now >= next_report) {
      next_report = now + kReportEvery;
      write_reports(now);
    }
    if (packets == 0) port_->wait(served_.empty() ? kIdleWaitMs : kWaitMs);
  }
}

size_t DatagramThread::serve_burst(TimeNs now) {
  const std::span<const protocol::ReceivedPacket> packets = port_->receive();
  for (const protocol::ReceivedPacket& packet : packets) {
    const std::optional<uint32_t> number = protocol::job_number_of(packet.bytes);
    if (!number || packet.bytes.size() < protocol::kDatagramHeaderBytes) {
      ++too_short_;
      continue;
    }
    const auto served = std::ranges::find_if(
        served_, [number](const std::unique_ptr<Served>& one) { return one->numbers.lane_of(*number).has_value(); });
    if (served == served_.end()) {
      ++wrong_job_;
      continue;
    }
    (*served)->received_bytes += packet.bytes.size();
    (*served)->aggregator.receive(packet, now, *port_);
  }
  port_->flush();
  return packets.size();
}

void DatagramThread::run_commands() {
  std::vector<AggregatorCommand> commands;
  {
    const std::lock_guard lock(mutex_);
    commands.swap(commands_);
    has_commands_.store(false);
  }
  for (AggregatorCommand& command : commands) {
    std::erase_if(served_, [&command](const std::unique_ptr<Served>& one) {
      return one->job == command.job || (command.served && one->numbers.overlap(command.served->numbers));
    });
    if (command.served) served_.push_back(std::move(command.served));
  }
}

void DatagramThread::write_reports(TimeNs now) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  for (const std::unique_ptr<Served>& one : served_) {
    // A job that has ended since has no report any more.
    const auto at = reports_.find(one->job);
    if (at != reports_.end()) at->second = report_of(*one, now);
  }
  const switch_agg::PortCounters& port = port_->counters();
  dropped_.clear();
  for (const auto& [reason, count] :
       {std::pair("too_short", too_short_), std::pair("wrong_job", wrong_job_), std::pair("too_long", port.too_long),
        std::pair("send_full", port.send_full), std::pair("send_refused", port.send_refused)}) {
    if (count != 0) dropped_.push_back({reason, count});
  }
}

}  // namespace millrace::server
