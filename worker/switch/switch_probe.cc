#include "worker/switch/switch_probe.h"

#include <algorithm>
#include <limits>

namespace millrace::worker {

using protocol::SwitchLink;

namespace {

constexpr TimeNs kUnansweredMax = 3;
constexpr TimeNs kStaysToForget = 8;  ///< holds at the switch that take a doubling back

}  // namespace

SwitchProbe::SwitchProbe(const SwitchProbeOptions& options) : options_(options), link_(options.identity) {
  link_.aim(options.at);
}

void SwitchProbe::start(Cause cause, TimeNs now) {
  if (probing_) return;
  probing_ = true;
  ask_at_ = now;
  answered_at_ = 0;
  if (cause == Cause::kBegan) return;
  const bool stayed = at_switch_since_ != 0 && now - at_switch_since_ >= kStaysToForget * observation_time();
  if (stayed) {
    doublings_ -= doublings_ > 0 ? 1 : 0;
  } else if (at_switch_since_ != 0) {
    doublings_ = std::min(doublings_ + 1, options_.doublings_max);
  }
}

void SwitchProbe::stop(TimeNs now) {
  if (!probing_) return;
  probing_ = false;
  at_switch_since_ = now;
}

bool SwitchProbe::receive(const protocol::Datagram& datagram, TimeNs now) {
  if (!probing_ || datagram.header.type != protocol::DatagramType::kChallenge) return false;
  const SwitchLink::Challenge told = link_.take_challenge(datagram, SwitchLink::Renew::kNewIncarnationOnly);
  if (told == SwitchLink::Challenge::kRefused) return false;
  if (told == SwitchLink::Challenge::kNewIncarnation || answered_at_ == 0 || stale(now)) answering_since_ = now;
  answered_at_ = now;
  return true;
}

void SwitchProbe::tick(TimeNs now, protocol::PacketSink& sink) {
  if (!probing_ || now < ask_at_) return;
  ask_at_ = now + options_.every;
  link_.request_challenge(0, sink);
}

TimeNs SwitchProbe::next_deadline() const { return probing_ ? ask_at_ : std::numeric_limits<TimeNs>::max(); }

bool SwitchProbe::stale(TimeNs now) const { return now - answered_at_ > kUnansweredMax * options_.every; }

bool SwitchProbe::answers(TimeNs now) const {
  return probing_ && answered_at_ != 0 && !stale(now) && answered_at_ - answering_since_ >= observation_time();
}

}  // namespace millrace::worker
