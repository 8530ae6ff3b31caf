#include "worker/peer/algorithms/registry.h"

#include <string>

#include "kernels/base/check.h"
#include "kernels/base/registry.h"
#include "worker/peer/algorithms/allreduce_list.h"

namespace millrace::peer {
namespace {

const auto& algorithm_registry() {
#define MILLRACE_LISTED(word) word##_entry(),
  static const Registry registry = {MILLRACE_ALLREDUCES(MILLRACE_LISTED)};
#undef MILLRACE_LISTED
  return registry;
}

Status validate_for(const AlgorithmInfo& info, const AllreduceSettings& settings) {
  const auto refuse = [&info](const std::string& why) {
    return fail(ErrorCode::kInvalidArgument, std::string(info.name) + ": " + why);
  };
  if (settings.dimension == 0 || settings.dimension > kDimensionMax) {
    return refuse("a dimension of " + std::to_string(settings.dimension) + "; it must be from 1 to 2^32");
  }
  const bool needs_k = info.result == ResultKind::kGlobalTopk || info.selects;
  if (needs_k && (settings.k == 0 || settings.k > settings.dimension)) {
    return refuse("k = " + std::to_string(settings.k) + "; it must be from 1 to the dimension");
  }
  if (info.needs_sum && !settings.op.is_sum()) return refuse("it can only add, not " + settings.op.name);
  for (const auto& codec : {settings.wire.contribution, settings.wire.sums}) {
    if (!codec) continue;
    if (Status status = validate(*codec); !status) return status;
  }
  if (settings.wire.contribution && !settings.op.is_sum() && is_lossy(*settings.wire.contribution)) {
    return refuse("the error of a lossy codec can be kept for later only where values are added, not for " +
                  settings.op.name);
  }
  if (settings.wire.sums && is_lossy(*settings.wire.sums)) {
    return refuse("sums travel losslessly, not as " + codec_text(*settings.wire.sums));
  }
  if (settings.boundaries_period == 0 || settings.thresholds_period == 0 || settings.messages_in_flight == 0) {
    return refuse("a period, or a number of messages in flight, of 0");
  }
  if (!(settings.balance_ratio >= 1)) {
    return refuse("a balance ratio of " + std::to_string(settings.balance_ratio) +
                  "; the largest is at least the average");
  }
  return {};
}

}  // namespace

const AlgorithmEntry& algorithm_entry(AlgorithmId id) {
  const AlgorithmEntry* entry = algorithm_registry().with_number(id);
  MILLRACE_CHECK(entry != nullptr, static_cast<int>(id));
  return *entry;
}

std::span<const AlgorithmInfo> algorithms() {
  static const auto infos = infos_of(algorithm_registry());
  return infos;
}

const AlgorithmInfo* find_algorithm(std::string_view name) {
  const AlgorithmEntry* entry = algorithm_registry().with_name(name);
  return entry == nullptr ? nullptr : &entry->info;
}

const AlgorithmInfo& algorithm_info(AlgorithmId id) { return algorithm_entry(id).info; }

Result<std::unique_ptr<Allreduce>> make_allreduce(AlgorithmId id, const AllreduceSettings& settings) {
  const AlgorithmEntry& one = algorithm_entry(id);
  if (Status status = validate_for(one.info, settings); !status) return std::unexpected(status.error());
  return one.make(settings);
}

std::string description_of(AlgorithmId id, const AllreduceSettings& settings) {
  const AlgorithmEntry& entry = algorithm_entry(id);
  std::string text = std::string(entry.info.name) + " f32 n=" + std::to_string(settings.dimension) + " " +
                     settings.op.name + " " + wire_text(settings.wire.contribution) + " " +
                     wire_text(settings.wire.sums);
  if (settings.k != 0) text += " k=" + std::to_string(settings.k);
  if (settings.dense_quantizer) text += " dense " + codec_text(*settings.dense_quantizer);
  if (entry.describe != nullptr) text += entry.describe(settings);
  return text;
}

std::string description_of(const Allreduce& allreduce, const AllreduceSettings& settings) {
  std::string text = description_of(allreduce.info().id, settings) + " step=" + std::to_string(allreduce.next_step());
  if (const uint64_t digest = allreduce.common_digest(); digest != 0) text += " state=" + std::to_string(digest);
  return text;
}

}  // namespace millrace::peer
