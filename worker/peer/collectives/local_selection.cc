#include "worker/peer/collectives/local_selection.h"

#include <algorithm>

namespace millrace::peer {

LocalSelection::LocalSelection(SelectionId selection, const AllreduceSettings& settings)
    : dimension_(settings.dimension),
      all_up_to_(selection == SelectionId::kTopK || selection == SelectionId::kThresholdReuse ? settings.k : 0) {
  SelectionSpec spec;
  spec.selection = selection;
  spec.k = settings.k;
  spec.period = settings.thresholds_period;
  selector_ = make_selector(spec, settings.dimension).value();
}

Result<SharedStream> LocalSelection::take(const SharedStream& own) {
  const StreamView& view = own.view;
  if (view.dimension != dimension_) {
    return fail(ErrorCode::kInvalidArgument, "a contribution of dimension " + std::to_string(view.dimension) +
                                                 " to an allreduce of " + std::to_string(dimension_));
  }
  const uint64_t step = step_++;
  if (!view.dense && view.count() <= all_up_to_ && std::ranges::find(view.values, 0.0F) == view.values.end()) {
    if (!all_finite(view.values)) return fail(ErrorCode::kNonFinite, "the contribution has NaN or infinity");
    return own;
  }
  IndexBuffer positions;
  if (Status status = selector_->select(view, {.step = step, .random = {}}, positions); !status) {
    return std::unexpected(status.error());
  }
  return SharedStream::from(entries_at(view, positions));
}

Stream entries_at(const StreamView& stream, std::span<const uint32_t> positions) {
  Stream out = Stream::empty(stream.dimension);
  out.indices.resize(positions.size());
  out.values.resize(positions.size());
  for (size_t i = 0; i < positions.size(); ++i) {
    out.indices[i] = stream.dense ? positions[i] : stream.indices[positions[i]];
    out.values[i] = stream.values[positions[i]];
  }
  return out;
}

Partition partition_at(const StreamView& stream, std::span<const uint32_t> positions) {
  Partition out{entries_at(stream, positions), Stream::empty(stream.dimension)};
  Stream& dropped = out.dropped;
  dropped.indices.resize(stream.values.size());
  dropped.values.resize(stream.values.size());
  size_t count = 0, next = 0;
  for (size_t i = 0; i < stream.values.size(); ++i) {
    const bool is_kept = next < positions.size() && positions[next] == i;
    dropped.indices[count] = stream.dense ? static_cast<uint32_t>(i) : stream.indices[i];
    dropped.values[count] = stream.values[i];
    next += static_cast<size_t>(is_kept);
    count += static_cast<size_t>(!is_kept & (stream.values[i] != 0));
  }
  dropped.indices.resize(count);
  dropped.values.resize(count);
  return out;
}

}  // namespace millrace::peer
