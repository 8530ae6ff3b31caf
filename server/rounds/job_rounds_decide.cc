#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/check.h"
#include "protocol/job/step_sends.h"
#include "server/rounds/job_rounds.h"

/// How a step of a part is decided: all contributions decoded -> reduce -> (threshold -> quota) -> encode -> keep and
/// send.
namespace millrace::server {
namespace {

/// Marks the shard's own random draws: no worker has this number.
constexpr uint64_t kShardDraws = UINT64_MAX;

/// Kept updates may fill this share of a job's memory; beyond it decisions are held back until some are acknowledged.
constexpr uint64_t kRetainedShare = 2;

double seconds(TimeNs ns) { return static_cast<double>(ns) / static_cast<double>(kNsPerS); }

}  // namespace

RoundKey JobRounds::key_of(const PartRound& part) const {
  return {setup_.members.membership().job, part.layout().part, part.decided(), part.attempt().token};
}

size_t JobRounds::index_in(const Bucket& bucket, const PartRound& part) const {
  return static_cast<size_t>(&part - parts_.data()) - bucket.first;
}

bool JobRounds::is_blocked_on_memory() const {
  return retained_account_.used_bytes() > memory_for_rounds() / kRetainedShare;
}

std::vector<uint32_t> JobRounds::initializing_members(const PartRound& part) const {
  std::vector<uint32_t> workers;
  if (setup_.spec.initial_weights != protocol::InitialWeights::kFirst || part.decided() != 0) return workers;
  for (const protocol::Member& member : setup_.members.all()) {
    if (member.state == protocol::MemberState::kJoining) workers.push_back(member.worker);
  }
  return workers;
}

void JobRounds::advance(PartRound& part, TimeNs now, Actions& actions) {
  const protocol::Membership& membership = setup_.members.membership();
  if (!membership.started || membership.finished || failure_ || !initializing_members(part).empty()) return;
  part.open_next_arrival();
  const std::optional<TimeNs> due = part.due(setup_.members);
  if (!due || (store_ && !store_->takes(part.layout().part, part.decided()))) return;
  if (*due > now) {
    next_due_ = std::min(next_due_.value_or(*due), *due);
    return;
  }
  if (lacks_counts(part)) return;
  if (is_blocked_on_memory()) {
    blocked_on_memory_ = true;
    if (!blocked_since_) blocked_since_ = now;
    return;
  }
  blocked_since_.reset();
  const PartRound::Timing timing = part.timing();
  count(Metric::kWaitSeconds, "", seconds(timing.last - timing.first), actions);
  if (setup_.spec.mode != protocol::Mode::kSynchronous) {
    count(Metric::kLeftOut, "", static_cast<double>(part.waited_for(setup_.members).size()), actions);
  }
  part.begin(next_token_++, now);
  reduce(part, fused_threshold(part), actions);
}

std::optional<FusedThreshold> JobRounds::fused_threshold(const PartRound& part) {
  const Bucket& bucket = bucket_of(part);
  if (protocol::update_is_whole(*bucket.layout, part.decided())) return std::nullopt;
  // An index codec that adds entries takes their values from the whole sum.
  if (!bucket.threshold || !find_index_codec(bucket.layout->codec_down.index)->lossless()) return std::nullopt;
  return bucket.threshold->fused_threshold(index_in(bucket, part), part.decided());
}

void JobRounds::reduce(PartRound& part, std::optional<FusedThreshold> quick, Actions& actions) {
  const bool cut = !protocol::update_is_whole(*bucket_of(part).layout, part.decided());
  const bool waits = cut && bucket_of(part).threshold != nullptr && !quick;
  ReduceTask::Input input;
  input.contributions = part.inputs();
  input.key = key_of(part);
  input.magnitudes = cut && !quick ? ReduceTask::Magnitudes::kCounted : ReduceTask::Magnitudes::kNone;
  if (!waits) input.plan = plan_for(part);
  input.quick = quick;
  actions.tasks.push_back(std::make_shared<ReduceTask>(std::move(input)));
}

void JobRounds::advance_all(TimeNs now, Actions& actions) {
  blocked_on_memory_ = false;
  for (PartRound& part : parts_) advance(part, now, actions);
}

void JobRounds::on_task_done(Task& task, TimeNs now, Actions& actions) {
  if (failure_) return;
  switch (task.kind()) {
    case Task::Kind::kDecode: return on_decoded(static_cast<DecodeTask&>(task), now, actions);
    case Task::Kind::kReduce: return on_reduced(static_cast<ReduceTask&>(task), now, actions);
    case Task::Kind::kQuota: return on_quota(static_cast<const QuotaTask&>(task), actions);
    case Task::Kind::kEncode: return on_encoded(static_cast<const EncodeTask&>(task), now, actions);
    case Task::Kind::kMerge: return on_merged(static_cast<const MergeTask&>(task), actions);
    case Task::Kind::kStore: return on_stored(static_cast<const StoreTask&>(task), now, actions);
  }
}

void JobRounds::on_decoded(DecodeTask& task, TimeNs now, Actions& actions) {
  const DecodeTask::Input& input = task.input();
  PartRound* part = local_part(input.key.part);
  MILLRACE_CHECK(part != nullptr, input.key.part);
  if (task.result()) {
    const SharedStream& stream = *task.result();
    const double entries = static_cast<double>(stream.view.count());
    count(Metric::kContributionEntries, "", entries, actions);
    count(Metric::kContributionRawBytes, "", entries * static_cast<double>(kPairBytes), actions);
    MemoryCharge charge(account_, stream.memory_bytes);
    if (part->decoded(input, stream, std::move(charge))) advance(*part, now, actions);
    return;
  }
  if (!part->reject(input)) return;
  advance(*part, now, actions);  // the others may have waited for it
  const protocol::Member* member = find_member(setup_.members.membership(), input.worker);
  if (!member) return;
  const Error& error = task.result().error();
  protocol::Refuse refusal;
  refusal.code = error.code;
  refusal.sentence = fmt::format("contribution of worker {} to {} {} of part {}: {}", input.worker, what_step_is(),
                                 input.key.step, input.key.part, error.message);
  refusal.part = input.key.part;
  refusal.step = input.key.step;
  refusal.retry = task.was_shortened() || arrived_damaged(input.payload.bytes, input.hash);
  refuse(*member, std::move(refusal), now, actions);
}

void JobRounds::on_reduced(ReduceTask& task, TimeNs now, Actions& actions) {
  PartRound* part = local_part(task.input().key.part);
  MILLRACE_CHECK(part != nullptr, task.input().key.part);
  if (!part->is_current(task.input().key.token, PartRound::Stage::kReducing)) return;
  if (!task.result()) {
    failure_ = task.result().error();
    return;
  }
  const ReduceTask::Output& output = *task.result();
  if (task.input().quick) return on_quick(*part, output, now, actions);
  const double entries = static_cast<double>(output.sum.view.count());
  uint64_t largest = 0;
  for (const SharedStream& one : task.input().contributions) largest = std::max(largest, one.view.count());
  count(Metric::kSumEntries, "", entries, actions);
  if (largest != 0) count(Metric::kFillIn, "", entries / static_cast<double>(largest), actions);
  SharedHistogram histogram = charged(output.histogram, account_);
  if (output.update) {
    const uint64_t step = part->decided();
    finish(*part, *output.update, now, actions);
    return count_step(*part, step, std::move(histogram), now, actions);
  }
  part->summed(output.sum, std::move(histogram), MemoryCharge(account_, output.sum.memory_bytes));
  after_sum(*part, now, actions);
}

/// Handles a part that was cut while it was summed. The count may be too low or too high, also because the other parts
/// have changed their counts since. Then the update is the right number of its large sums. If there are not enough of
/// them, the part is summed again whole.
void JobRounds::on_quick(PartRound& part, const ReduceTask::Output& output, TimeNs now, Actions& actions) {
  const Bucket& bucket = bucket_of(part);
  const size_t index = index_in(bucket, part);
  bucket.threshold->reached(index, part.decided(), output.reached);
  if (output.update && bucket.threshold->accept(index, part.decided(), output.reached)) {
    count(Metric::kFusedThresholds, "as_it_was", 1, actions);
    return finish(part, *output.update, now, actions);
  }
  if (const auto largest = bucket.threshold->reuse_largest(index, part.decided(), output.sum.view.count())) {
    count(Metric::kFusedThresholds, "trimmed", 1, actions);
    part.summed(output.sum, nullptr, MemoryCharge(account_, output.sum.memory_bytes));
    EncodePlan plan = plan_for(part);
    plan.largest = largest;
    return encode_by(part, std::move(plan), actions);
  }
  count(Metric::kFusedThresholds, "summed_again", 1, actions);
  reduce(part, std::nullopt, actions);
}

void JobRounds::after_sum(PartRound& part, TimeNs now, Actions& actions) {
  Bucket& bucket = bucket_of(part);
  const uint64_t step = part.decided();
  const size_t index = index_in(bucket, part);
  const bool reuse = bucket.threshold->may_reuse(step);
  if (bucket.threshold->counts_magnitudes(step)) {
    if (const SharedHistogram own = bucket.threshold->on_local(index, step, part.attempt().histogram, now)) {
      share_histogram(bucket, step, *own, actions);
    }
  } else {
    bucket.threshold->counted_again(index, step, part.attempt().histogram);
  }
  if (reuse) return encode(part, bucket.threshold->reused_threshold(index, step, *part.attempt().histogram), actions);
  agree_on_threshold(bucket, step, actions);
}

void JobRounds::share_histogram(const Bucket& bucket, uint64_t step, const MagnitudeHistogram& own,
                                Actions& actions) const {
  std::vector<uint32_t> others = bucket.threshold->shards();
  std::erase(others, setup_.shard);
  say_histogram(bucket, step, own, others, actions);
}

void JobRounds::say_histogram(const Bucket& bucket, uint64_t step, const MagnitudeHistogram& own,
                              std::span<const uint32_t> to, Actions& actions) const {
  if (to.empty()) return;
  ByteBuffer bytes;
  own.encode(bytes);
  const SharedBytes payload = SharedBytes::from(std::move(bytes));
  const protocol::Header header = setup_.members.header(0, 0);
  protocol::ThresholdHistogram body{bucket.layout->bucket, step};
  body.payload_hash = protocol::histogram_hash(header.job, body, payload.bytes);
  for (const uint32_t shard : to) actions.to_shards.push_back({shard, {header, body, payload}});
}

void JobRounds::on_histogram(uint32_t shard, const protocol::ThresholdHistogram& body, const SharedBytes& payload,
                             TimeNs now, Actions& actions) {
  if (failure_) return;
  if (body.bucket >= bucket_at_.size() || bucket_at_[body.bucket] == UINT32_MAX) {
    return count(Metric::kDropped, "unknown_bucket", 1, actions);
  }
  Bucket& bucket = buckets_[bucket_at_[body.bucket]];
  if (!bucket.selects_from_sum()) return count(Metric::kDropped, "unknown_bucket", 1, actions);
  Result<MagnitudeHistogram> histogram = MagnitudeHistogram::decode(payload.bytes);
  if (!histogram || histogram->total() > bucket.layout->dimension) {
    return count(Metric::kDropped, "malformed_histogram", 1, actions);
  }
  SharedHistogram counted = charged(std::make_shared<MagnitudeHistogram>(std::move(*histogram)), account_);
  if (bucket.steps) return on_step_histogram(bucket, shard, body.step, std::move(counted), now, actions);
  switch (bucket.threshold->on_remote(shard, body.step, std::move(counted))) {
    case BucketThreshold::Remote::kTaken: return agree_on_threshold(bucket, body.step, actions);
    case BucketThreshold::Remote::kLate: return count(Metric::kLateHistograms, "", 1, actions);
    case BucketThreshold::Remote::kAhead: return count(Metric::kDropped, "histogram_ahead", 1, actions);
    case BucketThreshold::Remote::kUnknownShard: return count(Metric::kDropped, "unknown_shard", 1, actions);
  }
}

std::vector<PartRound*> JobRounds::waiting_parts(const Bucket& bucket, uint64_t step) {
  std::vector<PartRound*> waiting;
  for (size_t at = bucket.first; at < bucket.first + bucket.count; ++at) {
    if (parts_[at].decided() == step && parts_[at].stage() == PartRound::Stage::kSummed) waiting.push_back(&parts_[at]);
  }
  return waiting;
}

void JobRounds::agree_on_threshold(Bucket& bucket, uint64_t step, Actions& actions) {
  const std::vector<PartRound*> waiting = waiting_parts(bucket, step);
  const std::optional<BucketThreshold::LocalThreshold> cut =
      waiting.empty() ? std::nullopt : bucket.threshold->exact_threshold(step);
  if (cut && waiting.size() == bucket.count) return split_quota(bucket, waiting, *cut, actions);
  // The exact cut was given up, or the members changed after the shards had agreed: the quota no longer fits these
  // sums. Or they are of a later step (parts need not be equally far after a shard's restart), and waited because
  // nothing was agreed.
  for (size_t at = bucket.first; at < bucket.first + bucket.count; ++at) {
    PartRound& part = parts_[at];
    if (part.stage() != PartRound::Stage::kSummed || !bucket.threshold->may_reuse(part.decided())) continue;
    const PartThreshold reused =
        bucket.threshold->reused_threshold(at - bucket.first, part.decided(), *part.attempt().histogram);
    encode(part, reused, actions);
  }
}

void JobRounds::split_quota(Bucket& bucket, std::span<PartRound* const> waiting, BucketThreshold::LocalThreshold cut,
                            Actions& actions) {
  uint64_t in_bin = 0;
  size_t holders = 0;
  for (const PartRound* part : waiting) {
    const uint64_t here = part->attempt().histogram->count(cut.bin);
    in_bin += here;
    holders += here != 0 ? 1 : 0;
  }
  const bool all_or_none = cut.quota == 0 || cut.quota >= in_bin;
  if (all_or_none || holders <= 1) {
    for (PartRound* part : waiting) encode(*part, {cut.bin, cut.quota}, actions);
    return;
  }
  QuotaTask::Input input{setup_.members.membership().job, bucket.layout->bucket, cut.bin, cut.quota, {}};
  for (PartRound* part : waiting) {
    if (part->attempt().histogram->count(cut.bin) == 0) {
      encode(*part, {cut.bin, 0}, actions);
      continue;
    }
    part->set_stage(PartRound::Stage::kQuota);
    input.parts.push_back({key_of(*part), part->layout().begin, part->attempt().sum});
  }
  actions.tasks.push_back(std::make_shared<QuotaTask>(std::move(input)));
}

void JobRounds::on_quota(const QuotaTask& task, Actions& actions) {
  for (size_t at = 0; at < task.input().parts.size(); ++at) {
    const RoundKey& key = task.input().parts[at].key;
    PartRound* part = local_part(key.part);
    MILLRACE_CHECK(part != nullptr, key.part);
    if (part->is_current(key.token, PartRound::Stage::kQuota))
      encode(*part, {task.input().bin, task.take()[at]}, actions);
  }
}

EncodePlan JobRounds::plan_for(const PartRound& part) const {
  const protocol::BucketLayout& bucket = setup_.layout.buckets[part.layout().bucket];
  EncodePlan plan;
  plan.codec = bucket.codec_down;
  plan.random = random_key(setup_.spec.seed, bucket.bucket, part.decided(), kShardDraws);
  plan.index_base = part.layout().begin;
  if (protocol::step_sends(bucket.select, bucket.dimension, part.decided()) == protocol::StepSends::kUncompressed) {
    plan.codec = without_loss(plan.codec);
    plan.codec.automatic = false;  // the choice is for the steps after these
  }
  plan.extent = protocol::update_is_whole(bucket, part.decided()) ? Extent::kEverything : Extent::kItsIndices;
  if (const StepThreshold* steps = bucket_of(part).steps.get()) {
    plan.by_step = StepSelection{steps->threshold(part.decided()).value(), setup_.spec.grid.block_indices};
  }
  if (setup_.spec.audit) plan.audited = part.inputs();
  plan.for_history = part.history() != nullptr;
  if (plan.codec.automatic) {
    const size_t receivers = std::max<size_t>(setup_.members.all().size(), 1);
    plan.automatic = {chooser_of(part), setup_.codec_costs, static_cast<uint32_t>(receivers)};
  }
  return plan;
}

void JobRounds::note_choice(const PartRound& part, CodecChooser chooser, Actions& actions) {
  CodecChooser& known = choosers_[static_cast<size_t>(&part - parts_.data())];
  const bool changed = chooser.changes() != known.changes();
  known = std::move(chooser);
  if (!changed) return;
  actions.log.push_back(
      {Severity::kInfo,
       fmt::format("job '{}': part {}, {}, goes down as {}", setup_.spec.name, part.layout().part,
                   protocol::bucket_text(setup_.spec, *bucket_of(part).layout), known.choice()->text())});
}

std::vector<CodecStatus> JobRounds::codecs(size_t count_max) const {
  std::vector<CodecStatus> listed;
  for (const PartRound& part : parts_) {
    const CodecChooser& chooser = chooser_of(part);
    if (!chooser.choice() || listed.size() == count_max) continue;
    listed.push_back({part.layout().part, protocol::bucket_text(setup_.spec, *bucket_of(part).layout),
                      chooser.choice()->text(), chooser.changes()});
  }
  return listed;
}

void JobRounds::encode(PartRound& part, PartThreshold cut, Actions& actions) {
  EncodePlan plan = plan_for(part);
  plan.threshold = cut;
  encode_by(part, std::move(plan), actions);
}

void JobRounds::encode_by(PartRound& part, EncodePlan plan, Actions& actions) {
  part.set_stage(PartRound::Stage::kEncoding);
  actions.tasks.push_back(
      std::make_shared<EncodeTask>(EncodeTask::Input{key_of(part), part.attempt().sum, std::move(plan)}));
}

void JobRounds::on_encoded(const EncodeTask& task, TimeNs now, Actions& actions) {
  PartRound* part = local_part(task.input().key.part);
  MILLRACE_CHECK(part != nullptr, task.input().key.part);
  if (!part->is_current(task.input().key.token, PartRound::Stage::kEncoding)) return;
  if (!task.result()) {
    failure_ = task.result().error();
    return;
  }
  finish(*part, *task.result(), now, actions);
}

void JobRounds::on_stored(const StoreTask& task, TimeNs now, Actions& actions) {
  store_->on_task_done(task, &setup_.members, actions);
  if (store_->failure()) {
    failure_ = store_->failure();
    return;
  }
  PartRound* part = local_part(task.input().part);
  MILLRACE_CHECK(part != nullptr, task.input().part);
  advance(*part, now, actions);
}

void JobRounds::on_store_moved(TimeNs now, Actions& actions) {
  if (failure_) return;
  recover_store(actions);
  if (store_->failure()) {
    failure_ = store_->failure();
  } else {
    advance_all(now, actions);
  }
}

void JobRounds::on_store_written(const Status& written, TimeNs now, Actions& actions) {
  tell_store(actions);
  store_->on_written(written, actions);
  retain_for_store();
  if (store_->is_saving()) return;
  forget_stored();
  // Steps continued while the save waited for acknowledgements.
  if (written) check_retained(actions);
  if (store_->failure()) failure_ = store_->failure();
  if (!failure_) advance_all(now, actions);
}

void JobRounds::check_size(const PartRound& part, uint64_t update_bytes, Actions& actions) {
  if (update_bytes <= setup_.limits.received_bytes_max() || has_large_update_) return;
  has_large_update_ = true;
  actions.log.push_back(
      {Severity::kWarning,
       fmt::format("job '{}': the update of step {} of part {} has {} bytes, and this shard receives at most {} in one "
                   "message (--message-bytes-max): if the shard restarts, no worker can return the update, and workers "
                   "that lack it cannot continue; raise the flag at all shards, or parts_per_shard",
                   setup_.spec.name, part.decided(), part.layout().part, update_bytes,
                   setup_.limits.received_bytes_max())});
}

void JobRounds::finish(PartRound& part, EncodedUpdate update, TimeNs now, Actions& actions) {
  Bucket& bucket = bucket_of(part);
  if (update.chooser) note_choice(part, std::move(*update.chooser), actions);
  count(Metric::kRounds, "", 1, actions);
  count(Metric::kRoundSeconds, "", seconds(now - part.timing().first), actions);
  count(Metric::kUpdateEntries, "", static_cast<double>(update.entries), actions);
  count(Metric::kUpdateBytes, "", static_cast<double>(update.container.bytes.size()), actions);
  check_size(part, update.container.bytes.size(), actions);
  count(Metric::kUpdateRawBytes, "", static_cast<double>(update.entries * kPairBytes), actions);
  if (audit_) audit_->decided(part, update.imbalance, actions);
  if (update.codec_error != 0) count(Metric::kCodecErrorDown, "", update.codec_error, actions);
  PartRound::Decision decision;
  decision.epoch = setup_.members.membership().epoch;
  decision.at = now;
  decision.whole_sum = protocol::update_is_whole(*bucket.layout, part.decided());
  decision.payload = std::move(update.container);
  decision.carried = std::move(update.carried);
  decision.changed = std::move(update.changed);
  decision.threshold = bucket.threshold ? bucket.threshold->agreed_magnitude() : 0;
  const PartRound::RetainedUpdate& kept = part.keep(std::move(decision), retained_account_);
  if (store_) store_->decided(kept.body, kept.payload, actions);
  // A joiner drops the updates of a part that is settled, and asks for them when it is synced. Over a slow link they
  // would delay its other parts.
  for (const protocol::Member& member : setup_.members.synced()) {
    if (asynchronous()) {
      deliver(member, part, actions);
    } else {
      serve(member, part, kept, actions);
    }
  }
  announce_retained(part, actions);
  starved_.reset();
  bucket.decided = part.decided();
  for (size_t at = bucket.first; at < bucket.first + bucket.count; ++at) {
    bucket.decided = std::min(bucket.decided, parts_[at].decided());
  }
  if (bucket.threshold) bucket.threshold->decided_below(bucket.decided);
  advance(part, now, actions);
}

void JobRounds::on_tick(TimeNs now, Actions& actions) {
  if (failure_) return;
  if (store_) store_->on_tick(now, actions);
  if (next_due_ && now >= *next_due_) {
    next_due_.reset();
    advance_all(now, actions);
  }
  repeat_histograms(now, actions);
  for (Bucket& bucket : buckets_) {
    if (!bucket.threshold) continue;
    for (const uint64_t step : bucket.threshold->expire(now)) {
      count(Metric::kExchangeFallbacks, "", static_cast<double>(bucket.count), actions);  // as kRounds: one a part
      agree_on_threshold(bucket, step, actions);
    }
  }
  if (starved_ && now >= starved_->since + static_cast<TimeNs>(setup_.limits.abandon_ms) * kNsPerMs) {
    failure_ = Error{
        ErrorCode::kLimitExceeded,
        fmt::format("the contributions of one step do not fit this shard's memory ({} bytes in use by the job): raise "
                    "--job-memory-bytes-max ({}) or --shard-memory-bytes-max ({})",
                    account_.used_bytes(), setup_.limits.job_memory_bytes_max, setup_.limits.shard_memory_bytes_max)};
  }
}

}  // namespace millrace::server
