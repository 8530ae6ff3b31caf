#include "worker/config/option_access.h"

#include <variant>

namespace millrace {
inline namespace v0 {
namespace {

Amount amount_of(double density, uint64_t entries) { return entries != 0 ? Amount::count(entries) : Amount(density); }

}  // namespace

SelectionSpec OptionAccess::spec_of(const Selection& selection) {
  return {.selection = static_cast<SelectionId>(selection.method_),
          .density = selection.amount_.density(),
          .k = selection.amount_.entries(),
          .threshold = selection.threshold_,
          .period = selection.period_,
          .bucket_size = selection.bucket_,
          .variance = selection.variance_,
          .iterations = selection.iterations_,
          .alternate_signs = selection.one_sign_,
          .warm_up = static_cast<WarmUp>(selection.first_form_),
          .warm_up_steps = selection.first_steps_};
}

Selection OptionAccess::selection_of(const SelectionSpec& spec) {
  Selection selection(static_cast<uint8_t>(spec.selection), amount_of(spec.density, spec.k));
  selection.one_sign_ = spec.alternate_signs;
  selection.first_form_ = static_cast<uint8_t>(spec.warm_up);
  selection.first_steps_ = spec.warm_up_steps;
  selection.period_ = spec.period;
  selection.bucket_ = spec.bucket_size;
  selection.iterations_ = spec.iterations;
  selection.threshold_ = spec.threshold;
  selection.variance_ = spec.variance;
  return selection;
}

protocol::ReselectSpec OptionAccess::spec_of(const Reselect& reselect) {
  if (!reselect.is_top_k_) return {};
  return {.reselect = protocol::Reselect::kTopK,
          .density = reselect.amount_.density(),
          .k = reselect.amount_.entries(),
          .threshold_period = reselect.threshold_period_};
}

Reselect OptionAccess::reselect_of(const protocol::ReselectSpec& spec) {
  if (spec.reselect == protocol::Reselect::kNone) return Reselect::none();
  return Reselect::top_k(amount_of(spec.density, spec.k), spec.threshold_period);
}

CodecSpec OptionAccess::spec_of(const Codec& codec) {
  const ValueCode::Parameters& value = codec.value_.parameters_;
  const CodecSpec spec = {.automatic = codec.automatic_,
                          .index = static_cast<IndexCodecId>(codec.index_.number_),
                          .value = static_cast<ValueCodecId>(codec.value_.number_),
                          .bloom_false_positive_rate = codec.index_.rate_,
                          .qsgd_bits = value.bits,
                          .bucket_size = value.bucket,
                          .qsgd_scale_max = value.scale == QsgdScale::kMaximum,
                          .sparsity_multiplier = value.multiplier};
  // A text has the parameters that the codes use, and no others: the hash of a job compares all fields.
  if (find_index_codec(spec.index) == nullptr || find_value_codec(spec.value) == nullptr) return spec;
  const auto canonical = codec_from_text(codec_text(spec));
  return canonical ? *canonical : spec;
}

Codec OptionAccess::codec_of(const CodecSpec& spec) {
  const ValueCode value(static_cast<uint8_t>(spec.value),
                        {.bits = spec.qsgd_bits,
                         .bucket = spec.bucket_size,
                         .scale = spec.qsgd_scale_max ? QsgdScale::kMaximum : QsgdScale::kL2Norm,
                         .multiplier = spec.sparsity_multiplier});
  Codec codec(IndexCode(static_cast<uint8_t>(spec.index), spec.bloom_false_positive_rate), value);
  codec.automatic_ = spec.automatic;
  return codec;
}

protocol::MomentumSpec OptionAccess::spec_of(const Momentum& momentum) {
  if (momentum == Momentum::none().unmasked()) return {};  // there is no velocity to keep
  return {.momentum = static_cast<protocol::Momentum>(momentum.form_),
          .factor = momentum.factor_,
          .masked = momentum.masked_};
}

Momentum OptionAccess::momentum_of(const protocol::MomentumSpec& spec) {
  Momentum momentum(static_cast<uint8_t>(spec.momentum), spec.factor);
  momentum.masked_ = spec.masked;
  return momentum;
}

}  // namespace v0
}  // namespace millrace
