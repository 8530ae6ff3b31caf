#include "worker/switch/switch_path.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/hash.h"
#include "kernels/grid/grid.h"

namespace millrace::worker {
namespace {

/// A turn waits for the slowest worker, which may have lost its core for some milliseconds. An earlier time-out would
/// count as congestion, and halve the windows under way. Turns that return mostly show lost packets before a time-out.
constexpr TimeNs kRetryMin = 20 * kNsPerMs;
constexpr TimeNs kRetryInitial = 50 * kNsPerMs;
/// New memberships arrive within this time.
constexpr TimeNs kBackedOffAfter = 2 * kNsPerS;
constexpr const char* kServesAnother =
    "is with another job of this switch job number, or a later epoch that is not known here: this one begins when that "
    "job has ended, or its workers have been silent for as long as the switch keeps a job (lease_seconds)";
constexpr uint64_t kProbeNonces = 0x9E3779B97F4A7C15;   ///< sets the probe's nonces apart from the client's
constexpr uint64_t kClientNonces = 0xD6E8FEB86659FD93;  ///< ... and those of one client from the next one's

SwitchClientOptions client_options(const protocol::JobSpec& spec, const protocol::SwitchLayout& layout, uint32_t worker,
                                   const SwitchAccess& access, uint64_t nonce_seed) {
  SwitchClientOptions options;
  options.job = spec.switch_path.job;
  options.key = access.key;
  options.worker = static_cast<uint16_t>(worker);
  options.workers = spec.workers;
  options.dimension = static_cast<uint32_t>(layout.dimension);
  options.window_indices = layout.window_indices;
  options.slots = layout.slots;
  options.lanes = layout.lanes;
  options.packet_bytes_max = spec.switch_path.packet_bytes_max;
  options.codecs = {.index = spec.switch_path.index, .value = spec.switch_path.value};
  options.exponent_initial = spec.grid.exponent_initial;
  options.sums = spec.reproducible ? SwitchSums::kExactInF32 : SwitchSums::kInI32;
  options.tensor_windows.clear();
  for (const uint64_t begin : layout.bucket_begin) {
    options.tensor_windows.push_back(static_cast<uint32_t>(begin / layout.window_indices));
  }
  options.nonce_seed = nonce_seed;
  options.round_trip.min_ns = kRetryMin;
  options.through_racks = access.rack.has_value();
  options.round_trip.initial_ns = kRetryInitial;
  return options;
}

SwitchProbeOptions probe_options(const protocol::JobSpec& spec, uint32_t lane, uint32_t worker,
                                 const SwitchAccess& access, uint64_t nonce_seed) {
  SwitchProbeOptions options;
  options.identity = {.job = spec.switch_path.job + lane,
                      .key = access.key,
                      .worker = static_cast<uint16_t>(worker),
                      .nonce_seed = nonce_seed ^ kProbeNonces,
                      .packet_bytes = spec.switch_path.packet_bytes_max};
  if (const auto at = access.resolve(spec.switch_path.address)) options.at = *at;
  options.observation_time = TimeNs{spec.switch_path.return_after.count()} * kNsPerMs;
  return options;
}

/// Returns the hash of S2.3: of (live, path, incarnations), a function of the epoch, so equal at all processes that
/// know it. Epochs and incarnations begin low in every job. So the processes' nonces distinguish this job from another
/// one of its number, before or beside it.
uint64_t membership_hash(const protocol::Membership& membership, uint64_t live) {
  std::vector<uint64_t> words{live, static_cast<uint64_t>(membership.path)};
  for (const protocol::Member& member : membership.members) {
    if (member.state == protocol::MemberState::kSynced) words.insert(words.end(), {member.incarnation, member.nonce});
  }
  ByteBuffer bytes(words.size() * sizeof(uint64_t));
  std::memcpy(bytes.data(), words.data(), bytes.size());
  return hash64(bytes);
}

SwitchClientCounters switch_path_sum_of(const SwitchClientCounters& a, const SwitchClientCounters& b) {
  using Words = std::array<uint64_t, sizeof(SwitchClientCounters) / sizeof(uint64_t)>;
  auto sums = std::bit_cast<Words>(a);
  const auto more = std::bit_cast<Words>(b);
  for (size_t at = 0; at < sums.size(); ++at) sums[at] += more[at];
  return std::bit_cast<SwitchClientCounters>(sums);
}

}  // namespace

SwitchPath::SwitchPath(const protocol::JobSpec& spec, const protocol::JobLayout& layout, uint32_t worker,
                       SwitchAccess access, uint64_t nonce_seed)
    : layout_(protocol::plan_switch_layout(spec, layout)),
      worker_(worker),
      switch_address_(spec.switch_path.address),
      access_(std::move(access)),
      client_options_(client_options(spec, layout_, worker, access_, nonce_seed)),
      client_(std::make_unique<SwitchClient>(client_options_, static_cast<SwitchOutcome&>(*this))) {
  MILLRACE_CHECK(access_.sink != nullptr);
  for (uint32_t lane = 0; lane < layout_.lanes; ++lane)
    probes_.emplace_back(probe_options(spec, lane, worker, access_, nonce_seed));
}

Result<protocol::Endpoint> SwitchPath::find(const std::string& text) {
  if (const auto known = found_.find(text); known != found_.end()) return known->second;
  auto found = access_.resolve(text);
  if (found) found_.emplace(text, *found);
  return found;
}

/// Uses the rack, which sends its sums to the switch that the specification names. Shard 0 may be that switch itself.
/// Where it only replaces the switch, the rack's sums would reach no process.
void SwitchPath::take_rack(SwitchEpoch& epoch) {
  if (!access_.rack) return;
  const Result<protocol::Endpoint> upstream = find(switch_address_);
  if (!upstream || *upstream != epoch.decider) return;
  epoch.role = SwitchRole::kCombine;
  epoch.rack = *access_.rack;
}

Result<std::string> SwitchPath::follow(const protocol::Membership& membership, TimeNs now) {
  if (membership.epoch > UINT32_MAX) {
    return fail(ErrorCode::kLimitExceeded, "path switch numbers epochs in 32 bits, and the job's are used up");
  }
  left_.reset();  // it takes part
  SwitchEpoch epoch;
  epoch.epoch = static_cast<uint32_t>(membership.epoch);
  for (const protocol::Member& member : membership.members) {
    if (member.state != protocol::MemberState::kSynced) continue;
    epoch.live |= uint64_t{1} << member.worker;
    epoch.incarnations[member.worker] = member.incarnation;
  }
  epoch.membership_hash = membership_hash(membership, epoch.live);
  const bool at_switch = membership.path == protocol::Path::kSwitch;
  decider_ = at_switch ? switch_address_ : membership.shards.front().datagrams;
  std::string told;
  const Result<protocol::Endpoint> at =
      decider_.empty() ? fail(ErrorCode::kUnavailable, "shard 0 takes no datagrams") : find(decider_);
  if (at) {
    epoch.decider = *at;
    take_rack(epoch);
  } else {
    told = "the steps of epoch " + std::to_string(membership.epoch) + " have no decider: " + at.error().message;
  }
  if (path_ != membership.path) {
    const bool fell_back = path_ == protocol::Path::kSwitch;
    if (path_ && told.empty()) {
      told = fell_back ? "the switch at " + switch_address_ + " is left: shard 0 decides, at " + decider_
                       : "the switch at " + switch_address_ + " decides again";
    }
    if (path_) ++(fell_back ? fallbacks_ : came_back_);
    for (SwitchProbe& probe : probes_) {
      if (at_switch) {
        probe.stop(now);
      } else {
        probe.start(fell_back ? SwitchProbe::Cause::kFellBack : SwitchProbe::Cause::kBegan, now);
      }
    }
    path_ = membership.path;
  }
  // Also without a decider: no result of an older epoch may be taken from now on.
  client_->set_epoch(epoch, now, *access_.sink);
  return told;
}

void SwitchPath::replace_client(const SwitchHandover& handover) {
  SwitchClientOptions options = client_options_;
  options.nonce_seed += kClientNonces * ++clients_;
  counted_ = client_counters();
  if (!left_) left_ = std::move(client_);
  client_ = std::make_unique<SwitchClient>(options, static_cast<SwitchOutcome&>(*this), handover);
  finishing_ = false;
}

SwitchClientCounters SwitchPath::client_counters() const { return switch_path_sum_of(counted_, client_->counters()); }

Result<uint64_t> SwitchPath::take_over(ByteSpan handover, uint64_t incarnation) {
  const auto taken = decode_handover(handover, {.lanes = client_options_.lanes,
                                                .slots = client_options_.slots,
                                                .groups = client_options_.tensor_windows.size(),
                                                .packet_bytes_max = client_options_.packet_bytes_max});
  if (!taken) return std::unexpected(taken.error());
  SwitchClient& left = left_ ? *left_ : *client_;
  for (const SwitchRevoked& revoked : left.abandon_step(incarnation, *taken)) {
    for (size_t at = 0; at < revoked.indices.size(); ++at) {
      if (revoked.integers[at] == 0) continue;
      revoked_.emplace_back(revoked.indices[at],
                            std::ldexp(static_cast<double>(revoked.integers[at]), revoked.exponent));
    }
  }
  replace_client(*taken);
  return taken->next_step;
}

void SwitchPath::restart_at(uint64_t step) {
  stepping_ = done_ = false;
  SwitchHandover own;
  own.next_step = static_cast<uint32_t>(step);
  own.exponents = ExponentTable(client_options_.exponent_initial, 1, client_options_.tensor_windows).state();
  own.lanes.resize(client_options_.lanes);
  for (SwitchHandover::Lane& lane : own.lanes) lane.slots.resize(client_options_.slots / client_options_.lanes);
  replace_client(own);
  left_.reset();
  revoked_.clear();  // the weights with which the job continues include the values that it counted as applied
}

std::vector<std::pair<uint32_t, double>> SwitchPath::take_revoked(uint64_t begin, uint64_t end) {
  const auto first = std::partition(revoked_.begin(), revoked_.end(),
                                    [&](const auto& entry) { return entry.first < begin || entry.first >= end; });
  std::vector<std::pair<uint32_t, double>> taken(first, revoked_.end());
  revoked_.erase(first, revoked_.end());
  return taken;
}

Status SwitchPath::begin_step(uint64_t step, const SharedStream& entries, TimeNs now) {
  MILLRACE_CHECK(!stepping_ && !done_, step);
  if (step >= UINT32_MAX) return fail(ErrorCode::kLimitExceeded, "path switch numbers steps in 32 bits");
  arrived_.windows.clear();
  arrived_.offered.clear();
  arrived_.indices.clear();
  arrived_.sums.clear();
  arrived_.retained_indices.clear();
  auto offer = std::make_shared<StepOffer>();
  offer->entries = entries;
  offer->sent.resize(entries.view.count());
  arrived_.offer = offer;
  // Set before: the first packets may be answered at once by a sink of a test.
  stepping_ = true;
  return client_->begin_valid_step(static_cast<uint32_t>(step), std::move(offer), now, *access_.sink);
}

void SwitchPath::receive(const protocol::ReceivedPacket& packet, TimeNs now) {
  if (probes_.front().probes()) {
    const auto datagram = protocol::parse_datagram(packet.bytes);
    const auto takes = [&](SwitchProbe& probe) { return probe.receive(*datagram, now); };
    if (datagram && std::ranges::any_of(probes_, takes)) return;
  }
  client_->receive(packet, now, *access_.sink);
}

void SwitchPath::tick(TimeNs now) {
  for (SwitchProbe& probe : probes_) probe.tick(now, *access_.sink);
  if (now >= client_->next_deadline()) client_->tick(now, *access_.sink);
}

TimeNs SwitchPath::next_deadline() const {
  TimeNs soonest = client_->next_deadline();
  for (const SwitchProbe& probe : probes_) soonest = std::min(soonest, probe.next_deadline());
  return soonest;
}

void SwitchPath::on_completed(const CompletedWindow& window) {
  if (!stepping_) return;  // of a step after this worker's last
  SwitchStepDone& to = arrived_;
  const double step = grid_step(window.exponent);
  const size_t first = to.indices.size();
  const size_t last = first + window.indices.size();
  to.windows.push_back({.contributors = static_cast<uint32_t>(std::popcount(window.contributors)),
                        .counted = (window.contributors >> worker_ & 1) != 0,
                        .decided_epoch = window.decided_epoch,
                        .number = window.window,
                        .first = first,
                        .last = last,
                        .step = step});
  to.indices.resize(last);
  to.sums.resize(last);
  std::ranges::copy(window.indices, to.indices.begin() + static_cast<std::ptrdiff_t>(first));
  std::ranges::copy(window.sums, to.sums.begin() + static_cast<std::ptrdiff_t>(first));
  const size_t count = window.offered.size();
  if (count == 0) return;
  SwitchStepDone::Offered offered{
      .first = window.first, .last = window.first + count, .step = step, .begin = window.begin};
  offered.is_incomplete = window.applied.size() != window.indices.size();
  offered.first_index = offered.is_incomplete ? to.retained_indices.size() : first;
  offered.last_index = offered.first_index + window.applied.size();
  if (offered.is_incomplete)
    to.retained_indices.insert(to.retained_indices.end(), window.applied.begin(), window.applied.end());
  to.offered.push_back(offered);
}

void SwitchPath::step_done(uint32_t /*step*/) { done_ = stepping_; }

std::optional<SwitchStepDone> SwitchPath::take_done() {
  if (!done_) return std::nullopt;
  stepping_ = done_ = false;
  std::ranges::sort(arrived_.offered, {}, &SwitchStepDone::Offered::first);
  std::ranges::sort(arrived_.windows, {}, &SwitchStepDone::Window::number);
  return std::exchange(arrived_, std::move(room_));
}

protocol::Heartbeat::Switch SwitchPath::report(TimeNs now) const {
  using Report = protocol::Heartbeat::Switch;
  if (!path_) return Report::kNoReport;
  if (path_ == protocol::Path::kSwitch) return client_->path_suspect() ? Report::kSilent : Report::kNoReport;
  const auto answers = [now](const SwitchProbe& probe) { return probe.answers(now); };
  return std::ranges::all_of(probes_, answers) ? Report::kAnswers : Report::kNoReport;
}

/// A newer epoch is known here soon: what lasts is another job.
std::string SwitchPath::news(TimeNs now) {
  const bool is_backed_off = client_->backed_off_for(now) >= kBackedOffAfter;
  if (std::exchange(last_reported_back_off_, is_backed_off) == is_backed_off || !is_backed_off) return rack_news();
  return decider_ + " " + kServesAnother;
}

std::string SwitchPath::rack_news() {
  const uint64_t lost = client_counters().rack_lost;
  if (std::exchange(last_reported_rack_loss_, lost) != lost && !client_->at_rack()) {
    last_reported_rack_return_ = false;
    return "this worker's rack does not answer, or takes nothing: contributions go past it";
  }
  if (last_reported_rack_return_ || !client_->at_rack()) return {};
  last_reported_rack_return_ = true;
  return "this worker's rack adds up again";
}

SwitchPath::Leave SwitchPath::leave(TimeNs timeout, TimeNs now) {
  if (!path_) return Leave::kAllDone;  // the job never began
  if (!finishing_) {
    const Status begun = client_->finish(now, *access_.sink);
    MILLRACE_CHECK(begun.has_value(), begun.error().message);
    finishing_ = true;
    moved_at_ = now;
  }
  if (client_->finished()) return Leave::kAllDone;
  if (std::exchange(results_seen_, client_->counters().results) != client_->counters().results) moved_at_ = now;
  return now - moved_at_ >= timeout ? Leave::kTimedOut : Leave::kNotYet;
}

std::string SwitchPath::waiting_for() const {
  if (!path_ || (!stepping_ && !finishing_)) return {};
  const std::string who = path_ == protocol::Path::kSwitch ? "the switch at " + decider_
                          : decider_.empty()               ? "shard 0, which takes no datagrams,"
                                                           : "shard 0's aggregator at " + decider_;
  switch (client_->phase()) {
    case SwitchPhase::kOutside: return "this worker is in no epoch of " + who;
    case SwitchPhase::kAsking: return who + " does not answer";
    case SwitchPhase::kHello:
      return last_reported_back_off_ ? who + " " + kServesAnother
                                     : who + " waits for all workers to greet it in this epoch";
    case SwitchPhase::kRunning: break;
  }
  if (client_->path_suspect()) return who + " does not answer";
  return finishing_ ? "other workers have steps to go" : who + " waits for other workers' contributions";
}

protocol::Heartbeat::SwitchWait SwitchPath::waits() const {
  using Wait = protocol::Heartbeat::SwitchWait;
  if (!path_) return Wait::kNotReported;
  switch (client_->phase()) {
    case SwitchPhase::kOutside: return Wait::kNothing;
    case SwitchPhase::kAsking: return Wait::kAnswer;
    case SwitchPhase::kHello: return last_reported_back_off_ ? Wait::kOtherJob : Wait::kGreetings;
    case SwitchPhase::kRunning: break;
  }
  if (client_->path_suspect()) return Wait::kAnswer;
  return stepping_ || finishing_ ? Wait::kContributions : Wait::kNothing;
}

SwitchPathStatus SwitchPath::status() const {
  return {.at_switch = path_ == protocol::Path::kSwitch,
          .at_rack = client_->at_rack(),
          .fallbacks = fallbacks_,
          .came_back = came_back_,
          .client = client_counters()};
}

}  // namespace millrace::worker
