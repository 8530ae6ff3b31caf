#include "server/rounds/job_rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "kernels/base/check.h"
#include "protocol/base/limits.h"

/// Messages of the rounds: contributions, acknowledgements, views. How a step is decided is in job_rounds_decide.cc.
namespace millrace::server {
namespace {

constexpr uint32_t kNowhere = UINT32_MAX;

/// Share of the memory limit that a step after the one to decide may fill. Later steps must not keep out entries that
/// the present step still needs.
constexpr uint64_t kAheadShare = 2;

/// The least that an update takes of kServedBytesMax, for its handling: one request gets at most 16,384.
constexpr uint64_t kServedBytesMin = 16 << 10;

std::vector<uint32_t> shards_of(const protocol::JobLayout& layout, const protocol::BucketLayout& bucket) {
  std::vector<uint32_t> shards;
  for (uint32_t at = 0; at < bucket.part_count; ++at) shards.push_back(layout.parts[bucket.first_part + at].shard);
  std::ranges::sort(shards);
  shards.erase(std::unique(shards.begin(), shards.end()), shards.end());
  return shards;
}

/// Of a part beside its object: its layout, its place in settlements, and the heads of its maps and deques.
constexpr uint64_t kPartBytes = 1 << 10;
/// Of a worker at a part: its entry in the summary and its acknowledgement.
constexpr uint64_t kWorkerAtPartBytes = sizeof(protocol::SummaryEntry) + 64;
constexpr uint64_t kRecordBytesMin = 1 << 20;  // jobs of fewer records take less than a message

}  // namespace

uint64_t record_bytes(const protocol::JobSpec& spec, const protocol::JobLayout& layout, uint32_t shard) {
  const auto parts = static_cast<uint64_t>(std::ranges::count(layout.parts, shard, &protocol::PartLayout::shard));
  const uint64_t bytes = parts * (sizeof(PartRound) + sizeof(CodecChooser) + sizeof(Delivery) + kPartBytes +
                                  spec.workers * kWorkerAtPartBytes);
  return bytes < kRecordBytesMin ? 0 : bytes;
}

JobRounds::JobRounds(Setup setup)
    : setup_(setup), account_(&setup.shard_memory, setup.limits.job_memory_bytes_max), retained_account_(&account_) {
  if (setup_.spec.has_store()) {
    store_ = std::make_unique<JobStore>(
        JobStore::Setup{setup_.spec, setup_.layout, setup_.shard, setup_.shard_count, account_});
  }
  fixed_charge_ = MemoryCharge(account_, history_bytes(setup_.spec, setup_.layout, setup_.shard) +
                                             record_bytes(setup_.spec, setup_.layout, setup_.shard));
  if (setup_.spec.audit) audit_.emplace(setup_.spec.name);
  local_at_.assign(setup_.layout.parts.size(), kNowhere);
  bucket_at_.assign(setup_.layout.buckets.size(), kNowhere);
  for (const protocol::BucketLayout& bucket : setup_.layout.buckets) {
    const size_t first = parts_.size();
    for (uint32_t at = 0; at < bucket.part_count; ++at) {
      const protocol::PartLayout& part = setup_.layout.parts[bucket.first_part + at];
      if (part.shard != setup_.shard) continue;
      local_at_[part.part] = static_cast<uint32_t>(parts_.size());
      parts_.emplace_back(part, setup_.spec);
    }
    if (parts_.size() == first) continue;
    bucket_at_[bucket.bucket] = static_cast<uint32_t>(buckets_.size());
    Bucket& local = buckets_.emplace_back();
    local.layout = &bucket;
    local.first = first;
    local.count = parts_.size() - first;
    make_threshold(local);
  }
  if (asynchronous()) deliveries_.resize(parts_.size());
  choosers_.resize(parts_.size());
}

void JobRounds::make_threshold(Bucket& bucket) {
  const protocol::BucketLayout& layout = *bucket.layout;
  if (layout.reselect.reselect != protocol::Reselect::kTopK) return;
  if (setup_.spec.reproducible) {
    bucket.steps = std::make_unique<StepThreshold>(StepThreshold::Config{
        .k = entries_down(layout),
        .shard = setup_.shard,
        .shards = shards_of(setup_.layout, layout),
        .local_parts = bucket.count,
        .repeat_ns = setup_.spec.exchange_timeout.count() * kNsPerMs,
        .account = &account_,
    });
    return;
  }
  bucket.threshold = std::make_unique<BucketThreshold>(BucketThreshold::Config{
      .k = protocol::entries_down(layout),
      .period = layout.reselect.threshold_period,
      .staleness = setup_.spec.staleness,
      .shard = setup_.shard,
      .shards = shards_of(setup_.layout, layout),
      .local_parts = bucket.count,
      .timeout_ns = setup_.spec.exchange_timeout.count() * kNsPerMs,
      .account = &account_,
  });
}

void JobRounds::on_out_of_memory() noexcept {
  if (!failure_) failure_.emplace(std::move(no_memory_));
}

PartRound* JobRounds::local_part(uint32_t part) {
  if (part >= local_at_.size() || local_at_[part] == kNowhere) return nullptr;
  return &parts_[local_at_[part]];
}

void JobRounds::count(Metric metric, std::string_view label, double value, Actions& actions) const {
  actions.metrics.push_back({metric, setup_.spec.name, label, value});
}

void JobRounds::refuse(const protocol::Member& to, protocol::Refuse refusal, TimeNs now, Actions& actions) const {
  refusal.about_contribution = true;
  setup_.refusals.note({.of = Refusal::Of::kContribution,
                        .job = setup_.spec.name,
                        .number = to.worker,
                        .software = {},
                        .code = refusal.code,
                        .sentence = refusal.sentence},
                       now);
  count(Metric::kRefused, error_code_name(refusal.code), 1, actions);
  setup_.members.send(to, std::move(refusal), actions);
}

void JobRounds::refuse_by_path(const protocol::Member& from, const protocol::Contribution& body, TimeNs now,
                               Actions& actions) const {
  protocol::Refuse refusal;
  refusal.part = body.part;
  refusal.step = body.step;
  refusal.code = ErrorCode::kInvalidArgument;
  refusal.sentence = fmt::format(
      "job '{}' is of path switch: its contributions go to the switch, or to shard 0 while that is silent, by "
      "datagrams",
      setup_.spec.name);
  refuse(from, std::move(refusal), now, actions);
}

void JobRounds::on_contribution(const protocol::Member& from, const protocol::Contribution& body, SharedBytes payload,
                                Intake intake, TimeNs now, Actions& actions) {
  if (failure_) return;
  if (from.state != protocol::MemberState::kSynced) return count(Metric::kDropped, "joining", 1, actions);
  protocol::Refuse refusal;
  refusal.part = body.part;
  refusal.step = body.step;
  PartRound* part = local_part(body.part);
  if (!part) {
    refusal.code = ErrorCode::kInvalidArgument;
    refusal.sentence = fmt::format("part {} of job '{}' is not on shard {}", body.part, setup_.spec.name, setup_.shard);
    return refuse(from, std::move(refusal), now, actions);
  }
  switch (part->judge(from.worker, from.incarnation, body.step, body.payload_hash)) {
    case PartRound::Verdict::kDecided: return answer_decided(from, *part, body, actions);
    case PartRound::Verdict::kDuplicate:
      count(Metric::kDuplicates, "", 1, actions);
      return setup_.members.send(from, protocol::Duplicate{body.part, body.step}, actions);
    case PartRound::Verdict::kConflict:
      refusal.code = ErrorCode::kConflict;
      refusal.sentence =
          fmt::format("worker {} already sent other bytes for {} {} of part {}; a resend repeats the same bytes",
                      from.worker, what_step_is(), body.step, body.part);
      return refuse(from, std::move(refusal), now, actions);
    case PartRound::Verdict::kAhead:
      refusal.code = ErrorCode::kInvalidArgument;
      refusal.sentence =
          fmt::format("{} {} of part {} is too far ahead: {} {} is the next to decide and the job's staleness is {}",
                      what_step_is(), body.step, body.part, what_step_is(),
                      part->next_of(from.worker, from.incarnation), setup_.spec.staleness);
      return refuse(from, std::move(refusal), now, actions);
    case PartRound::Verdict::kAdmit: break;
  }
  if (const std::optional<Error> error = admission_error(from, *part, body, payload, intake, now)) {
    refusal.code = error->code;
    refusal.sentence = error->message;
    refusal.retry = error->code == ErrorCode::kUnavailable || arrived_damaged(payload.bytes, body.payload_hash);
    return refuse(from, std::move(refusal), now, actions);
  }
  admit(from, *part, body, std::move(payload), now, actions);
}

std::optional<Error> JobRounds::admission_error(const protocol::Member& from, const PartRound& part,
                                                const protocol::Contribution& body, const SharedBytes& payload,
                                                Intake intake, TimeNs now) {
  const bool audit_is_finite = std::isfinite(body.entered) && std::isfinite(body.lost) && std::isfinite(body.imbalance);
  if (!std::isfinite(body.weight) || !audit_is_finite) {
    return Error{ErrorCode::kNonFinite, "a contribution's weight and audit sums must be finite"};
  }
  if (body.weight <= 0) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("a contribution's weight of {} is not positive: if all were 0, a weighted mean would be "
                             "divided by nothing",
                             body.weight)};
  }
  if (body.weight > protocol::kContributionWeightMax) {
    return Error{ErrorCode::kLimitExceeded,
                 fmt::format("a contribution's weight of {} is over the limit of {}: with the others' its sum could be "
                             "infinite, and the mean nothing",
                             body.weight, protocol::kContributionWeightMax)};
  }
  if (payload.bytes.empty()) return Error{ErrorCode::kMalformed, "a contribution without a payload"};
  if (payload.bytes.size() > setup_.limits.message_bytes_max) {
    return Error{ErrorCode::kLimitExceeded,
                 fmt::format("a contribution of {} bytes is over this shard's limit of {} (--message-bytes-max)",
                             payload.bytes.size(), setup_.limits.message_bytes_max)};
  }
  if (intake == Intake::kDraining && !part.joins_others(body.step)) {
    return Error{ErrorCode::kUnavailable,
                 fmt::format("shard {} is shutting down and begins no more steps", setup_.shard)};
  }
  const Result<ContributionMemory> memory = contribution_memory(payload, part.dimension(), codec_up_of(part));
  if (!memory) return memory.error();
  const uint64_t bytes = memory->asked_bytes;
  const bool ahead = part.is_ahead(from.worker, from.incarnation, body.step);
  const uint64_t by_store = setup_.limits.job_memory_bytes_max - memory_for_rounds();
  if (ahead && account_.used_bytes() - by_store + bytes > memory_for_rounds() / kAheadShare) {
    return Error{ErrorCode::kUnavailable,
                 fmt::format("job '{}' uses {} bytes of this shard; steps ahead may fill 1/{} of its limit of {} "
                             "(--job-memory-bytes-max)",
                             setup_.spec.name, account_.used_bytes(), kAheadShare, setup_.limits.job_memory_bytes_max)};
  }
  if (std::optional<Error> full = setup_.gate.refuses(account_, bytes)) {
    if (ahead) return full;
    if (!starved_) starved_ = Starved{now, from.worker, from.incarnation};
    if (starved_->worker == from.worker) {
      starved_->because = full->message;
      starved_->at = {part.layout().bucket, part.layout().part, body.step};
    }
    return full;
  }
  return std::nullopt;
}

void JobRounds::admit(const protocol::Member& from, PartRound& part, const protocol::Contribution& body,
                      SharedBytes payload, TimeNs now, Actions& actions) {
  count(Metric::kContributions, "", 1, actions);
  count(Metric::kContributionBytes, "", static_cast<double>(payload.bytes.size()), actions);
  Received& received = received_[from.worker];
  if (received.incarnation != from.incarnation) received = {.incarnation = from.incarnation};
  received.contribution_bytes += payload.bytes.size();
  received.dense_bytes += sizeof(float) * uint64_t{part.dimension()};
  PartRound::Open open;
  open.incarnation = from.incarnation;
  open.hash = body.payload_hash;
  open.weight = body.weight;
  open.entered = body.entered;
  open.lost = body.lost;
  open.imbalance = body.imbalance;
  // From when it is decoded, its stream's charge takes this one's place.
  open.charge =
      MemoryCharge(account_, contribution_memory(payload, part.dimension(), codec_up_of(part)).value().charged_bytes);
  // There was room again: from here a long step is slow, not starved.
  if (!part.is_ahead(from.worker, from.incarnation, body.step)) starved_.reset();
  part.admit(from.worker, body.step, std::move(open), now);
  RoundKey key = key_of(part);
  key.step = body.step;
  actions.tasks.push_back(std::make_shared<DecodeTask>(DecodeTask::Input{
      .key = key,
      .worker = from.worker,
      .incarnation = from.incarnation,
      .hash = body.payload_hash,
      .payload = std::move(payload),
      .dimension = part.dimension(),
      .history = part.history(),
      .payload_bytes_max = setup_.limits.message_bytes_max,
  }));
}

JobRounds::Received JobRounds::received_of(const protocol::Member& member) const {
  const auto found = received_.find(member.worker);
  return found != received_.end() && found->second.incarnation == member.incarnation ? found->second : Received{};
}

void JobRounds::answer_decided(const protocol::Member& to, const PartRound& part, const protocol::Contribution& body,
                               Actions& actions) const {
  if (const PartRound::RetainedUpdate* kept = part.retained(body.step)) {
    // Sent for the first time, it has crossed the update, which every member was sent.
    if (!body.again) return count(Metric::kLate, "crossed", 1, actions);
    count(Metric::kLate, "update", 1, actions);
    return serve(to, part, *kept, actions);
  }
  const std::optional<bool> counted = part.counted(to.worker, to.incarnation, body.step);
  if (!counted) return count(Metric::kLate, "acknowledged", 1, actions);
  count(Metric::kLate, *counted ? "counted" : "not_counted", 1, actions);
  setup_.members.send(to, protocol::StepDecided{part.layout().part, body.step, *counted}, actions);
}

void JobRounds::serve(const protocol::Member& to, const PartRound& part, const PartRound::RetainedUpdate& kept,
                      Actions& actions) const {
  const Members::Link* link = setup_.members.link(to.worker);
  if (!link || !link->peer) return;  // before the body is copied
  protocol::Update body = kept.body;
  body.stable = part.stable();
  body.branch = branch_;
  setup_.members.send(to, std::move(body), kept.payload, actions);
}

void JobRounds::on_ack(const protocol::Member& from, const protocol::Ack& body, TimeNs now, Actions& actions) {
  if (failure_) return;
  std::map<PartRound*, AckKind> heard;
  std::set<uint32_t> asked;  // a part is served once a message, regardless of the number of its entries
  uint64_t room = kServedBytesMax;
  for (const protocol::Ack::Entry& entry : body.entries) {
    PartRound* part = local_part(entry.part);
    const bool is_new = applies_after_acks() && part && entry.n > part->acknowledged(from.worker);
    if (part && !part->takes(from)) {
      count(Metric::kDropped, "joining", 1, actions);
    } else if (!part || !part->acknowledge(from.worker, entry.n, setup_.members.all())) {
      count(Metric::kDropped, "impossible_ack", 1, actions);
    } else if (entry.again && asked.insert(entry.part).second) {
      serve_from(from, *part, entry.n, room, actions);
    } else {
      acknowledged(from, *part, entry.n, actions);
    }
    if (applies_after_acks() && part && part->takes(from) && entry.n <= part->decided())
      heard.emplace(part, is_new ? AckKind::kNew : AckKind::kRepeated);
  }
  tell_store(actions);
  advance_replicated(from, heard, actions);
  if (blocked_on_memory_) advance_all(now, actions);
}

void JobRounds::serve_from(const protocol::Member& to, PartRound& part, uint64_t step, uint64_t& room,
                           Actions& actions) {
  const uint64_t from = std::max(step, part.stable());
  if (asynchronous()) {
    if (from < part.decided()) {
      count(Metric::kServedAgain, "", static_cast<double>(part.decided() - from), actions);
    }
    delivery_of(part).restart(to.worker, step);
    return deliver(to, part, room, actions);
  }
  const uint64_t below = served_below(part, from, part.decided(), room);
  if (from < below) count(Metric::kServedAgain, "", static_cast<double>(below - from), actions);
  serve_between(to, part, from, below, actions);
}

uint64_t JobRounds::served_below(const PartRound& part, uint64_t from, uint64_t below, uint64_t& room) {
  uint64_t step = from;
  for (; step < below && room > 0; ++step) {
    room -= std::min(room, std::max(part.retained(step)->bytes(), kServedBytesMin));
  }
  return step;
}

void JobRounds::on_finishing(TimeNs now, Actions& actions) {
  if (!failure_) advance_all(now, actions);
}

void JobRounds::on_steps_applied(const protocol::Member& from, uint64_t n, TimeNs now, Actions& actions) {
  // Where one that joins stands is known part by part, by its acks.
  if (failure_ || from.state != protocol::MemberState::kSynced) return;
  bool impossible = false;
  for (PartRound& part : parts_) {
    const bool possible = part.acknowledge(from.worker, n, setup_.members.all());
    if (possible) acknowledged(from, part, n, actions);
    impossible |= !possible;
  }
  if (impossible) count(Metric::kDropped, "impossible_ack", 1, actions);
  tell_store(actions);
  advance_all_replicated(actions);
  if (blocked_on_memory_) advance_all(now, actions);
}

void JobRounds::serve_all(std::span<const protocol::Member> before, Actions& actions) {
  if (asynchronous()) return deliver_anew(before, actions);
  for (const protocol::Member& member : setup_.members.synced()) {
    if (std::ranges::find(before, member) == before.end()) continue;  // its steps are not known here: it asks
    for (const PartRound& part : parts_) {
      serve_between(member, part, part.acknowledged(member.worker), part.decided(), actions);
    }
  }
}

void JobRounds::on_membership(const std::vector<protocol::Member>& before, TimeNs now, Actions& actions) {
  if (failure_) return;
  retain_for_store();
  uint64_t dropped = 0;
  uint64_t restarted = 0;
  uint64_t epochs = 0;
  for (PartRound& part : parts_) {
    const PartRound::Adopted adopted = part.adopt(before, setup_.members);
    epochs += part.summary().epochs.size();
    dropped += adopted.dropped;
    restarted += adopted.restarted ? 1 : 0;
  }
  epochs_charge_ = MemoryCharge(account_, epochs * sizeof(protocol::Summary::epochs[0]));
  digest_watch_.keep(setup_.members.all());
  if (starved_) {
    // The contribution that found no room is not sent again: the steps continue without it.
    const protocol::Member* const member = find_member(setup_.members.membership(), starved_->worker);
    if (!member || member->incarnation != starved_->incarnation) starved_.reset();
  }
  if (store_) {
    store_->on_membership(setup_.members);
    // A member that joins keeps no earlier update: if all others left, these updates would be lost.
    const auto is_new = [&before](const protocol::Member& member) {
      return std::ranges::find(before, member) == before.end();
    };
    if (steps_decided_max() != 0 && std::ranges::any_of(setup_.members.synced(), is_new)) store_->save(actions);
  }
  recover_store(actions);
  tell_store(actions);
  if (dropped != 0) count(Metric::kDropped, "removed_worker", static_cast<double>(dropped), actions);
  if (restarted != 0) count(Metric::kRestarted, "", static_cast<double>(restarted), actions);
  serve_all(before, actions);
  advance_all_replicated(actions);
  advance_all(now, actions);
}

std::optional<TimeNs> JobRounds::deadline() const {
  std::optional<TimeNs> first;
  const auto consider = [&first](std::optional<TimeNs> at) {
    if (at && (!first || *at < *first)) first = at;
  };
  for (const Bucket& bucket : buckets_) {
    if (bucket.threshold) consider(bucket.threshold->deadline());
    if (bucket.steps) consider(bucket.steps->deadline());
  }
  consider(next_due_);
  if (store_) consider(store_->deadline());
  if (starved_) consider(starved_->since + static_cast<TimeNs>(setup_.limits.abandon_ms) * kNsPerMs);
  return first;
}

bool JobRounds::idle() const {
  return std::ranges::none_of(parts_, [](const PartRound& part) { return part.has_any_open(); });
}

uint64_t JobRounds::steps_decided() const {
  uint64_t least = parts_.empty() ? 0 : UINT64_MAX;
  for (const PartRound& part : parts_) least = std::min(least, part.decided());
  return least;
}

uint64_t JobRounds::steps_sent(uint32_t worker) const {
  uint64_t least = parts_.empty() ? 0 : UINT64_MAX;
  for (const PartRound& part : parts_) least = std::min(least, sent_to(worker, part));
  return least;
}

TimeNs JobRounds::decided_at() const {
  TimeNs last = 0;
  for (const PartRound& part : parts_) last = std::max(last, part.last_decided_at());
  return last;
}

uint64_t JobRounds::steps_decided_max() const {
  uint64_t most = 0;
  for (const PartRound& part : parts_) most = std::max(most, part.decided());
  return most;
}

uint64_t JobRounds::memory_for_rounds() const {
  const uint64_t kept = (store_ ? store_->bytes() : 0) + fixed_charge_.bytes();
  return setup_.limits.job_memory_bytes_max - std::min(kept, setup_.limits.job_memory_bytes_max);
}

uint64_t JobRounds::retained_updates() const {
  uint64_t kept = 0;
  for (const PartRound& part : parts_) kept += part.all_retained().size();
  return kept;
}

uint64_t JobRounds::steps_applied(uint32_t worker) const {
  uint64_t least = parts_.empty() ? 0 : UINT64_MAX;
  for (const PartRound& part : parts_) least = std::min(least, part.acknowledged(worker));
  return least;
}

std::vector<protocol::Ack::Entry> JobRounds::unacknowledged(uint32_t worker, uint64_t least) const {
  std::vector<protocol::Ack::Entry> parts;
  for (const PartRound& part : parts_) {
    if (parts.size() == protocol::kHeartbeatPartsMax) break;
    const uint64_t sent = sent_to(worker, part);
    if (sent > std::max(least, part.acknowledged(worker))) parts.push_back({part.layout().part, sent});
  }
  return parts;
}

void JobRounds::on_digests(const protocol::Member& from, std::span<const protocol::Heartbeat::Digest> digests,
                           TimeNs now, Actions& actions) {
  for (const protocol::Heartbeat::Digest& theirs : digests) {
    PartRound* part = local_part(theirs.part);
    if (part && !part->takes(from)) continue;  // its weights are not settled
    if (!part || theirs.n > part->decided()) {
      count(Metric::kDropped, "impossible_digest", 1, actions);
      continue;
    }
    // An acknowledgement may be lost, and nothing be sent that would bring another one.
    if (asynchronous() && part->acknowledge(from.worker, theirs.n, setup_.members.all()))
      acknowledged(from, *part, theirs.n, actions);
    const std::optional<uint64_t> ours = part->digest_after(theirs.n);
    if (!ours) {
      count(Metric::kDigests, "too_old", 1, actions);
      continue;
    }
    const bool equal = *ours == theirs.digest;
    count(Metric::kDigests, equal ? "agree" : "differ", 1, actions);
    const DigestWatch::News news =
        equal ? digest_watch_.agrees(from, theirs.part) : digest_watch_.differs(from, theirs.part, theirs.n, now);
    if (news == DigestWatch::News::kFirstOfWorker) {
      actions.log.push_back(
          {Severity::kError,
           fmt::format("job '{}': worker {} has not applied the updates of this shard: after {} steps "
                       "of part {} its digest is {:016x}, not {:016x}; its weights are not those of "
                       "the others",
                       setup_.spec.name, from.worker, theirs.n, theirs.part, theirs.digest, *ours)});
    } else if (news == DigestWatch::News::kAgreesAgain) {
      actions.log.push_back({Severity::kInfo, fmt::format("job '{}': worker {} agrees again on the applied updates",
                                                          setup_.spec.name, from.worker)});
    }
  }
}

}  // namespace millrace::server
