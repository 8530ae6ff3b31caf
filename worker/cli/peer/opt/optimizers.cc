#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "worker/cli/peer/opt/optimizer.h"
#include "worker/peer/stream_wire.h"

namespace millrace::cli {

std::span<const OptimizerInfo> optimizers() {
  static const std::array kOptimizers{
      sgd_optimizer(),
      coordinate_descent_optimizer(),
  };
  return kOptimizers;
}

const OptimizerInfo* find_optimizer(std::string_view name) {
  const auto at = std::ranges::find(optimizers(), name, &OptimizerInfo::name);
  return at == optimizers().end() ? nullptr : &*at;
}

std::string description_of(const OptimizerInfo& optimizer, const OptimizerOptions& options) {
  const SelectionSpec& select = options.select;
  return fmt::format(
      "train {} {} lr={} schedule={} l2={} batch={} coordinates={} order={} algorithm={} select={}:{}:{}:{}:{} "
      "codec={} quantizer={} "
      "asynchronous={} seed={}",
      optimizer.name, loss_name(options.loss), options.schedule.rate, rate_schedule_text(options.schedule), options.l2,
      options.batch_rows, options.coordinates, options.order == RowOrder::kFile ? "file" : "shuffled",
      peer::algorithm_info(options.algorithm).name, selection_name(select.selection), select.density, select.k,
      select.threshold, select.period, peer::wire_text(options.codec), peer::wire_text(options.quantizer),
      options.asynchronous, options.seed);
}

}  // namespace millrace::cli
