#include "worker/peer/algorithms/gradient_speeds.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/random.h"
#include "kernels/stream/stream.h"
#include "worker/peer/algorithms/summing_speeds.h"
#include "worker/peer/channel/stream_wire.h"

namespace millrace::peer {
namespace {

constexpr size_t kDrawnEntries = size_t{1} << 14;
constexpr double kIndices = 4294967296.0;

/// Entries of uniform indices at a density, 2^14 at most.
Stream drawn_entries(double density) {
  RandomSequence random(RandomKey::from(1));
  Stream stream;
  const double scale = 1 / std::log1p(-std::min(density, 1 - 1e-9));
  double at = -1;
  while (stream.indices.size() < kDrawnEntries) {
    at += 1 + std::floor(std::log(1 - random.next_unit()) * scale);
    if (at >= kIndices) break;
    stream.indices.push_back(static_cast<uint32_t>(at));
    stream.values.push_back(static_cast<float>(random.next_normal()));
  }
  stream.dimension = stream.indices.empty() ? 1 : uint64_t{stream.indices.back()} + 1;
  return stream;
}

Result<EntryCoding> coding_at(double density, const CodecSpec& codec, const std::function<TimeNs()>& clock) {
  const Stream drawn = drawn_entries(density);
  return measure_coding(codec, drawn.view(), clock);
}

}  // namespace

Result<SelectionSpeeds> measure_selections(SelectionId callers, const SumShape& shape,
                                           const std::function<TimeNs()>& clock) {
  if (callers == SelectionId::kNone) return SelectionSpeeds{};
  const auto measured = [&](SelectionId selection) {
    SelectionSpec spec;
    spec.selection = selection;
    spec.k = shape.k;
    spec.period = shape.threshold_period;
    return measure_selection(spec, shape.dimension, clock);
  };
  const auto own = measured(callers), topk = measured(SelectionId::kTopK), gaussian = measured(SelectionId::kGaussian),
             reused = measured(SelectionId::kThresholdReuse);
  for (const auto* one : {&own, &topk, &gaussian, &reused}) {
    if (!*one) return std::unexpected(one->error());
  }
  return SelectionSpeeds{.callers_s = own->mean_s(shape.threshold_period),
                         .topk_s = topk->first_s,
                         .gaussian_s = gaussian->first_s,
                         .reevaluate_s = reused->first_s,
                         .reuse_s = reused->reuse_s};
}

Result<CodingSpeeds> measure_codings(const std::optional<CodecSpec>& codec, const SumShape& shape,
                                     const std::function<TimeNs()>& clock) {
  if (!codec) return CodingSpeeds{};
  const auto n = static_cast<double>(shape.dimension);
  const auto contribution = coding_at(static_cast<double>(shape.k) / n, *codec, clock);
  if (!contribution) return std::unexpected(contribution.error());
  const double support = expected_support(shape.dimension, shape.k, shape.ranks);
  const auto sums = coding_at(support / n, lossless_of(*codec), clock);
  if (!sums) return std::unexpected(sums.error());
  return CodingSpeeds{*contribution, *sums};
}

}  // namespace millrace::peer
