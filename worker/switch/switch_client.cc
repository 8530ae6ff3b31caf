#include "worker/switch/switch_client.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/stream/stream.h"
#include "kernels/stream/stream_scan.h"
#include "worker/switch/applied_entries.h"
#include "worker/switch/client_state.h"

namespace millrace::worker {
namespace {

Error invalid(const char* sentence) { return Error{ErrorCode::kInvalidArgument, sentence}; }

/// Returns the least of the lanes' values.
template <typename State, typename Say>
auto least(const State& state, const Say& say) {
  auto out = say(*state.lanes.front());
  for (const auto& lane : state.lanes) out = std::min(out, say(*lane));
  return out;
}

constexpr uint32_t kPacketBytesMin = 1280 - 48;  // what any IPv6 path carries; a HELLO of 128 slots fits

}  // namespace

Buffer<int32_t> CompletedWindow::taken() const {
  Buffer<int32_t> integers(offered.size());
  take_applied(offered, begin, sent, applied, integers);
  return integers;
}

Status SwitchClient::validate(const SwitchClientOptions& options) {
  if (options.worker >= protocol::kSwitchWorkersMax)
    return std::unexpected(invalid("a switch's worker is numbered 0 to 63"));
  if (options.workers < 1 || options.workers > protocol::kSwitchWorkersMax) {
    return std::unexpected(invalid("a switch's job has 1 to 64 workers"));
  }
  const uint32_t width = options.window_indices;
  if (width == 0 || width % 64 != 0 || width > protocol::kWindowIndicesMax) {
    return std::unexpected(invalid("a window's indices are a multiple of 64, at most 65536"));
  }
  if (options.dimension == 0) return std::unexpected(invalid("a tensor has one index at least"));
  const uint32_t windows = (options.dimension - 1) / width + 1;
  if (options.slots < 1 || options.slots > protocol::kSlotsMax || options.slots > windows) {
    return std::unexpected(invalid("slots: 1 to 128, at most one a window of the tensor"));
  }
  if (options.lanes < 1 || options.lanes > protocol::kLanesMax || options.slots % options.lanes != 0) {
    return std::unexpected(invalid("lanes: 1 to 16, and as many slots in each"));
  }
  if (options.job > UINT32_MAX - (options.lanes - 1)) {
    return std::unexpected(invalid("a job of several lanes has as many numbers, and the last one is 2^32 - 1"));
  }
  if (options.packet_bytes_max < kPacketBytesMin || options.packet_bytes_max > protocol::kDatagramBytesMax) {
    return std::unexpected(invalid("packets hold 1232 to 8972 bytes"));
  }
  if (options.exponent_initial < kGridExponentLowest || options.exponent_initial > kGridExponentHighest) {
    return std::unexpected(invalid("an exponent is -120 to 90"));
  }
  const std::vector<uint32_t>& tensors = options.tensor_windows;
  if (tensors.empty() || tensors.front() != 0 || !std::ranges::is_sorted(tensors) || tensors.back() >= windows) {
    return std::unexpected(invalid("tensors begin at windows of the job, the first at window 0"));
  }
  return {};
}

SwitchClient::SwitchClient(const SwitchClientOptions& options, SwitchOutcome& outcome) {
  MILLRACE_CHECK(validate(options).has_value());
  state_ = std::make_unique<State>(options, outcome);
}

SwitchClient::SwitchClient(const SwitchClientOptions& options, SwitchOutcome& outcome, const SwitchHandover& handover)
    : SwitchClient(options, outcome) {
  state_->take_over(handover);
}

SwitchClient::~SwitchClient() = default;

void SwitchClient::set_epoch(const SwitchEpoch& epoch, TimeNs now, protocol::PacketSink& sink) {
  state_->set_epoch(epoch, now, sink);
}

Status SwitchClient::begin_step(uint32_t step, IndexSpan indices, std::span<const float> values, TimeNs now,
                                protocol::PacketSink& sink) {
  const bool increase = strictly_increasing(indices.data(), indices.size()) &&
                        (indices.empty() || indices.back() < state_->options.dimension);
  if (!increase) return std::unexpected(invalid("indices are strictly increasing and within the tensor"));
  if (!all_finite(values)) return std::unexpected(invalid("values are finite"));
  if (indices.size() != values.size()) return std::unexpected(invalid("as many values as indices"));
  Stream entries = Stream::empty(state_->options.dimension);
  entries.indices.assign(indices.begin(), indices.end());
  entries.values.assign(values.begin(), values.end());
  auto offer = std::make_shared<StepOffer>();
  offer->entries = SharedStream::from(std::move(entries));
  offer->sent.resize(indices.size());
  return begin_valid_step(step, std::move(offer), now, sink);
}

Status SwitchClient::begin_valid_step(uint32_t step, std::shared_ptr<StepOffer> offer, TimeNs now,
                                      protocol::PacketSink& sink) {
  if (state_->finishing) return std::unexpected(invalid("this worker has finished its steps"));
  const Status begun = state_->begin_step(step, std::move(offer));
  if (begun) state_->begin_or_wait(now, sink);
  return begun;
}

Status SwitchClient::finish(TimeNs now, protocol::PacketSink& sink) {
  if (state_->stepping) return std::unexpected(invalid("a step is under way"));
  if (state_->finishing) return {};
  state_->finishing = true;
  const Status begun = state_->begin_step(state_->next_step, std::make_shared<StepOffer>());
  if (begun) state_->begin_or_wait(now, sink);
  return begun;
}

bool SwitchClient::finished() const { return state_->finished; }

void SwitchClient::pause() { state_->paused = true; }

bool SwitchClient::at_rest() const { return state_->at_rest(); }

void SwitchClient::leave() {
  for (const std::unique_ptr<Lane>& lane : state_->lanes) {
    lane->leave_incarnation();
    lane->go_outside();
  }
}

std::vector<SwitchRevoked> SwitchClient::abandon_step(uint64_t incarnation, const SwitchHandover& known) {
  return state_->abandon_step(incarnation, known);
}

void SwitchClient::receive(const protocol::ReceivedPacket& packet, TimeNs now, protocol::PacketSink& sink) {
  state_->receive(packet, now, sink);
}

void SwitchClient::tick(TimeNs now, protocol::PacketSink& sink) {
  for (const std::unique_ptr<Lane>& lane : state_->lanes) lane->tick(now, sink);
}

TimeNs SwitchClient::next_deadline() const {
  return least(*state_, [](const Lane& lane) { return lane.next_deadline(); });
}

SwitchPhase SwitchClient::phase() const {
  return least(*state_, [](const Lane& lane) { return lane.phase; });
}

bool SwitchClient::at_rack() const {
  return least(*state_, [](const Lane& lane) { return lane.rack_phase == Lane::RackPhase::kWelcome; });
}

bool SwitchClient::path_suspect() const {
  return !least(*state_, [](const Lane& lane) {
    return !lane.refused && lane.silent_timeouts < lane.options.silent_timeouts_to_suspect;
  });
}

TimeNs SwitchClient::backed_off_for(TimeNs now) const {
  const TimeNs since =
      least(*state_, [now](const Lane& lane) { return lane.backed_off_at == INT64_MIN ? now : lane.backed_off_at; });
  return now - since;
}

uint32_t SwitchClient::epoch_seen() const { return state_->epoch_seen; }

SwitchHandover SwitchClient::handover() const { return state_->handover(); }

std::array<NamedSwitchCount, kSwitchClientCounters> named_counts(const SwitchClientCounters& counters) {
  constexpr std::array<std::string_view, kSwitchClientCounters> kNames = {"malformed",
                                                                          "wrong_job",
                                                                          "unexpected_type",
                                                                          "forged",
                                                                          "replayed",
                                                                          "wrong_life",
                                                                          "wrong_epoch",
                                                                          "not_running",
                                                                          "other_turn",
                                                                          "contradiction",
                                                                          "duplicates",
                                                                          "bad_payload",
                                                                          "results",
                                                                          "not_contributor",
                                                                          "resends",
                                                                          "timeouts",
                                                                          "probes",
                                                                          "overtaken",
                                                                          "sent_on_notice",
                                                                          "hellos",
                                                                          "challenge_requests",
                                                                          "new_lives",
                                                                          "fetches_answered",
                                                                          "congestion_marks",
                                                                          "held_back",
                                                                          "entries_left_over",
                                                                          "entries_saturated",
                                                                          "refused",
                                                                          "rack_welcomes",
                                                                          "rack_lost",
                                                                          "sent_to_rack"};
  static_assert(!kNames.back().empty(), "every counter has a name, in the order of the struct");
  const auto words = std::bit_cast<std::array<uint64_t, kSwitchClientCounters>>(counters);
  std::array<NamedSwitchCount, kSwitchClientCounters> named;
  for (size_t at = 0; at < named.size(); ++at) named[at] = {kNames[at], words[at]};
  return named;
}

const SwitchClientCounters& SwitchClient::counters() const { return state_->counters; }

}  // namespace millrace::worker
