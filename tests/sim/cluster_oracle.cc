#include "tests/sim/cluster_oracle.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/hash.h"
#include "kernels/reduce/magnitude_histogram.h"
#include "protocol/container/container.h"
#include "protocol/messages/participants.h"

namespace millrace::testing {
namespace {

std::string at(uint32_t part, uint64_t step) {
  return "part " + std::to_string(part) + " step " + std::to_string(step);
}

std::string who(uint32_t worker, uint64_t incarnation) {
  return std::to_string(worker) + "/" + std::to_string(incarnation);
}

Result<Stream> decode_payload(ByteSpan bytes) { return read_container(bytes, {}); }

void add_to_cluster_oracle(std::vector<float>& sum, const StreamView& stream) {
  for (size_t i = 0; i < stream.values.size(); ++i) sum[stream.dense ? i : stream.indices[i]] += stream.values[i];
}

uint64_t reselect_k(const protocol::BucketLayout& bucket) {
  if (bucket.reselect.k > 0) return std::min(bucket.reselect.k, bucket.dimension);
  const auto k = static_cast<uint64_t>(std::ceil(bucket.reselect.density * static_cast<double>(bucket.dimension)));
  return std::clamp<uint64_t>(k, 1, bucket.dimension);
}

/// Returns whether a job declares this first step dense: whole and exact, regardless of codecs and re-selection.
bool is_dense_step(const protocol::BucketLayout& bucket, uint64_t step) {
  return bucket.select.warm_up == WarmUp::kDense && step < bucket.select.warm_up_steps;
}

}  // namespace

void apply_update(std::span<float> weights, const StreamView& sum, double denominator) {
  for (size_t i = 0; i < sum.values.size(); ++i) {
    const size_t index = sum.dense ? i : sum.indices[i];
    weights[index] -= static_cast<float>(static_cast<double>(sum.values[i]) / denominator);
  }
}

double denominator_of(const protocol::JobSpec& spec, size_t contributors, double weight_sum) {
  switch (spec.combine) {
    case protocol::Combine::kSum: return 1;
    case protocol::Combine::kMean: return static_cast<double>(contributors);
    case protocol::Combine::kWeightedMean: return weight_sum;
  }
  return 1;
}

ClusterOracle::ClusterOracle(const Scenario& scenario, const protocol::JobLayout& layout)
    : scenario_(scenario), layout_(layout), log_(layout.parts.size()) {
  // Histograms carry no hash: an altered one is an approximate cut.
  approximate_cuts_ = scenario.link.corruption > 0;
}

void ClusterOracle::on_sent_by_worker(const protocol::Message& message) {
  if (const auto* body = std::get_if<protocol::Contribution>(&message.body)) on_contribution(message, *body);
  if (const auto* body = std::get_if<protocol::Update>(&message.body)) on_update(message, *body);  // for a successor
  const auto* heartbeat = std::get_if<protocol::Heartbeat>(&message.body);
  if (heartbeat && heartbeat->finishing) finishing_.emplace(message.header.worker, message.header.incarnation);
}

void ClusterOracle::on_sent_by_shard(const protocol::Message& message) {
  if (const auto* body = std::get_if<protocol::Update>(&message.body)) on_update(message, *body);
  if (const auto* body = std::get_if<protocol::StepDecided>(&message.body)) on_step_decided(message, *body);
}

void ClusterOracle::on_membership(const protocol::Membership& membership) {
  views_.emplace(membership.epoch, membership);
}

const DecidedStep* ClusterOracle::find(uint32_t part, LogPosition at) const {
  if (at.n == 0 || part >= log_.size() || at.n > log_[part].size()) return nullptr;
  const auto& step = log_[part][at.n - 1];
  const auto found = step.find(at.decided_in);
  return found == step.end() ? nullptr : &found->second;
}

const DecidedStep* ClusterOracle::newest(uint32_t part, uint64_t step) const {
  if (step >= log_[part].size() || log_[part][step].empty()) return nullptr;
  return &log_[part][step].rbegin()->second;
}

void ClusterOracle::on_acknowledged(uint32_t worker, uint32_t part, LogPosition at) {
  acknowledged_[{part, worker}].insert(at);
}

uint32_t ClusterOracle::acknowledged(uint32_t part, LogPosition at) const {
  uint32_t count = 0;
  for (const auto& [who, places] : acknowledged_) {
    const auto goes_through = [&](LogPosition place) { return place.n >= at.n && is_on_path(part, at, place); };
    count += who.first == part && std::ranges::any_of(places, goes_through) ? 1 : 0;
  }
  return count;
}

uint32_t ClusterOracle::members_least() const {
  uint32_t least = UINT32_MAX;
  for (const auto& [epoch, membership] : views_) {
    if (membership.left > 0) least = std::min(least, static_cast<uint32_t>(membership.members.size()));
  }
  return least;
}

bool ClusterOracle::is_on_path(uint32_t part, LogPosition earlier, LogPosition later) const {
  while (later.n > earlier.n) {
    const DecidedStep* last = find(part, later);
    if (last == nullptr) return false;
    later = last->before;
  }
  return later == earlier;
}

std::vector<LogPosition> ClusterOracle::path(uint32_t part, uint64_t first, LogPosition at) const {
  std::vector<LogPosition> places;
  for (const DecidedStep* last = find(part, at); at.n > first && last != nullptr; last = find(part, at)) {
    places.push_back(at);
    at = last->before;
  }
  std::ranges::reverse(places);
  return places;
}

const protocol::ContributorId* ClusterOracle::find_contributor(uint32_t part, LogPosition at, uint32_t worker,
                                                               uint64_t incarnation) const {
  const DecidedStep* last = find(part, at);
  if (last == nullptr) return nullptr;
  const auto is_it = [&](const protocol::ContributorId& id) {
    return id.worker == worker && id.incarnation == incarnation;
  };
  const auto found = std::ranges::find_if(last->contributors, is_it);
  return found == last->contributors.end() ? nullptr : &*found;
}

bool ClusterOracle::counted(uint32_t part, LogPosition at, uint32_t worker, uint64_t incarnation) const {
  return find_contributor(part, at, worker, incarnation) != nullptr;
}

std::vector<float> ClusterOracle::weights(uint32_t part, LogPosition at) const {
  if (const DecidedStep* last = find(part, at)) return last->weights;
  return std::vector<float>(layout_.parts[part].end - layout_.parts[part].begin, 0.0f);
}

bool ClusterOracle::left_out(uint32_t part, uint64_t step, uint32_t worker, uint64_t incarnation) const {
  if (step >= log_[part].size()) return false;
  const auto& decisions = log_[part][step];
  return !decisions.empty() && std::ranges::none_of(decisions, [&](const auto& one) {
    return counted(part, {step + 1, one.first}, worker, incarnation);
  });
}

uint64_t ClusterOracle::counted_until(uint32_t part, uint32_t worker) const {
  const auto counts = [worker](const auto& decision) {
    return std::ranges::find(decision.second.contributors, worker, &protocol::ContributorId::worker) !=
           decision.second.contributors.end();
  };
  uint64_t steps = log_[part].size();
  while (steps > 0 && std::ranges::none_of(log_[part][steps - 1], counts)) --steps;
  return steps;
}

void ClusterOracle::add_carried(uint32_t part, LogPosition at, uint32_t worker, uint64_t incarnation,
                                std::span<double> carried) const {
  const DecidedStep* last = find(part, at);
  const protocol::ContributorId* who = find_contributor(part, at, worker, incarnation);
  const Stream* sent = who == nullptr ? nullptr : contribution_of(part, at.n - 1, *who);
  if (last == nullptr || sent == nullptr) return;
  for (size_t i = 0; i < sent->values.size(); ++i) {
    const size_t index = sent->dense ? i : sent->indices[i];
    if (last->carried[index]) carried[index] += static_cast<double>(sent->values[i]);
  }
}

const Stream* ClusterOracle::contribution(uint32_t part, uint64_t step, uint32_t worker, uint64_t incarnation) const {
  const auto found = contributions_.find({part, step, worker, incarnation});
  return found == contributions_.end() ? nullptr : &found->second.stream;
}

const Stream* ClusterOracle::contribution_of(uint32_t part, uint64_t step, const protocol::ContributorId& who) const {
  const auto found = contributions_.find(key_of(part, step, who));
  return found == contributions_.end() ? nullptr : &found->second.stream;
}

void ClusterOracle::on_contribution(const protocol::Message& message, const protocol::Contribution& body) {
  const uint64_t hash = hash64(message.payload.bytes);
  if (body.part >= layout_.parts.size())
    return fault("a contribution to part " + std::to_string(body.part) + ", which is not there");
  const auto [place, fresh] =
      contributions_.try_emplace({body.part, body.step, message.header.worker, message.header.incarnation});
  if (!fresh) {
    if (place->second.hash != hash)
      fault(at(body.part, body.step) + ": a resend of " + who(message.header.worker, message.header.incarnation) +
            " carries other bytes");
    return;
  }
  auto stream = decode_payload(message.payload.bytes);
  if (!stream)
    return fault(at(body.part, body.step) + ": a worker sent what does not decode: " + stream.error().message);
  place->second = {hash, body.weight, std::move(*stream)};
}

void ClusterOracle::on_step_decided(const protocol::Message& message, const protocol::StepDecided& body) {
  if (body.part >= layout_.parts.size() || body.step >= log_[body.part].size())
    return fault("settled an undecided " + at(body.part, body.step));
  if (log_[body.part][body.step].size() != 1)
    return;  // decided again: the oracle cannot see to which decision the shard refers
  const LogPosition at_step{body.step + 1, log_[body.part][body.step].begin()->first};
  const bool truly = counted(body.part, at_step, message.header.worker, message.header.incarnation);
  if (truly != body.counted) {
    fault(at(body.part, body.step) + ": settled " + who(message.header.worker, message.header.incarnation) + " as " +
          (body.counted ? "counted" : "not counted") + ", which is false");
  }
}

void ClusterOracle::on_update(const protocol::Message& message, const protocol::Update& body) {
  if (body.part >= layout_.parts.size())
    return fault("an update of part " + std::to_string(body.part) + ", which is not there");
  if (!body.merged.empty()) return on_merged(message, body);
  const uint64_t identity = container_identity(message.payload.bytes).value_or(0);
  if (find(body.part, {body.step + 1, body.decided_in}) == nullptr)
    return decide(body, identity, decode_payload(message.payload.bytes));
  check_same(body, identity);
}

void ClusterOracle::check_same(const protocol::Update& body, uint64_t identity) {
  const DecidedStep& known = *find(body.part, {body.step + 1, body.decided_in});
  const bool same = known.contributors == body.contributors && known.weight_sum == body.weight_sum &&
                    known.whole_sum == body.whole_sum && known.identity == identity;
  if (!same) fault(at(body.part, body.step) + ": two different updates were sent");
}

/// Checks a merged update. A step that was never sent by itself equals its contribution: only updates without a code of
/// their own are merged.
void ClusterOracle::on_merged(const protocol::Message& message, const protocol::Update& body) {
  const protocol::PartLayout& range = layout_.parts[body.part];
  std::vector<float> sum(range.end - range.begin, 0.0F);
  ++updates_merged_;
  for (size_t i = 0; i < body.merged.size(); ++i) {
    const protocol::MergedStep& one = body.merged[i];
    protocol::Update single = body;
    single.merged.clear();
    single.step = body.first_step() + i;
    single.contributors = {one.contributor};
    single.weight_sum = one.weight;
    for (const auto& [epoch, first_step] : body.summary.epochs) {
      if (first_step <= single.step) single.decided_in = epoch;
    }
    const LogPosition place{single.step + 1, single.decided_in};
    const Stream* sent = contribution_of(body.part, single.step, one.contributor);
    if (find(body.part, place) != nullptr) {
      check_same(single, one.identity);
    } else if (sent != nullptr) {
      decide(single, one.identity, *sent);
    }
    const DecidedStep* decided = find(body.part, place);
    if (decided == nullptr) return fault(at(body.part, single.step) + " is merged, and was never decided");
    add_to_cluster_oracle(sum, decided->update.view());
  }
  const auto update = decode_payload(message.payload.bytes);
  std::vector<float> told(sum.size(), 0.0F);
  if (update && update->dimension == told.size()) add_to_cluster_oracle(told, update->view());
  if (!update || told != sum)
    fault(at(body.part, body.step) + ": an update of " + std::to_string(body.merged.size()) +
          " steps is not their sum");
}

void ClusterOracle::decide(const protocol::Update& body, uint64_t identity, Result<Stream> update) {
  auto& steps = log_[body.part];
  LogPosition before{body.step, 0};
  for (const auto& [epoch, first_step] : body.summary.epochs) {
    if (body.step > 0 && first_step < body.step) before.decided_in = epoch;
  }
  if (body.step > 0 && find(body.part, before) == nullptr)
    return fault(at(body.part, body.step) + " was decided, and step " + std::to_string(body.step - 1) + " of epoch " +
                 std::to_string(before.decided_in) + " never was");
  if (body.step == steps.size()) steps.emplace_back();
  for (const auto& [epoch, other] : steps[body.step]) {
    if (other.branch == body.branch)
      fault(at(body.part, body.step) + ": decided in the epochs " + std::to_string(epoch) + " and " +
            std::to_string(body.decided_in) + " of one log branch");
  }
  if (!steps[body.step].empty()) ++steps_void_;
  DecidedStep decided{.decided_in = body.decided_in,
                      .branch = body.branch,
                      .before = before,
                      .contributors = body.contributors,
                      .weight_sum = body.weight_sum,
                      .whole_sum = body.whole_sum,
                      .identity = identity,
                      .update = {},
                      .carried = {},
                      .sum = {},
                      .weights = {}};
  const protocol::PartLayout& part = layout_.parts[body.part];
  if (!update || update->dimension != part.end - part.begin) {
    // The log continues with nothing in this step, so that one fault stays one.
    fault(at(body.part, body.step) + ": the update does not decode to the part's dimension");
    update = Stream::empty(part.end - part.begin);
  }
  decided.update = std::move(*update);
  check_contributors(body.part, before, body);
  add_up(body.part, body.step, body, decided);
  decided.weights = weights(body.part, before);
  apply_update(decided.weights, decided.update.view(),
               denominator_of(scenario_.spec, body.contributors.size(), body.weight_sum));
  check_values(body.part, body.step, decided);
  steps[body.step].emplace(body.decided_in, std::move(decided));
  ++steps_decided_;
  check_cut(part.bucket, body.step);
}

void ClusterOracle::add_up(uint32_t part, uint64_t step, const protocol::Update& body, DecidedStep& decided) {
  const protocol::PartLayout& range = layout_.parts[part];
  const size_t dimension = range.end - range.begin;
  decided.sum.assign(dimension, 0.0f);
  decided.carried.assign(dimension, body.whole_sum || decided.update.dense);
  for (uint32_t index : decided.update.indices) decided.carried[index] = true;
  double weight_sum = 0;
  for (const auto& id : body.contributors) {
    const auto found = contributions_.find(key_of(part, step, id));
    if (found == contributions_.end()) {
      fault(at(part, step) + " counts a contribution of " + who(id.worker, id.incarnation) + " that was never sent");
      continue;
    }
    weight_sum += found->second.weight;
    const Stream& stream = found->second.stream;
    for (size_t i = 0; i < stream.values.size(); ++i) {
      const size_t index = stream.dense ? i : stream.indices[i];
      decided.sum[index] += stream.values[i];
    }
  }
  if (weight_sum != body.weight_sum)
    fault(at(part, step) + ": weight sum " + std::to_string(body.weight_sum) + ", the contributors' is " +
          std::to_string(weight_sum));
}

void ClusterOracle::check_contributors(uint32_t part, LogPosition before, const protocol::Update& body) {
  const uint64_t step = before.n;
  for (size_t i = 1; i < body.contributors.size(); ++i) {
    if (body.contributors[i - 1].worker >= body.contributors[i].worker)
      fault(at(part, step) + " names contributors out of order or twice");
  }
  for (const auto& id : body.contributors) {
    if (id.worker >= scenario_.spec.workers)
      return fault(at(part, step) + " names worker " + std::to_string(id.worker) + ", which is not there");
  }
  check_absence(part, before, body);
}

void ClusterOracle::check_absence(uint32_t part, LogPosition before, const protocol::Update& body) {
  auto membership = views_.find(body.decided_in);
  if (membership == views_.end()) return;
  if (asynchronous()) {
    if (const std::string wrong = disorder(part, before, body, membership->second); !wrong.empty())
      fault(at(part, before.n) + wrong);
    return;
  }
  std::string why = absence(part, before, body, membership->second);
  if (why.empty()) return;
  // Where a step may omit workers, one that becomes synced while its sum is made does not block it.
  while (scenario_.spec.mode != protocol::Mode::kSynchronous && membership != views_.begin()) {
    --membership;
    const auto later = std::next(membership)->second.members;
    const bool joined = std::ranges::any_of(later, [&](const protocol::Member& member) {
      return member.state == protocol::MemberState::kSynced &&
             std::ranges::find(membership->second.members, member) == membership->second.members.end();
    });
    if (joined && absence(part, before, body, membership->second).empty()) return;
  }
  fault(at(part, before.n) + why);
}

std::string ClusterOracle::disorder(uint32_t part, LogPosition before, const protocol::Update& body,
                                    const protocol::Membership& membership) const {
  if (body.contributors.size() != 1) return " is not one contribution";
  const protocol::ContributorId& id = body.contributors[0];
  const bool synced = std::ranges::any_of(membership.members, [&](const protocol::Member& member) {
    return member.state == protocol::MemberState::kSynced && member.worker == id.worker &&
           member.incarnation == id.incarnation;
  });
  if (!synced) return " counts " + who(id.worker, id.incarnation) + ", no synced member of its epoch";
  for (const DecidedStep* one = find(part, before); one != nullptr; one = find(part, one->before)) {
    const protocol::ContributorId& earlier = one->contributors.front();
    if (earlier.worker != id.worker || earlier.incarnation != id.incarnation) continue;
    if (id.sequence == earlier.sequence + 1) return "";
    return " counts number " + std::to_string(id.sequence) + " of " + who(id.worker, id.incarnation) + " after " +
           std::to_string(earlier.sequence);
  }
  if (id.sequence == 0) return "";
  return " counts number " + std::to_string(id.sequence) + " of " + who(id.worker, id.incarnation) + " first";
}

/// Returns the fault of an absence under the mode, which needs all members or a quorum; and not too often in a row.
std::string ClusterOracle::absence(uint32_t part, LogPosition before, const protocol::Update& body,
                                   const protocol::Membership& membership) const {
  const protocol::JobSpec& spec = scenario_.spec;
  std::vector<protocol::Member> synced;  // a joiner blocks no step, and contributes nothing
  std::vector<protocol::ContributorId> members;
  for (const auto& member : membership.members) {
    if (member.state != protocol::MemberState::kSynced) continue;
    synced.push_back(member);
    members.push_back({member.worker, member.incarnation});
  }
  if (members == body.contributors) return "";
  const std::string epoch = std::to_string(body.decided_in);
  if (spec.mode == protocol::Mode::kSynchronous) {
    return " was not decided by exactly the synced members of epoch " + epoch;
  }
  for (const auto& id : body.contributors) {
    if (std::ranges::find(members, id) == members.end())
      return " counts " + who(id.worker, id.incarnation) + ", no synced member of epoch " + epoch;
  }
  const std::vector<uint32_t> expected = protocol::participants_of(spec, synced, before.n);
  const auto is_finishing = [&](uint32_t worker) {
    const auto member = std::ranges::find(synced, worker, &protocol::Member::worker);
    return finishing_.contains({worker, member->incarnation});
  };
  const auto is_in = [&](uint32_t worker) {
    return std::ranges::find(body.contributors, worker, &protocol::ContributorId::worker) != body.contributors.end();
  };
  std::vector<uint32_t> absent;
  for (const uint32_t worker : expected) {
    if (!is_in(worker) && !is_finishing(worker)) absent.push_back(worker);
  }
  if (absent.empty()) return "";
  const auto may_come = std::ranges::count_if(
      synced, [&](const protocol::Member& one) { return !is_in(one.worker) && !is_finishing(one.worker); });
  const size_t quorum =
      std::min<size_t>(std::max(spec.quorum, 1u), body.contributors.size() + static_cast<size_t>(may_come));
  const bool patient = spec.quorum == 0 && spec.deadline.count() == 0;
  if (patient || body.contributors.size() < quorum) {
    if (spec.participants != 0 && views_.size() > 1)
      return "";  // drawn of the members that there were when it was begun
    return " was decided with " + std::to_string(body.contributors.size()) + " contributions, without worker " +
           std::to_string(absent.front()) + " and without a quorum";
  }
  if (spec.mode != protocol::Mode::kBoundedStaleness) return "";
  for (const uint32_t worker : absent) {
    uint64_t left_out = 1;
    for (const DecidedStep* one = find(part, before); one != nullptr; one = find(part, one->before), ++left_out) {
      if (std::ranges::find(one->contributors, worker, &protocol::ContributorId::worker) != one->contributors.end())
        break;
    }
    if (left_out > spec.staleness)
      return " leaves out worker " + std::to_string(worker) + " for the " + std::to_string(left_out) +
             "th time in a row";
  }
  return "";
}

void ClusterOracle::check_values(uint32_t part, uint64_t step, const DecidedStep& decided) {
  const protocol::BucketLayout& bucket = layout_.buckets[layout_.parts[part].bucket];
  const bool exact = bucket.codec_down.value == ValueCodecId::kRaw || is_dense_step(bucket, step);
  // A quantizer rounds to the next level: at most one level of its bucket's scale away.
  double bound = 0;
  for (float value : decided.sum) {
    const double magnitude = std::fabs(static_cast<double>(value));
    bound = bucket.codec_down.qsgd_scale_max ? std::max(bound, magnitude) : std::hypot(bound, magnitude);
  }
  bound = bound / ((1u << (bucket.codec_down.qsgd_bits - 1)) - 1) * 1.001;
  std::vector<float> carried(decided.sum.size(), 0.0f);
  const Stream& update = decided.update;
  for (size_t i = 0; i < update.values.size(); ++i) carried[update.dense ? i : update.indices[i]] = update.values[i];
  for (size_t i = 0; i < carried.size(); ++i) {
    if (!decided.carried[i]) continue;
    const bool right = exact
                           ? carried[i] == decided.sum[i]
                           : std::fabs(static_cast<double>(carried[i]) - static_cast<double>(decided.sum[i])) <= bound;
    if (!right) {
      return fault(at(part, step) + " index " + std::to_string(i) + ": the update says " + std::to_string(carried[i]) +
                   ", the contributions add up to " + std::to_string(decided.sum[i]));
    }
  }
}

void ClusterOracle::check_cut(uint32_t bucket_number, uint64_t step) {
  const protocol::BucketLayout& bucket = layout_.buckets[bucket_number];
  const bool whole = bucket.reselect.reselect == protocol::Reselect::kNone || is_dense_step(bucket, step);
  for (uint32_t p = bucket.first_part; p < bucket.first_part + bucket.part_count; ++p) {
    const DecidedStep* decided = newest(p, step);
    if (decided == nullptr || log_[p][step].size() > 1) return;
    if (decided->whole_sum != whole) return fault(at(p, step) + (whole ? " was cut" : " was not cut"));
    // Parts that were decided by other members were cut by other histograms: sizes are then not exact, rightly.
    if (decided->contributors != newest(bucket.first_part, step)->contributors) return;
  }
  const bool exact_step = step % bucket.reselect.threshold_period == 0;
  if (whole || bucket.codec_down.index == IndexCodecId::kBloom) return;
  if (!exact_step) return check_reuse_size(bucket_number, step, reselect_k(bucket));
  if (!approximate_cuts_) check_cut_entries(bucket_number, step, reselect_k(bucket));
}

/// By an older threshold an update has at most 2 % more than k entries. Of one shard: two may go by different
/// agreements.
void ClusterOracle::check_reuse_size(uint32_t bucket_number, uint64_t step, uint64_t k) {
  if (approximate_cuts_) return;
  const protocol::BucketLayout& bucket = layout_.buckets[bucket_number];
  uint64_t carried = 0;
  for (uint32_t p = bucket.first_part; p < bucket.first_part + bucket.part_count; ++p) {
    if (layout_.parts[p].shard != layout_.parts[bucket.first_part].shard) return;
    carried += newest(p, step)->update.count();
  }
  if (static_cast<double>(carried) > 1.02 * static_cast<double>(k) + 1) {
    fault("bucket " + std::to_string(bucket_number) + " step " + std::to_string(step) + ": " + std::to_string(carried) +
          " entries where " + std::to_string(k) + " are wanted");
  }
}

void ClusterOracle::check_cut_entries(uint32_t bucket_number, uint64_t step, uint64_t k) {
  const protocol::BucketLayout& bucket = layout_.buckets[bucket_number];
  struct Entry {
    float magnitude;
    uint64_t index;
    bool carried;
  };
  std::vector<Entry> entries;
  bool one_shard = true;
  for (uint32_t p = bucket.first_part; p < bucket.first_part + bucket.part_count; ++p) {
    const DecidedStep& decided = *newest(p, step);
    one_shard = one_shard && layout_.parts[p].shard == layout_.parts[bucket.first_part].shard;
    for (size_t i = 0; i < decided.sum.size(); ++i) {
      const bool zero = MagnitudeHistogram::bin_of(decided.sum[i]) == 0;
      if (zero && decided.carried[i] && !decided.update.dense) fault(at(p, step) + ": a zero was selected");
      if (!zero)
        entries.push_back(
            {std::fabs(decided.sum[i]), layout_.parts[p].begin + i, static_cast<bool>(decided.carried[i])});
    }
  }
  const auto carried = static_cast<uint64_t>(
      std::count_if(entries.begin(), entries.end(), [](const Entry& entry) { return entry.carried; }));
  const std::string where = "bucket " + std::to_string(bucket_number) + " step " + std::to_string(step);
  const uint64_t expected = std::min<uint64_t>(k, entries.size());
  if (carried != expected)
    return fault(where + ": " + std::to_string(carried) + " entries instead of " + std::to_string(expected));
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.magnitude != b.magnitude ? a.magnitude > b.magnitude : a.index < b.index;
  });
  const uint32_t boundary =
      expected == 0 ? MagnitudeHistogram::kBins : MagnitudeHistogram::bin_of(entries[expected - 1].magnitude);
  for (size_t i = 0; i < entries.size(); ++i) {
    const bool should = i < expected;
    // Several shards share the boundary bin by quota; above and below it there is no choice.
    if (!one_shard && MagnitudeHistogram::bin_of(entries[i].magnitude) == boundary) continue;
    if (entries[i].carried == should) continue;
    return fault(where + ": not the " + std::to_string(expected) + " largest: index " +
                 std::to_string(entries[i].index) + " of magnitude " + std::to_string(entries[i].magnitude) +
                 ", rank " + std::to_string(i) + (should ? ", is missing" : ", is there"));
  }
}

}  // namespace millrace::testing
