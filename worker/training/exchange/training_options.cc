#include "worker/training/exchange/training_options.h"

#include <variant>

#include "kernels/codec/lossy_index_codec.h"
#include "worker/config/option_access.h"

namespace millrace::training {

SelectionSpec select_of(const OptimizerOptions& options) { return OptionAccess::spec_of(options.job.select); }

std::optional<CodecSpec> codec_of(const OptimizerOptions& options) {
  const CodecSpec spec = OptionAccess::spec_of(options.job.codec_up);
  return spec == CodecSpec{.index = IndexCodecId::kRaw} ? std::nullopt : std::optional(spec);
}

protocol::MomentumSpec momentum_of(const OptimizerOptions& options) {
  return OptionAccess::spec_of(options.job.momentum);
}

protocol::ReselectSpec reselect_of(const OptimizerOptions& options) {
  return OptionAccess::spec_of(options.job.reselect);
}

uint32_t staleness_of(const OptimizerOptions& options) {
  return std::get<Synchronous>(options.job.consistency).staleness;
}

bool has_momentum(const OptimizerOptions& options) { return !(options.job.momentum == Momentum::none()); }

bool reselects(const OptimizerOptions& options) { return !(options.job.reselect == Reselect::none()); }

CodecError codec_error_of(const OptimizerOptions& options) {
  if (options.job.contributions.unbiased) return CodecError::kDrop;  // there is no residual to retain it in
  if (options.codec_error) return *options.codec_error;
  for (const auto& codec : {codec_of(options), options.quantizer}) {
    if (!codec || !is_lossy(*codec)) continue;
    const ValueCodec* values = find_value_codec(codec->value);
    if (values != nullptr && !values->contraction(*codec)) return CodecError::kDrop;
    // Values at other indices than theirs: fed back, the error grows.
    const PickingIndexCodec* picking = picking_codec(*find_index_codec(codec->index));
    if (picking != nullptr && picking->by_position()) return CodecError::kDrop;
  }
  return CodecError::kRetain;
}

}  // namespace millrace::training
