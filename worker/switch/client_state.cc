#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/base/check.h"
#include "protocol/datagram/job_numbers.h"
#include "worker/switch/client_state.h"

/// Steps, through all lanes (S1.6): begin, end, leaving, and the handover.
namespace millrace::worker {

namespace {

int32_t limit_of(const SwitchClientOptions& options) {
  const int32_t of_codec = grid_limit(options.codecs.value, options.workers);
  return options.sums == SwitchSums::kExactInF32 ? std::min(of_codec, exact_f32_limit(options.workers)) : of_codec;
}

}  // namespace

SwitchClient::State::State(const SwitchClientOptions& options_given, SwitchOutcome& outcome_given)
    : options(options_given),
      outcome(outcome_given),
      limit(limit_of(options)),
      exponents(options.exponent_initial, limit, options.tensor_windows) {
  for (uint32_t lane = 0; lane < options.lanes; ++lane) lanes.push_back(std::make_unique<Lane>(*this, lane));
}

Status SwitchClient::State::begin_step(uint32_t number, std::shared_ptr<StepOffer> own_offer) {
  const auto refuse = [](const char* sentence) {
    return std::unexpected(Error{ErrorCode::kInvalidArgument, sentence});
  };
  if (stepping) return refuse("the step before is not over");
  if (number != next_step) return refuse("another step than the next");
  if (number == UINT32_MAX) return refuse("steps are numbered in 32 bits, and these are used up");
  const StreamView& entries = own_offer->entries.view;
  MILLRACE_CHECK(entries.indices.size() == entries.values.size() && own_offer->sent.size() == entries.indices.size(),
                 entries.indices.size(), entries.values.size(), own_offer->sent.size());
  step = number;
  next_step = number + 1;
  stepping = true;
  offer = std::move(own_offer);
  share_out_pieces();
  return {};
}

/// Each slot its windows.
void SwitchClient::State::share_out_pieces() {
  const IndexSpan indices = offer->entries.view.indices;
  pieces.clear();
  for (const std::unique_ptr<Lane>& lane : lanes) {
    for (Lane::Slot& slot : lane->slots) {
      slot.pieces.clear();
      slot.piece = 0;
    }
  }
  for (size_t first = 0; first < indices.size();) {
    const uint32_t window = indices[first] / options.window_indices;
    const uint64_t end = (uint64_t{window} + 1) * options.window_indices;
    const auto rest = indices.subspan(first, std::min<size_t>(indices.size() - first, options.window_indices));
    const auto beyond = std::ranges::lower_bound(rest, end, {}, [](uint32_t index) { return uint64_t{index}; });
    const size_t last = first + static_cast<size_t>(beyond - rest.begin());
    const uint32_t in_lane = window / options.lanes;
    Lane& lane = *lanes[window % options.lanes];
    lane.slots[in_lane % lane.slots.size()].pieces.push_back(static_cast<uint32_t>(pieces.size()));
    pieces.push_back({.window = in_lane, .first = first, .last = last});
    first = last;
  }
}

void SwitchClient::State::begin_or_wait(TimeNs now, protocol::PacketSink& sink) {
  if (paused) {
    unopened = true;
  } else {
    open_step(now, sink);
  }
}

void SwitchClient::State::open_step(TimeNs now, protocol::PacketSink& sink) {
  unopened = false;
  for (const std::unique_ptr<Lane>& lane : lanes) lane->open_step(now, sink);
}

void SwitchClient::State::end_step_if_over(TimeNs now, protocol::PacketSink& sink) {
  if (!std::ranges::all_of(lanes, [](const std::unique_ptr<Lane>& lane) { return lane->step_is_over(); })) return;
  stepping = false;
  if (options.sums == SwitchSums::kExactInF32) {
    exponents.end_step_of_nonzero();
  } else {
    exponents.end_step();
  }
  if (!finishing) return outcome.step_done(step);
  go_on_finishing(now, sink);
}

/// A step of one that only answers is over.
void SwitchClient::State::go_on_finishing(TimeNs now, protocol::PacketSink& sink) {
  finished = std::ranges::all_of(lanes, [](const std::unique_ptr<Lane>& lane) { return lane->all_ended(); });
  if (finished) return;
  const Status begun = begin_step(next_step, std::make_shared<StepOffer>());
  MILLRACE_CHECK(begun.has_value());
  begin_or_wait(now, sink);
}

/// REQUIRES: known.lanes are as many as this client's.
std::vector<SwitchRevoked> SwitchClient::State::abandon_step(uint64_t incarnation, const SwitchHandover& known) {
  const std::pair<uint16_t, uint64_t> own{options.worker, incarnation};
  std::vector<SwitchRevoked> revoked;
  std::vector<const SwitchRemoval*> of_lanes;
  for (size_t at = 0; at < lanes.size(); ++at) {
    const std::vector<SwitchRemoval>& removals = known.lanes[at].removals;
    const auto removal = std::ranges::find_if(
        removals, [&](const SwitchRemoval& one) { return std::ranges::find(one.gone, own) != one.gone.end(); });
    of_lanes.push_back(removal == removals.end() ? nullptr : &*removal);
    if (of_lanes.back() != nullptr) lanes[at]->revoke_behind(*removal, revoked);
  }
  if (!stepping) return revoked;
  for (size_t at = 0; at < lanes.size(); ++at) lanes[at]->abandon_turns(of_lanes[at]);
  stepping = unopened = false;
  outcome.step_done(step);
  return revoked;
}

void SwitchClient::State::set_epoch(const SwitchEpoch& given, TimeNs now, protocol::PacketSink& sink) {
  if (has_epoch && given.epoch <= epoch.epoch) return;
  has_epoch = true;
  record_incarnations(given);
  epoch = given;
  epoch_seen = std::max(epoch_seen, given.epoch);
  for (const std::unique_ptr<Lane>& lane : lanes) lane->enter_epoch(now, sink);
  if ((given.live >> options.worker & 1) == 0) return;
  // After the hello: its positions are those of before.
  paused = false;
  if (unopened) open_step(now, sink);
  if (finished) go_on_finishing(now, sink);
}

void SwitchClient::State::record_incarnations(const SwitchEpoch& given) {
  for (uint32_t worker = 0; worker < protocol::kSwitchWorkersMax; ++worker) {
    if ((given.live >> worker & 1) == 0) continue;
    const bool was_live = (epoch.live >> worker & 1) != 0;
    if (!was_live || given.incarnations[worker] != epoch.incarnations[worker]) live_since[worker] = given.epoch;
  }
}

void SwitchClient::State::receive(const protocol::ReceivedPacket& packet, TimeNs now, protocol::PacketSink& sink) {
  const auto datagram = protocol::parse_datagram(packet.bytes);
  if (!datagram) {
    ++counters.malformed;
    return;
  }
  const protocol::JobNumbers numbers{.job = options.job, .lanes = options.lanes};
  const std::optional<uint32_t> lane = numbers.lane_of(datagram->header.job);
  if (!lane) {
    ++counters.wrong_job;
    return;
  }
  lanes[*lane]->receive(*datagram, packet, now, sink);
}

SwitchHandover SwitchClient::State::handover() const {
  MILLRACE_CHECK(at_rest());
  SwitchHandover out{.next_step = unopened ? step : next_step, .exponents = exponents.state(), .lanes = {}};
  for (const std::unique_ptr<Lane>& lane : lanes) out.lanes.push_back(lane->handover());
  return out;
}

/// REQUIRES: a handover of as many lanes and slots.
void SwitchClient::State::take_over(const SwitchHandover& handover) {
  MILLRACE_CHECK(handover.lanes.size() == lanes.size(), handover.lanes.size(), lanes.size());
  next_step = handover.next_step;
  exponents.restore(handover.exponents);
  for (size_t at = 0; at < lanes.size(); ++at) lanes[at]->take_over(handover.lanes[at]);
}

}  // namespace millrace::worker
