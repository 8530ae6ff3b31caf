#pragma once

#include <type_traits>

#include "protocol/datagram/header.h"
#include "protocol/job/job_spec.h"
#include "protocol/job/option_info.h"

/// The fields of a job specification, once, in their order on the wire: the one source of a job's options. The bytes,
/// the comparison between workers, flags, files, the table of worker/OPTIONS.md and tests visit it. A plain
/// option is a member of a group in worker/include/millrace/options.h and a line here. A new line is a new version of
/// the bytes (protocol/wire/versions.md).
///
/// A visitor has option(info, value&) for names, integers, enums, f64, durations and flags. It has text(info, value&,
/// visit) for values with a text form of their own and several fields on the wire. It has words(info, text&) for the
/// recipe, and group(name, value&, visit) for options that a prefix joins. Inside of a text it has field(name, value&).
/// For an override that may be absent it has optional(name, value&, visit).
namespace millrace::protocol::fields {

template <typename Visitor, typename Spec>
void visit_selection(Visitor& v, Spec& spec) {
  v.field("selection", spec.selection);
  v.field("density", spec.density);
  v.field("k", spec.k);
  v.field("threshold", spec.threshold);
  v.field("period", spec.period);
  v.field("bucket_size", spec.bucket_size);
  v.field("variance", spec.variance);
  v.field("iterations", spec.iterations);
  v.field("alternate_signs", spec.alternate_signs);
  v.field("warm_up", spec.warm_up);
  v.field("warm_up_steps", spec.warm_up_steps);
}

template <typename Visitor, typename Spec>
void visit_reselect(Visitor& v, Spec& spec) {
  v.field("reselect", spec.reselect);
  v.field("density", spec.density);
  v.field("k", spec.k);
  v.field("threshold_period", spec.threshold_period);
}

template <typename Visitor, typename Spec>
void visit_codec(Visitor& v, Spec& spec) {
  v.field("automatic", spec.automatic);
  v.field("index", spec.index);
  v.field("value", spec.value);
  v.field("bloom_false_positive_rate", spec.bloom_false_positive_rate);
  v.field("qsgd_bits", spec.qsgd_bits);
  v.field("bucket_size", spec.bucket_size);
  v.field("qsgd_scale_max", spec.qsgd_scale_max);
  v.field("sparsity_multiplier", spec.sparsity_multiplier);
}

template <typename Visitor, typename Spec>
void visit_momentum(Visitor& v, Spec& spec) {
  v.field("momentum", spec.momentum);
  v.field("factor", spec.factor);
  v.field("masked", spec.masked);
}

template <typename Visitor, typename Tensor>
void visit_tensor(Visitor& v, Tensor& tensor) {
  v.field("name", tensor.name);
  v.field("dimension", tensor.dimension);
  v.field("value_type", tensor.value_type);
  v.field("priority", tensor.priority);
  v.optional("select", tensor.select, [](auto& to, auto& spec) { visit_selection(to, spec); });
  v.optional("reselect", tensor.reselect, [](auto& to, auto& spec) { visit_reselect(to, spec); });
  v.optional("codec_up", tensor.codec_up, [](auto& to, auto& spec) { visit_codec(to, spec); });
  v.optional("codec_down", tensor.codec_down, [](auto& to, auto& spec) { visit_codec(to, spec); });
}

/// Returns a base of a record that may be const.
template <typename Base, typename Record>
auto& base_of(Record& record) {
  if constexpr (std::is_const_v<Record>) {
    return static_cast<const Base&>(record);
  } else {
    return static_cast<Base&>(record);
  }
}

template <typename Visitor, typename Spec>
void visit_optimizer(Visitor& v, Spec& spec) {
  v.field("optimizer", spec.optimizer);
  v.field("rate", spec.rate);
  v.field("momentum", spec.momentum);
  v.field("decay", spec.decay);
  v.field("epsilon", spec.epsilon);
}

template <typename Visitor, typename Spec>
void visit_window_codecs(Visitor& v, Spec& spec) {
  v.field("index", spec.index);
  v.field("value", spec.value);
}

template <typename Visitor, typename Spec>
void visit_switch(Visitor& v, Spec& spec) {
  using enum OptionGroup;
  v.option(
      {.name = "address", .group = kSwitch, .help = "of the switch's datagrams", .quantity = OptionQuantity::kAddress},
      spec.address);
  v.option({"job", kSwitch, "the job's number at the switch"}, spec.job);
  v.option({.name = "slots",
            .group = kSwitch,
            .help = "windows under way at a time, as the switch reserved them",
            .least = 1,
            .most = kSlotsMax},
           spec.slots);
  v.option({.name = "lanes",
            .group = kSwitch,
            .help = "cores of the switch that share the windows; it divides slots",
            .least = 1,
            .most = kLanesMax},
           spec.lanes);
  v.option({.name = "packet_bytes",
            .group = kSwitch,
            .help = "UDP payload of the path: 1472 in an MTU of 1500, 8972 in one of 9000",
            .least = kSwitchPacketBytesMin,
            .most = kDatagramBytesMax},
           spec.packet_bytes_max);
  v.text({"codec", kSwitch,
          "of datagrams: auto, or INDEX+VALUE of raw, gap, bitmap, bloom and fixed16, fixed32, qsgd8, "
          "qsgd4"},
         base_of<SwitchCodecs>(spec), [](auto& to, auto& part) { visit_window_codecs(to, part); });
  v.option({.name = "return_after",
            .group = kSwitch,
            .help = "the job returns to a switch that has answered for this time",
            .most = kDayMs},
           spec.return_after);
}

template <typename Visitor, typename Spec>
void visit_grid(Visitor& v, Spec& spec) {
  v.field("block_indices", spec.block_indices);
  v.field("exponent_initial", spec.exponent_initial);
}

/// How steps advance: the fields of millrace::Consistency.
template <typename Visitor, typename Spec>
void visit_consistency(Visitor& v, Spec& spec) {
  using enum OptionGroup;
  v.option({"mode", kConsistency,
            "workers of a step; synchronous: all; bounded_staleness: all but slow ones; partial: those in time; "
            "asynchronous: one"},
           spec.mode);
  v.option({.name = "staleness",
            .group = kConsistency,
            .help = "steps that may be pushed ahead of the last update",
            .most = kStalenessMax},
           spec.staleness);
  v.option({.name = "quorum",
            .group = kConsistency,
            .help = "contributions that a step needs before it is decided",
            .most = kWorkersMax},
           spec.quorum);
  v.option({.name = "deadline",
            .group = kConsistency,
            .help = "time for which a step with its quorum waits for the others",
            .most = kDayMs},
           spec.deadline);
  v.option({.name = "participants",
            .group = kConsistency,
            .help = "mode partial: workers drawn for each step; 0: all",
            .most = kWorkersMax},
           spec.participants);
}

/// Times after which silence counts: the fields of millrace::Liveness.
template <typename Visitor, typename Spec>
void visit_liveness(Visitor& v, Spec& spec) {
  using enum OptionGroup;
  v.option({.name = "dead_after",
            .group = kTiming,
            .help = "the shards evict a worker that sends nothing for this time",
            .most = kDayMs},
           spec.dead_after);
  v.option({.name = "heartbeat",
            .group = kTiming,
            .help = "time between two signs of life of a worker",
            .least = 1,
            .most = kDayMs},
           spec.heartbeat);
  v.option({.name = "exchange_timeout",
            .group = kTiming,
            .help = "a shard waits this time for another's histogram",
            .least = 1,
            .most = kExchangeTimeoutMsMax},
           spec.exchange_timeout);
}

/// Everything but the tensors, which follow.
template <typename Visitor, typename Spec>
void visit_job(Visitor& v, Spec& spec) {
  using enum OptionGroup;
  const auto codec = [](auto& to, auto& part) { visit_codec(to, part); };
  v.option({.name = "name", .group = kJob, .help = "name of the job at the shards", .flag = "job", .least = 1},
           spec.name);
  v.option({.name = "workers",
            .group = kJob,
            .help = "the job starts when this number of workers has joined",
            .least = 1,
            .most = kWorkersMax},
           spec.workers);
  v.option({.name = "workers_min",
            .group = kJob,
            .help = "the job ends with an error when fewer workers live",
            .least = 1,
            .most = kWorkersMax},
           spec.workers_min);
  visit_consistency(v, spec);
  v.option({.name = "apply_after_acks",
            .group = kConsistency,
            .help = "an update is applied once this number of workers has it; 0: at once",
            .most = kWorkersMax},
           spec.apply_after_acks);
  v.option({"combine", kJob, "divisor of a step's sum"}, spec.combine);
  v.text({"select", kCompression, "the entries of a gradient that a step sends, as topk:0.01"}, spec.select,
         [](auto& to, auto& part) { visit_selection(to, part); });
  v.text({"reselect", kCompression, "the entries of the sum that return: none, or topk:DENSITY|COUNT[:PERIOD]"},
         spec.reselect, [](auto& to, auto& part) { visit_reselect(to, part); });
  v.text({"codec_up", kCompression, "codecs of contributions, as gap+qsgd4"}, spec.codec_up, codec);
  v.text({"codec_down", kCompression, "codecs of updates"}, spec.codec_down, codec);
  v.option({"codec_error", kCompression, "whether a codec's error stays in the residual"}, spec.codec_error);
  v.option({"non_finite", kCompression,
            "treatment of NaN and infinity in a gradient: the push fails, or the entry is dropped"},
           spec.non_finite);
  v.option({"unbiased", kCompression, "keeps no residual: the expected value of a contribution is the gradient"},
           spec.unbiased);
  v.text({"momentum", kCompression,
          "before the residual: none, or correction, nesterov, nesterov_printed with "
          ":FACTOR[:unmasked]"},
         spec.momentum, [](auto& to, auto& part) { visit_momentum(to, part); });
  v.option({.name = "clip",
            .group = kCompression,
            .help = "L2 norm that limits a step's combined gradient: each worker clips its own for that; 0: off",
            .most = 1e30},
           spec.clip);
  visit_liveness(v, spec);
  v.option({"seed", kJob, "of every random choice in the job"}, spec.seed);
  v.option({.name = "parts_per_shard",
            .group = kJob,
            .help = "parts of a bucket on a shard; 0: by expected entries",
            .most = kPartsPerShardMax},
           spec.parts_per_shard);
  v.option({"fuse_below", kJob, "neighbouring tensors below this dimension travel together"}, spec.fuse_below);
  v.option({"audit", kJob, "checks that no value is lost or counted twice"}, spec.audit);
  v.option({"history", kCompression, "codes indices against the updates that both sides have seen"}, spec.history);
  v.option({"reproducible", kJob, "the same bits for any order of arrival, number of shards and path"},
           spec.reproducible);
  v.option({"path", kSwitch, "the processes that add up the contributions"}, spec.path);
  v.group("switch", spec.switch_path, [](auto& to, auto& part) { visit_switch(to, part); });
  v.text({"grid", kSwitch,
          "binary grid of path switch and reproducible jobs, INDICES:EXPONENT; auto: 16384:-20, with --reproducible "
          "4096:-20"},
         spec.grid, [](auto& to, auto& part) { visit_grid(to, part); });
  v.option({"initial_weights", kJob, "whose weights the job begins with"}, spec.initial_weights);
  v.text({"store", kStore, "the rule by which the shards change weights that they hold, as adam:0.001"},
         spec.store.optimizer, [](auto& to, auto& part) { visit_optimizer(to, part); });
  v.option({"store_begin", kStore, "the store's first weights"}, spec.store.begin);
  v.words({"recipe", kJob, "other settings that must be equal at all workers: words KEY=VALUE"}, spec.recipe);
}

}  // namespace millrace::protocol::fields
