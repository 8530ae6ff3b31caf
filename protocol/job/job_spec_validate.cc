#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <unordered_set>

#include "kernels/codec/codec.h"
#include "kernels/codec/lossy_index_codec.h"
#include "kernels/select/select.h"
#include "protocol/base/limits.h"
#include "protocol/base/text.h"
#include "protocol/job/enum_words.h"
#include "protocol/job/job_spec.h"
#include "protocol/job/job_spec_fields.h"
#include "protocol/job/job_spec_mode.h"
#include "protocol/job/job_spec_reproducible.h"
#include "protocol/job/layout.h"
#include "protocol/job/step_sends.h"
#include "protocol/job/switch_layout.h"

/// validate(JobSpec). Each refusal is an item of protocol/job/REFUSED.md, and a test.
namespace millrace::protocol {
namespace {

std::unexpected<Error> refuse_spec(std::string sentence) {
  return fail(ErrorCode::kInvalidArgument, std::move(sentence));
}
std::unexpected<Error> reserved(std::string sentence) { return fail(ErrorCode::kUnsupported, std::move(sentence)); }

bool name_holds(const std::string& name) {
  return !name.empty() && name.size() <= kNameBytesMax && is_plain_text(name);
}

Status check_enums(const JobSpec& spec) {
  const bool all_known = known(spec.mode) && known(spec.combine) && known(spec.codec_error) && known(spec.non_finite) &&
                         known(spec.momentum.momentum) && known(spec.initial_weights);
  if (all_known) return {};
  return reserved(
      "mode, combine, codec_error, non_finite, momentum or initial_weights has a number that this version does not "
      "know");
}

bool leaves_workers_out(Mode mode) { return mode == Mode::kBoundedStaleness || mode == Mode::kPartial; }

/// Checks the values of the fields of steps that do not wait for all members.
Status check_absence(const JobSpec& spec) {
  const uint32_t expected = spec.participants != 0 ? spec.participants : spec.workers;
  if (spec.quorum > expected) {
    return refuse_spec(fmt::format("quorum {} is over the {} {}: no step would ever be decided", spec.quorum, expected,
                                   spec.participants != 0 ? "participants of a step" : "workers"));
  }
  if (spec.participants > spec.workers) {
    return refuse_spec(fmt::format("participants {} is over workers {}", spec.participants, spec.workers));
  }
  if (spec.mode == Mode::kBoundedStaleness && spec.staleness == 0) {
    return refuse_spec(
        "mode bounded_staleness with staleness 0 would wait for all workers in every step: that is mode synchronous");
  }
  return {};
}

Status check_mode(const JobSpec& spec) {
  if (spec.staleness > kStalenessMax) {
    return refuse_spec(fmt::format("staleness {} is over the limit of {}: a worker that far ahead needs another mode",
                                   spec.staleness, kStalenessMax));
  }
  if (const Status valid = check_mode_options(spec); !valid) return valid;
  if (const Status valid = check_absence(spec); !valid) return valid;
  if (spec.history && (spec.mode == Mode::kAsynchronous || spec.staleness != 0)) {
    return refuse_spec(
        "history codes a step's indices against the updates of all steps before it, and a worker that runs ahead lacks "
        "some: it needs staleness 0, and no mode asynchronous");
  }
  return {};
}

Status check_workers(const JobSpec& spec) {
  if (spec.workers < 1 || spec.workers > kWorkersMax) {
    return refuse_spec(fmt::format("workers is {}: a job has 1 to {}", spec.workers, kWorkersMax));
  }
  if (spec.apply_after_acks > spec.workers) {
    return refuse_spec(fmt::format("apply_after_acks {} is over workers {}: no update could ever have that many",
                                   spec.apply_after_acks, spec.workers));
  }
  if (spec.workers_min < 1)
    return refuse_spec("workers_min is 0: without a live worker there is no job, set it to 1 or more");
  if (spec.workers_min > spec.workers) {
    return refuse_spec(fmt::format("workers_min {} is over workers {}: the job would end before it starts",
                                   spec.workers_min, spec.workers));
  }
  if (spec.apply_after_acks > spec.workers_min) {
    return refuse_spec(
        fmt::format("apply_after_acks {} is over workers_min {}: with fewer live workers the job would stall, since no "
                    "update could have that many acknowledgements; raise workers_min",
                    spec.apply_after_acks, spec.workers_min));
  }
  return {};
}

/// Looks for a duration that does not fit the milliseconds of 32 bits on the wire.
struct DurationsOfJob {
  Status valid;

  void option(const OptionInfo& info, std::chrono::milliseconds value) {
    if (!valid || (value.count() >= 0 && value <= kDurationMax)) return;
    valid = refuse_spec(fmt::format("{} is {} ms: it takes 0 to {}", info.name, value.count(), kDurationMax.count()));
  }
  template <typename T>
  void option(const OptionInfo&, const T&) {}
  template <typename T, typename Visit>
  void text(const OptionInfo&, const T&, Visit) {}
  void words(const OptionInfo&, const std::string&) {}
  template <typename T, typename Visit>
  void group(std::string_view, const T& part, Visit visit) {
    visit(*this, part);
  }
};

Status check_durations(const JobSpec& spec) {
  DurationsOfJob durations;
  fields::visit_job(durations, spec);
  return durations.valid;
}

Status check_times(const JobSpec& spec) {
  if (const Status fits = check_durations(spec); !fits) return fits;
  if (spec.heartbeat.count() == 0)
    return refuse_spec(
        "heartbeat is 0: a silent worker could not be distinguished from a dead one, set it to 1 ms or more");
  if (spec.heartbeat * 3 > spec.dead_after) {
    return refuse_spec(
        fmt::format("dead_after {} ms is under three heartbeats of {} ms: two lost in a row would remove a live "
                    "worker, raise it or lower heartbeat",
                    spec.dead_after.count(), spec.heartbeat.count()));
  }
  if (spec.exchange_timeout.count() < 1 || spec.exchange_timeout.count() > kExchangeTimeoutMsMax) {
    return refuse_spec(fmt::format("exchange_timeout is {} ms: shards wait 1 to {} ms for each other's histograms",
                                   spec.exchange_timeout.count(), kExchangeTimeoutMsMax));
  }
  return {};
}

Status check_select(const SelectionSpec& spec, std::string_view where) {
  if (!known(spec.selection))
    return reserved(fmt::format("{}select: a selection that this version does not know", where));
  if (!std::isfinite(spec.density) || !std::isfinite(spec.threshold) || !std::isfinite(spec.variance)) {
    return refuse_spec(fmt::format("{}select: density, threshold and variance must be finite numbers", where));
  }
  if (const Status valid = millrace::validate(spec); !valid) {
    return fail(valid.error().code, fmt::format("{}select: {}", where, valid.error().message));
  }
  return {};
}

Status check_reselect(const JobSpec& job, const ReselectSpec& spec, std::string_view where) {
  if (!known(spec.reselect)) return reserved(fmt::format("{}reselect: a kind that this version does not know", where));
  if (!std::isfinite(spec.density))
    return refuse_spec(fmt::format("{}reselect: density must be a finite number", where));
  if (spec.reselect == Reselect::kNone) return {};
  if (job.mode == Mode::kAsynchronous) {
    return refuse_spec(fmt::format(
        "{}reselect: in mode asynchronous an update is one worker's contribution, and shards' logs have no steps in "
        "common that a threshold could be for; set reselect none, and select fewer entries",
        where));
  }
  if (spec.k == 0 && !(spec.density > 0 && spec.density <= 1)) {
    return refuse_spec(fmt::format("{}reselect: topk needs k, or a density in (0, 1]", where));
  }
  if (spec.threshold_period == 0) {
    return refuse_spec(fmt::format(
        "{}reselect: threshold_period is 0, the threshold would never be agreed on; 1 agrees at every step", where));
  }
  if (spec.threshold_period > kThresholdPeriodMax) {
    return refuse_spec(fmt::format("{}reselect: threshold_period is {}, the limit is {}", where, spec.threshold_period,
                                   kThresholdPeriodMax));
  }
  return {};
}

Status check_spec_codec(const CodecSpec& spec, std::string_view which, std::string_view where) {
  if (!known(spec.index) || !known(spec.value)) {
    return reserved(fmt::format("{}{}: a codec that this version does not know", where, which));
  }
  if (const Status valid = millrace::validate(spec); !valid) {
    return fail(valid.error().code, fmt::format("{}{}: {}", where, which, valid.error().message));
  }
  return {};
}

/// Checks that the job's rules tolerate the codec's error on the way up or down.
Status check_codec_up(const JobSpec& spec, const CodecSpec& up, std::string_view where) {
  if (spec.codec_error != CodecError::kRetain) return {};
  const ValueCodec& value = *find_value_codec(up.value);
  if (!value.contraction(up)) {
    CodecSpec by_maximum = up;
    by_maximum.qsgd_scale_max = true;
    return refuse_spec(fmt::format(
        "{}codec_up: {} is no contraction, under codec_error retain its error feeds on itself and the residual "
        "explodes, or stays at several gradients; {}set codec_error drop",
        where, value.text(up),
        value.contraction(by_maximum) ? fmt::format("scale by the maximum ({}) or ", value.text(by_maximum)) : ""));
  }
  const PickingIndexCodec* picking = picking_codec(*find_index_codec(up.index));
  if (picking != nullptr && picking->by_position()) {
    return refuse_spec(
        fmt::format("{}codec_up: {} sends values to other indices than theirs and is no contraction, under codec_error "
                    "retain its error feeds on itself; use bloom_p0, or set codec_error drop",
                    where, picking->name()));
  }
  return {};
}

Status check_codec_down(const CodecSpec& down, std::string_view where) {
  const ValueCodec& value = *find_value_codec(down.value);
  if (!value.unbiased(down)) {
    return refuse_spec(fmt::format(
        "{}codec_down: {} rounds with a bias, and no residual would take its error; use raw or qsgd8, whose error is 0 "
        "in expectation",
        where, value.text(down)));
  }
  const IndexCodec& index = *find_index_codec(down.index);
  if (picking_codec(index) == nullptr) return {};
  return refuse_spec(fmt::format(
      "{}codec_down: {} leaves out entries of the update, and no residual would take them; use it on the way "
      "up, or bloom_p0",
      where, index.name()));
}

/// Checks that an unbiased job keeps no residual, does not select by magnitude, and sends only drawn entries.
Status check_unbiased(const JobSpec& spec, const SelectionSpec& select, const ReselectSpec& reselect,
                      const CodecSpec& up, std::string_view where) {
  const SelectionUse use = find_selection(select.selection)->use;
  if (!spec.unbiased) {
    if (use != SelectionUse::kUnbiased) return {};
    return refuse_spec(fmt::format(
        "{}select: {} sends more than an entry's value where it draws it, to make up for when it does not; a "
        "residual would make up for it a second time; set unbiased on",
        where, selection_name(select.selection)));
  }
  if (use == SelectionUse::kWithResidual) {
    return refuse_spec(fmt::format(
        "{}select: {} sends the largest and keeps the rest in a residual, an unbiased job keeps none: the "
        "entries that are left out, always the small ones, would be lost; set select none, or one that draws (random, "
        "gspar), or unbiased off",
        where, selection_name(select.selection)));
  }
  if (reselect.reselect != Reselect::kNone) {
    return refuse_spec(
        fmt::format("{}reselect: the entries that an update omits would have to return to a residual, an unbiased "
                    "job keeps none; set reselect none, or unbiased off",
                    where));
  }
  if (!find_value_codec(up.value)->unbiased(up)) {
    return refuse_spec(fmt::format(
        "{}codec_up: {} rounds with a bias: the sent values would not be the gradient in expectation; use qsgd4 or "
        "terngrad, or set unbiased off",
        where, find_value_codec(up.value)->text(up)));
  }
  if (!find_index_codec(up.index)->lossless()) {
    return refuse_spec(
        fmt::format("{}codec_up: {} adds entries that no draw chose, unscaled: the sent values would not be the "
                    "gradient in expectation; use gap",
                    where, find_index_codec(up.index)->name()));
  }
  return {};
}

/// Checks momentum, clipping and unbiased, as far as the job decides them.
Status check_entering(const JobSpec& spec) {
  const MomentumSpec& momentum = spec.momentum;
  if (momentum.momentum != Momentum::kNone && !(momentum.factor > 0 && momentum.factor < 1)) {
    return refuse_spec(
        fmt::format("momentum: factor {} is not in (0, 1): from 1 on the entered values never fade", momentum.factor));
  }
  if (!std::isfinite(momentum.factor)) return refuse_spec("momentum: factor must be a finite number");
  if (!(spec.clip >= 0) || !std::isfinite(spec.clip)) {
    return refuse_spec(fmt::format("clip is {}: the norm to clip at is a positive number, 0 does not clip", spec.clip));
  }
  if (!spec.unbiased) return {};
  if (spec.codec_error == CodecError::kRetain) {
    return refuse_spec(
        "codec_error retain keeps the quantizer's error in a residual, an unbiased job keeps none; set codec_error "
        "drop, or unbiased off");
  }
  if (momentum.momentum != Momentum::kNone && momentum.masked) {
    return refuse_spec(
        "momentum with masking in an unbiased job: the mask follows the draws, so that the sent values are no longer "
        "the momentum in expectation; use it unmasked, or set unbiased off");
  }
  return {};
}

Status check_store(const JobSpec& job) {
  const StoreSpec& spec = job.store;
  const MomentumSpec& entering = job.momentum;
  if (!known(spec.optimizer.optimizer) || !known(spec.begin))
    return reserved("store: an optimizer or a beginning that this version does not know");
  if (const Status valid = millrace::validate(spec.optimizer); !valid) {
    return fail(valid.error().code, fmt::format("store: {}", valid.error().message));
  }
  if (spec.optimizer.optimizer == Optimizer::kNone && spec.begin != StoreBegin::kZeros) {
    return refuse_spec(
        fmt::format("store_begin {} without a store: name the store's optimizer, as sgd:0.1", enum_word(spec.begin)));
  }
  if (spec.optimizer.optimizer != Optimizer::kNone && applies_after_acks(job)) {
    return refuse_spec(
        "apply_after_acks with a store: its weights have an update as soon as it is decided, before any worker has "
        "acknowledged it, and may be pulled; set apply_after_acks 0, or no store");
  }
  if (spec.optimizer.momentum > 0 && entering.momentum != Momentum::kNone) {
    return refuse_spec(
        fmt::format("store {} with momentum {}: the workers send a momentum already, and it would be averaged twice; "
                    "set momentum none, or the store to sgd or adagrad",
                    optimizer_name(spec.optimizer.optimizer), enum_word(entering.momentum)));
  }
  return {};
}

/// Refuses features that a switch cannot support: it holds the open turns and no history, and waits for every live
/// worker.
Status check_switch_combination(const JobSpec& spec) {
  if (spec.workers > kSwitchWorkersMax) {
    return refuse_spec(fmt::format("path switch takes up to {} workers (a bit each in every result), this job has {}",
                                   kSwitchWorkersMax, spec.workers));
  }
  if (spec.mode != Mode::kSynchronous || spec.staleness != 0) {
    return refuse_spec(
        "path switch is for mode synchronous with staleness 0: a switch closes a turn when every live worker has "
        "answered; set path server");
  }
  if (spec.combine == Combine::kWeightedMean) {
    return refuse_spec(
        "path switch with combine weighted_mean: datagrams carry no weights; set combine mean, or path server");
  }
  if (spec.unbiased) {
    return refuse_spec(
        "path switch rounds to a grid and keeps the rest in a residual, an unbiased job keeps none; set path server");
  }
  if (spec.has_store())
    return refuse_spec("path switch with a store: the shards do not see the updates; set path server");
  if (spec.history)
    return refuse_spec("path switch with history: datagrams have index codes of their own; set history off");
  if (applies_after_acks(spec))
    return refuse_spec("path switch with apply_after_acks: there are no acknowledgements; set it to 0");
  if (spec.initial_weights != InitialWeights::kOwn) {
    return refuse_spec(
        "path switch with initial_weights first: not in this version; begin with equal weights, or set path server");
  }
  const auto own = std::ranges::find_if(
      spec.tensors, [&](const TensorSpec& tensor) { return tensor.reselect && *tensor.reselect != spec.reselect; });
  if (own != spec.tensors.end()) {
    return refuse_spec(fmt::format(
        "tensor '{}': path switch re-selects over all tensors by one threshold; leave out the reselect of its own",
        own->name));
  }
  return {};
}

Status check_switch(const JobSpec& spec) {
  const SwitchSpec& at = spec.switch_path;
  if (!known(spec.path) || !known(at.index) || !known(at.value)) {
    return reserved("path, or a codec of the switch, has a number that this version does not know");
  }
  if (spec.path == Path::kServer && !(at == SwitchSpec{})) {
    return refuse_spec("the switch's options are given and path is server: set path switch, or leave them out");
  }
  if (spec.path == Path::kServer) return {};
  if (at.address.empty() || at.address.size() > kAddressBytesMax || !is_plain_text(at.address)) {
    return refuse_spec("path switch needs the switch's address, as 192.0.2.7:7600");
  }
  if (at.slots < 1 || at.slots > kSlotsMax) {
    return refuse_spec(fmt::format("switch: {} slots, it takes 1 to {}", at.slots, kSlotsMax));
  }
  if (at.lanes < 1 || at.lanes > kLanesMax || at.slots % at.lanes != 0) {
    return refuse_spec(fmt::format("switch: {} slots on {} lanes, it takes 1 to {} lanes of as many slots each",
                                   at.slots, at.lanes, kLanesMax));
  }
  if (at.job > std::numeric_limits<uint32_t>::max() - (at.lanes - 1)) {
    return refuse_spec(fmt::format("switch: job {} of {} lanes: each lane has a number, from the job's on, of 32 bits",
                                   at.job, at.lanes));
  }
  if (at.packet_bytes_max < kSwitchPacketBytesMin || at.packet_bytes_max > kDatagramBytesMax) {
    return refuse_spec(
        fmt::format("switch: packets of {} bytes, they take {} to {}: 1472 fits an MTU of 1500, 8972 one of 9000",
                    at.packet_bytes_max, kSwitchPacketBytesMin, kDatagramBytesMax));
  }
  if (at.index == WindowIndexCodec::kDense || at.value == WindowValueCodec::kNone) {
    return refuse_spec(
        "switch: the index codec is raw, gap, bitmap or bloom, the value codec fixed16, fixed32, qsgd8 or qsgd4");
  }
  return check_switch_combination(spec);
}

/// Checks the job's defaults, which every tensor without overrides takes.
Status check_defaults(const JobSpec& spec) {
  if (Status s = check_select(spec.select, ""); !s) return s;
  if (Status s = check_reselect(spec, spec.reselect, ""); !s) return s;
  if (Status s = check_spec_codec(spec.codec_up, "codec_up", ""); !s) return s;
  if (Status s = check_spec_codec(spec.codec_down, "codec_down", ""); !s) return s;
  if (Status s = check_codec_up(spec, spec.codec_up, ""); !s) return s;
  if (Status s = check_codec_down(spec.codec_down, ""); !s) return s;
  if (Status s = check_entering(spec); !s) return s;
  return check_unbiased(spec, spec.select, spec.reselect, spec.codec_up, "");
}

/// Refuses jobs in which shards could not return an uncompressed step whole and without loss.
Status check_uncompressed(const JobSpec& spec, const TensorSpec& tensor, std::string_view where) {
  const SelectionSpec select = tensor.select.value_or(spec.select);
  if (!sends_uncompressed(select, tensor.dimension)) return {};
  const bool reselects = tensor.reselect.value_or(spec.reselect).reselect != Reselect::kNone;
  if (reselects && (spec.path == Path::kSwitch || spec.reproducible)) {
    return refuse_spec(fmt::format(
        "{}select: the tensor is sent uncompressed (dense first steps, or a size that by_size leaves alone), and {} "
        "would cut its update all the same; set reselect none, or a select that compresses in every step",
        where, spec.path == Path::kSwitch ? "a switch" : "the count of the step before, in a reproducible job,"));
  }
  const CodecSpec down = tensor.codec_down.value_or(spec.codec_down);
  const bool has_dense_steps = resolved_by_size(select, tensor.dimension).warm_up == WarmUp::kDense;
  if (spec.mode == Mode::kAsynchronous && has_dense_steps && is_lossy(down)) {
    return refuse_spec(fmt::format(
        "{}codec_down: {} changes values, and in mode asynchronous shards cannot tell which updates are of a worker's "
        "dense first steps; use a codec without loss, or a select without dense=STEPS",
        where, codec_text(down)));
  }
  return {};
}

Status check_tensor(const JobSpec& spec, const TensorSpec& tensor) {
  const std::string where = fmt::format("tensor '{}': ", tensor.name);
  if (tensor.dimension < 1 || tensor.dimension > kDimensionMax) {
    return refuse_spec(fmt::format("{}dimension {} is not in 1 to 2^32: indices are 32 bits, split a larger tensor",
                                   where, tensor.dimension));
  }
  if (tensor.value_type != ValueType::kF32) {
    return reserved(
        fmt::format("{}value type f64 is reserved: this version carries f32; convert the values and name f32", where));
  }
  if (tensor.select) {
    if (Status s = check_select(*tensor.select, where); !s) return s;
  }
  if (tensor.reselect) {
    if (Status s = check_reselect(spec, *tensor.reselect, where); !s) return s;
  }
  if (tensor.codec_down) {
    if (Status s = check_spec_codec(*tensor.codec_down, "codec_down", where); !s) return s;
    if (Status s = check_codec_down(*tensor.codec_down, where); !s) return s;
  }
  if (tensor.codec_up) {
    if (Status s = check_spec_codec(*tensor.codec_up, "codec_up", where); !s) return s;
    if (Status s = check_codec_up(spec, *tensor.codec_up, where); !s) return s;
  }
  if (Status s = check_uncompressed(spec, tensor, where); !s) return s;
  return check_unbiased(spec, tensor.select.value_or(spec.select), tensor.reselect.value_or(spec.reselect),
                        tensor.codec_up.value_or(spec.codec_up), where);
}

Status check_tensors(const JobSpec& spec) {
  if (spec.tensors.empty()) return refuse_spec("the job has no tensors: name at least one");
  if (spec.tensors.size() > kTensorsMax) {
    return fail(ErrorCode::kLimitExceeded,
                fmt::format("{} tensors, the limit is {}", spec.tensors.size(), kTensorsMax));
  }
  std::unordered_set<std::string_view> names;
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    const TensorSpec& tensor = spec.tensors[i];
    if (!name_holds(tensor.name)) {
      return refuse_spec(fmt::format("tensor {}: its name must be printable text of 1 to {} bytes", i, kNameBytesMax));
    }
    if (!names.insert(tensor.name).second) {
      return refuse_spec(fmt::format("two tensors have the name '{}': a name stands for one tensor", tensor.name));
    }
    if (Status s = check_tensor(spec, tensor); !s) return s;
  }
  return {};
}

Status check_switch_layout(const SwitchLayout& layout) {
  if (layout.dimension > kSwitchDimensionMax) {
    return refuse_spec(fmt::format(
        "path switch takes up to 2^32 - 1 indices of all tensors together, each bucket from a new window on; these are "
        "{}: set path server",
        layout.dimension));
  }
  if (layout.windows < layout.lanes) {
    return refuse_spec(
        fmt::format("switch: {} lanes, and the job has {} windows of {} indices: fewer lanes, or smaller "
                    "blocks of the grid",
                    layout.lanes, layout.windows, layout.window_indices));
  }
  if (layout.reselect_k != 0 && layout.reselect_k < layout.lanes) {
    return refuse_spec(fmt::format("switch: {} lanes, and an update has {} entries, which they share: fewer lanes",
                                   layout.lanes, layout.reselect_k));
  }
  return {};
}

/// Checks the limits that depend on the buckets after small tensors are fused.
Status check_buckets(const JobSpec& spec) {
  if (spec.parts_per_shard > kPartsPerShardMax) {
    return refuse_spec(fmt::format("parts_per_shard {} is over the limit of {}: 0 lets it follow the expected entries",
                                   spec.parts_per_shard, kPartsPerShardMax));
  }
  JobSpec planned = spec;
  planned.parts_per_shard = 1;  // the buckets are asked for, not the parts
  const JobLayout layout = plan_layout(planned, 1);
  if (uint64_t{spec.parts_per_shard} * layout.buckets.size() > kPartsMax) {
    return fail(ErrorCode::kLimitExceeded,
                fmt::format("parts_per_shard {} of {} buckets are over {} parts: 0 lets it follow the expected entries",
                            spec.parts_per_shard, layout.buckets.size(), kPartsMax));
  }
  if (spec.path == Path::kSwitch) {
    if (const Status fits = check_switch_layout(plan_switch_layout(spec, layout)); !fits) return fits;
  }
  for (const BucketLayout& bucket : layout.buckets) {
    for (const CodecSpec& codec : {bucket.codec_up, bucket.codec_down}) {
      const IndexCodec& index = *find_index_codec(codec.index);
      if (bucket.dimension <= index.dimension_max()) continue;
      return refuse_spec(fmt::format(
          "tensor '{}'{}: index codec {} takes dimensions up to {}, this is {}: its decoder asks for every index; use "
          "gap",
          spec.tensors[bucket.members.front().tensor].name, bucket.members.size() > 1 ? " and those fused with it" : "",
          index.name(), index.dimension_max(), bucket.dimension));
    }
  }
  return {};
}

}  // namespace

Status check_mode_options(const JobSpec& spec) {
  const auto refuse = [&](std::string_view option, std::string_view owners) {
    return refuse_spec(fmt::format("{0} belongs to {1}, and this job has mode {2}: change the mode, or leave {0} out",
                                   option, owners, enum_word(spec.mode)));
  };
  constexpr std::string_view kOwners = "modes partial and bounded_staleness";
  const bool leaves_out = leaves_workers_out(spec.mode);
  if (spec.quorum != 0 && !leaves_out) return refuse("quorum", kOwners);
  if (spec.deadline != std::chrono::milliseconds::zero() && !leaves_out) return refuse("deadline", kOwners);
  if (spec.participants != 0 && spec.mode != Mode::kPartial) return refuse("participants", "mode partial");
  if (spec.participants != 0 && spec.staleness != 0) {
    return refuse_spec(
        "participants with staleness: a worker that is not drawn for a step must not be past it when another worker's "
        "death draws it after all; set staleness to 0");
  }
  const bool waits = spec.quorum != 0 || spec.deadline != std::chrono::milliseconds::zero() || spec.participants != 0;
  if (leaves_out && !waits) {
    return refuse_spec(fmt::format(
        "mode {} needs a quorum or a deadline (or, in mode partial, participants): the first contribution would "
        "decide every step alone; a quorum of all workers but one, for example, leaves out the slowest",
        enum_word(spec.mode)));
  }
  return {};
}

Status validate(const JobSpec& spec) {
  if (!name_holds(spec.name)) {
    return refuse_spec(fmt::format("a job's name must be printable text of 1 to {} bytes", kNameBytesMax));
  }
  if (spec.recipe.size() > kRecipeBytesMax || !is_plain_text(spec.recipe)) {
    return refuse_spec(
        fmt::format("recipe: {} bytes; it must be printable text of at most {}, words KEY=VALUE; give a hash of "
                    "longer values",
                    spec.recipe.size(), kRecipeBytesMax));
  }
  if (Status s = check_enums(spec); !s) return s;
  if (Status s = check_workers(spec); !s) return s;
  if (Status s = check_mode(spec); !s) return s;
  if (Status s = check_times(spec); !s) return s;
  if (Status s = check_defaults(spec); !s) return s;
  if (Status s = check_tensors(spec); !s) return s;
  if (Status s = check_store(spec); !s) return s;
  if (Status s = check_grid(spec.grid); !s) return s;
  if (Status s = check_reproducible(spec); !s) return s;
  if (Status s = check_switch(spec); !s) return s;
  if (Status s = check_buckets(spec); !s) return s;
  if (const size_t bytes = encode_job_spec(spec).size(); bytes > kJobSpecBytesMax) {
    return fail(ErrorCode::kLimitExceeded,
                fmt::format("the job specification takes {} bytes, the limit is {}: fewer tensors, or shorter names",
                            bytes, kJobSpecBytesMax));
  }
  return {};
}

}  // namespace millrace::protocol
