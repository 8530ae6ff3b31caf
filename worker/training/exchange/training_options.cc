#include "worker/training/exchange/training_options.h"

#include <variant>

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

}  // namespace millrace::training
