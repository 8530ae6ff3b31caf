#include "switch_agg/process/packet_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <new>

#include "switch_agg/aggregator/job_machine.h"

namespace millrace::switch_agg {

namespace {

std::string refusal_of(const SwitchJob& job, const Error& error) {
  return fmt::format("job '{}': {}", job.name, error.message);
}

}  // namespace

size_t serve_burst(PacketPort& port, Aggregator& aggregator, TimeNs now) {
  const std::span<const protocol::ReceivedPacket> packets = port.receive();
  for (const protocol::ReceivedPacket& packet : packets) aggregator.receive(packet, now, port);
  port.flush();
  return packets.size();
}

Lane::Lane(std::unique_ptr<PacketPort> port, const AggregatorOptions& options, uint64_t incarnation_seed)
    : port_(std::move(port)), aggregator_(options, incarnation_seed) {}

Result<std::vector<PreparedJob>> Lane::prepare(const std::vector<SwitchJob>& jobs) {
  std::vector<PreparedJob> all;
  for (const SwitchJob& job : jobs) {
    try {
      all.reserve(jobs.size());
      Result<PreparedJob> prepared = aggregator_.prepare(job);
      if (!prepared) return fail(prepared.error().code, refusal_of(job, prepared.error()));
      all.push_back(std::move(*prepared));
    } catch (const std::bad_alloc&) {
      return fail(ErrorCode::kLimitExceeded,
                  fmt::format("job '{}': there is no memory for it: fewer \"slots\" or \"racks\", or a smaller "
                              "--packet-bytes-max",
                              job.name));
    }
  }
  return all;
}

Status Lane::add_jobs(const std::vector<SwitchJob>& jobs, TimeNs now) {
  Result<std::vector<PreparedJob>> prepared = prepare(jobs);
  if (!prepared) return std::unexpected(prepared.error());
  for (const PreparedJob& job : *prepared) {
    const Status added = aggregator_.add_job(job, now);
    if (added) continue;
    const std::string sentence = refusal_of(job->job(), added.error());
    if (added.error().code != ErrorCode::kLimitExceeded) return fail(added.error().code, sentence);
    refusals_.push_back(sentence);
  }
  return {};
}

void Lane::run() {
  constexpr int kIdleWaitMs = 1;
  port_->enter_thread();
  TimeNs next_tick = 0;
  TimeNs next_exchange = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    const TimeNs now = monotonic_now_ns();
    const size_t packets = serve_burst(now);
    if (now >= next_tick) {
      next_tick = now + kTickEvery;
      aggregator_.tick(now, *port_);
      port_->flush();
    }
    if (now >= next_exchange) {
      next_exchange = now + kReportEvery;
      exchange(now);
    }
    if (packets == 0) port_->wait(kIdleWaitMs);
  }
}

size_t Lane::serve_burst(TimeNs now) {
  if (spans_ == nullptr) return switch_agg::serve_burst(*port_, aggregator_, now);
  monitoring::SpanTimer timer(*spans_);
  const size_t packets = switch_agg::serve_burst(*port_, aggregator_, now);
  if (packets > 0)
    timer.end({.unit = number_, .name = monitoring::SpanName::kReduce, .unit_kind = monitoring::SpanUnit::kLane});
  return packets;
}

void Lane::exchange(TimeNs now) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  for (const uint32_t job : removed_) {
    if (PreparedJob removed = aggregator_.remove_job(job)) retired_.push_back(std::move(removed));
  }
  for (const PreparedJob& job : added_) {
    if (const Status added = aggregator_.add_job(job, now); !added)
      refusals_.push_back(refusal_of(job->job(), added.error()));
  }
  removed_.clear();
  added_.clear();
  report_.at = now;
  report_.port = port_->counters();
  report_.aggregator = aggregator_.counters();
  report_.jobs.clear();
  for (const SwitchJobStatus& status : aggregator_.status())
    report_.jobs.push_back({status, *aggregator_.counters(status.job)});
}

void Lane::change_jobs(std::vector<uint32_t> removed, std::vector<PreparedJob> added) {
  const std::lock_guard lock(mutex_);
  // exchange() removes before it adds: a job of an earlier change that this one removes is not to be added.
  std::erase_if(added_,
                [&](const PreparedJob& job) { return std::ranges::find(removed, job->job().job) != removed.end(); });
  removed_.insert(removed_.end(), removed.begin(), removed.end());
  added_.insert(added_.end(), std::make_move_iterator(added.begin()), std::make_move_iterator(added.end()));
}

std::vector<PreparedJob> Lane::take_retired() {
  const std::lock_guard lock(mutex_);
  return std::exchange(retired_, {});
}

std::vector<std::string> Lane::take_refusals() {
  const std::lock_guard lock(mutex_);
  return std::exchange(refusals_, {});
}

LaneReport Lane::report() const {
  const std::lock_guard lock(mutex_);
  return report_;
}

}  // namespace millrace::switch_agg
