#include "tests/support/switch_stepper.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace millrace::worker::testing {
namespace {

constexpr TimeNs kEpochEvery = 10 * kNsPerMs;
constexpr TimeNs kWaitMax = 10 * kNsPerMs;

}  // namespace

uint16_t port_number(const SwitchUdpPort& port) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  EXPECT_EQ(::getsockname(port.descriptor(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  in_port_t number = 0;  // at the same place for both families
  std::memcpy(&number, reinterpret_cast<const uint8_t*>(&address) + offsetof(sockaddr_in, sin_port), sizeof number);
  return ntohs(number);
}

void wait_for_packets(const SwitchUdpPort& port, TimeNs at_most) {
  pollfd readable{port.descriptor(), POLLIN, 0};
  const TimeNs bounded = std::max<TimeNs>(at_most, 0);
  const timespec time{.tv_sec = bounded / kNsPerS, .tv_nsec = bounded % kNsPerS};
  ::ppoll(&readable, 1, &time, nullptr);
}

SwitchStepper::~SwitchStepper() = default;

Result<std::unique_ptr<SwitchStepper>> SwitchStepper::open(const SwitchClientOptions& options, ReadEpoch epoch) {
  auto stepper = std::unique_ptr<SwitchStepper>(new SwitchStepper());
  auto port =
      SwitchUdpPort::open(epoch().decider, options.packet_bytes_max, {.job = options.job, .lanes = options.lanes});
  if (!port) return std::unexpected(port.error());
  stepper->port_ = std::move(*port);
  stepper->read_epoch_ = std::move(epoch);
  SwitchOutcome& outcome = *stepper;
  stepper->client_ = std::make_unique<SwitchClient>(options, outcome);
  return stepper;
}

void SwitchStepper::on_completed(const CompletedWindow& window) {
  SwitchStep& out = under_way_;
  const size_t first = out.indices.size();
  for (const uint16_t index : window.indices) out.indices.push_back(window.begin + index);
  out.sums.insert(out.sums.end(), window.sums.begin(), window.sums.end());
  out.windows.push_back({.window = window.window,
                         .exponent = window.exponent,
                         .contributors = window.contributors,
                         .first = first,
                         .last = out.indices.size()});
  window.each_returned([&out](uint32_t index, float value) {
    out.returned_indices.push_back(index);
    out.returned_values.push_back(value);
  });
}

void SwitchStepper::step_done(uint32_t) { done_ = true; }

void SwitchStepper::turn(TimeNs wait_at_most) {
  const TimeNs now = monotonic_now_ns();
  if (epoch_read_at_ == INT64_MIN || now - epoch_read_at_ >= kEpochEvery) {
    epoch_read_at_ = now;
    client_->set_epoch(read_epoch_(), now, *port_);
  }
  const auto packets = port_->receive();
  for (const protocol::ReceivedPacket& packet : packets) client_->receive(packet, now, *port_);
  if (now >= client_->next_deadline()) client_->tick(now, *port_);
  port_->flush();
  if (packets.empty()) wait_for_packets(*port_, std::min({wait_at_most, kWaitMax, client_->next_deadline() - now}));
}

template <typename Done>
Status SwitchStepper::pump(TimeNs timeout, const Done& done) {
  const TimeNs until = monotonic_now_ns() + timeout;
  while (!done()) {
    const TimeNs left = until - monotonic_now_ns();
    if (left <= 0) return fail(ErrorCode::kTimeout, "the switch has not answered in time");
    turn(left);
  }
  port_->flush();
  return {};
}

Result<SwitchStep> SwitchStepper::run_step(uint32_t step, IndexSpan indices, std::span<const float> values,
                                           TimeNs timeout) {
  const Status begun = client_->begin_step(step, indices, values, monotonic_now_ns(), *port_);
  if (!begun) return std::unexpected(begun.error());
  return wait_step(timeout);
}

Result<SwitchStep> SwitchStepper::wait_step(TimeNs timeout) {
  const Status waited = pump(timeout, [&] { return done_; });
  if (!waited) return std::unexpected(waited.error());
  done_ = false;
  return std::exchange(under_way_, {});
}

Status SwitchStepper::finish(TimeNs timeout) {
  const Status begun = client_->finish(monotonic_now_ns(), *port_);
  if (!begun) return begun;
  return pump(timeout, [&] { return client_->finished(); });
}

}  // namespace millrace::worker::testing
