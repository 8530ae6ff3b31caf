#include "worker/training/exchange/path_measure.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/base/clock.h"
#include "worker/peer/algorithms/gradient_speeds.h"
#include "worker/peer/algorithms/group_speeds.h"
#include "worker/peer/group/group_gather.h"
#include "worker/training/exchange/group_agreement.h"
#include "worker/training/exchange/server_reach.h"

namespace millrace::training {
namespace {

peer::SumShape sum_shape(const OptimizerOptions& options, uint64_t dimension, uint64_t entries, uint32_t ranks) {
  return {.dimension = dimension,
          .k = entries,
          .ranks = ranks,
          .threshold_period = options.thresholds_period,
          .boundary_period = options.boundaries_period};
}

/// Measures this rank's own speeds.
Result<peer::GroupSpeeds> measure_own(const OptimizerOptions& options, const peer::SumShape& shape) {
  peer::GroupSpeeds own{.speeds = {}, .entries = static_cast<double>(shape.k)};
  const auto codings = peer::measure_codings(codec_of(options), shape, &monotonic_now_ns);
  if (!codings) return std::unexpected(codings.error());
  own.speeds.contribution = codings->contribution;
  own.speeds.sums = codings->sums;
  if (options.algorithm != peer::AlgorithmId::kOktopk) return own;
  const auto select = peer::measure_selections(SelectionId::kThresholdReuse, shape, &monotonic_now_ns);
  if (!select) return std::unexpected(select.error());
  own.speeds.select = *select;
  return own;
}

bool servers_keep_topk(const OptimizerOptions& options) {
  return options.algorithm == peer::AlgorithmId::kOktopk || reselects(options);
}

template <typename T>
Status status_of(const Result<T>& result) {
  return result ? Status{} : std::unexpected(result.error());
}

}  // namespace

uint64_t entries_of_a_step(const Dataset& data, const OptimizerOptions& options) {
  std::vector<bool> occurs(data.dimension);
  uint64_t entries = 1;  // the intercept
  for (size_t at = 0; at < std::min<size_t>(data.rows(), options.batch_rows); ++at) {
    for (const uint32_t index : data.row(at).indices) {
      if (occurs[index]) continue;
      occurs[index] = true;
      ++entries;
    }
  }
  const SelectionSpec select = select_of(options);
  const SelectionInfo* info = find_selection(select.selection);
  if (info == nullptr || info->amount() != SelectionAmount::kShare) return entries;
  const uint64_t selected = k_of(select, data.dimension + 1);
  // A velocity has entries of many batches.
  return has_momentum(options) ? selected : std::min(entries, selected);
}

Result<PathChoice> measure_paths(peer::PeerGroup& group, const Dataset& data, const OptimizerOptions& options) {
  const uint64_t dimension = data.dimension + 1;
  const auto reach = latency_to_servers(options.me.shards, options.me.connect_timeout, [&group] {
    group.make_progress();
    return !group.failure();
  });
  if (Status status = agree(group, "servers", status_of(reach)); !status) return std::unexpected(status.error());
  const auto own = measure_own(options, sum_shape(options, dimension, entries_of_a_step(data, options), group.size()));
  if (Status status = agree(group, "speeds", status_of(own)); !status) return std::unexpected(status.error());
  constexpr uint32_t kFirstTag = 0;
  auto pending = group.start<peer::GroupSpeeds>("speeds of the group", [mine = *own](peer::Channel& channel) {
    return peer::measure_group(channel, mine, kFirstTag);
  });
  if (!pending) return std::unexpected(pending.error());
  const Result<peer::GroupSpeeds> speeds = pending->wait();
  if (!speeds) return std::unexpected(speeds.error());
  const auto latencies = peer::gather<double>(group, "latency to servers", {*reach});
  if (!latencies) return std::unexpected(latencies.error());
  const auto entries = std::clamp<uint64_t>(static_cast<uint64_t>(std::llround(speeds->entries)), 1, dimension);
  PathChoice choice = choose_path({.shape = sum_shape(options, dimension, entries, group.size()),
                                   .speeds = speeds->speeds,
                                   .server_latency_s = std::ranges::max(*latencies),
                                   .shards = static_cast<uint32_t>(options.me.shards.size()),
                                   .algorithm = options.algorithm,
                                   .keeps_topk = servers_keep_topk(options)});
  // Processors of different kinds may round the models' logarithms differently.
  const auto paths = peer::gather<uint32_t>(group, "path", {static_cast<uint32_t>(choice.path)});
  if (!paths) return std::unexpected(paths.error());
  choice.path = static_cast<ExchangePath>(paths->front());
  return choice;
}

}  // namespace millrace::training
