#include "tests/sim/switch/switch_rounds.h"

#include <algorithm>

#include "worker/switch/congestion_control.h"

namespace millrace::testing {
namespace {

using protocol::DatagramHeader;
using protocol::DatagramType;

// Of worker/switch: how often a turn is sent again before a time-out, and how many silent time-outs it takes to ask.
constexpr uint32_t kHastySends = 3;
constexpr uint32_t kSilentTimeouts = 3;

}  // namespace

uint32_t SwitchRounds::sends_max(TimeNs timeout_max) {
  uint32_t doublings = 0;
  for (TimeNs timeout = worker::RoundTripOptions{}.min_ns; timeout < timeout_max; timeout *= 2) ++doublings;
  return 1 + kHastySends + doublings + kSilentTimeouts + 1;
}

TimeNs SwitchRounds::silence_max(TimeNs timeout_max) { return (kSilentTimeouts + 1) * timeout_max; }

void SwitchRounds::sent_by_worker(uint32_t from, uint32_t to, const DatagramHeader& header, TimeNs now) {
  // A turn's fragments go out together, but for those that were named as lost.
  if (!is_quiet(now) || header.type != DatagramType::kContribution || header.fragment != 0) return;
  Turn& turn = turns_[{from, to, header.job, header.slot}];
  const bool again = turn.epoch == header.epoch && turn.incarnation == header.incarnation && turn.turn == header.turn &&
                     turn.quiet_from == quiet_from_;
  if (!again)
    turn = {.epoch = header.epoch, .incarnation = header.incarnation, .turn = header.turn, .quiet_from = quiet_from_};
  sends_most_ = std::max(sends_most_, ++turn.sends);
}

void SwitchRounds::sent_by_decider(uint32_t from, const DatagramHeader& header, TimeNs now) {
  // Of a job that is over no result goes out, and its lease may end.
  if (!is_quiet(now) || header.type != DatagramType::kResult) return;
  Life& incarnation = lives_[{from, header.job}];
  if (incarnation.quiet_from == quiet_from_ && incarnation.incarnation != header.incarnation) ++lives_begun_;
  incarnation = {.incarnation = header.incarnation, .quiet_from = quiet_from_};
}

}  // namespace millrace::testing
