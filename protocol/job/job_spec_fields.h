#pragma once

#include <utility>

#include "protocol/job/job_spec.h"

/// The fields of a job specification, once, in their order on the wire. The encoder, the decoder and first_difference()
/// are visitors over this list, so none of them can forget a field. Internal to protocol/.
///
/// A visitor has field(name, value&) for names, integers, enums, f64 and flags. It has words(name, text&) for the
/// recipe, and optional(name, value&, visit) for an override that may be absent.
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

template <typename Visitor, typename Spec>
void visit_store(Visitor& v, Spec& spec) {
  v.field("optimizer", spec.optimizer.optimizer);
  v.field("rate", spec.optimizer.rate);
  v.field("momentum", spec.optimizer.momentum);
  v.field("decay", spec.optimizer.decay);
  v.field("epsilon", spec.optimizer.epsilon);
  v.field("begin", spec.begin);
}

template <typename Visitor, typename Spec>
void visit_switch(Visitor& v, Spec& spec) {
  v.field("address", spec.address);
  v.field("job", spec.job);
  v.field("slots", spec.slots);
  v.field("lanes", spec.lanes);
  v.field("packet_bytes_max", spec.packet_bytes_max);
  v.field("index", spec.index);
  v.field("value", spec.value);
  v.field("return_after_ms", spec.return_after_ms);
}

template <typename Visitor, typename Spec>
void visit_grid(Visitor& v, Spec& spec) {
  v.field("block_indices", spec.block_indices);
  v.field("exponent_initial", spec.exponent_initial);
}

/// Everything but the tensors, which follow.
template <typename Visitor, typename Spec>
void visit_job(Visitor& v, Spec& spec) {
  v.field("name", spec.name);
  v.field("workers", spec.workers);
  v.field("workers_min", spec.workers_min);
  v.field("mode", spec.mode);
  v.field("staleness", spec.staleness);
  v.field("quorum", spec.quorum);
  v.field("deadline_ms", spec.deadline_ms);
  v.field("participants", spec.participants);
  v.field("apply_after_acks", spec.apply_after_acks);
  v.field("combine", spec.combine);
  v.group("select", spec.select, [](auto& to, auto& part) { visit_selection(to, part); });
  v.group("reselect", spec.reselect, [](auto& to, auto& part) { visit_reselect(to, part); });
  v.group("codec_up", spec.codec_up, [](auto& to, auto& part) { visit_codec(to, part); });
  v.group("codec_down", spec.codec_down, [](auto& to, auto& part) { visit_codec(to, part); });
  v.field("codec_error", spec.codec_error);
  v.field("non_finite", spec.non_finite);
  v.field("unbiased", spec.unbiased);
  v.group("momentum", spec.momentum, [](auto& to, auto& part) { visit_momentum(to, part); });
  v.field("clip", spec.clip);
  v.field("dead_after_ms", spec.dead_after_ms);
  v.field("heartbeat_ms", spec.heartbeat_ms);
  v.field("exchange_timeout_ms", spec.exchange_timeout_ms);
  v.field("seed", spec.seed);
  v.field("parts_per_shard", spec.parts_per_shard);
  v.field("fuse_below", spec.fuse_below);
  v.field("audit", spec.audit);
  v.field("history", spec.history);
  v.field("reproducible", spec.reproducible);
  v.field("path", spec.path);
  v.group("switch", spec.switch_path, [](auto& to, auto& part) { visit_switch(to, part); });
  v.group("grid", spec.grid, [](auto& to, auto& part) { visit_grid(to, part); });
  v.field("initial_weights", spec.initial_weights);
  v.group("store", spec.store, [](auto& to, auto& part) { visit_store(to, part); });
  v.words("recipe", spec.recipe);
}

}  // namespace millrace::protocol::fields
