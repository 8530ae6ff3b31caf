#include "worker/peer/local_selection.h"

#include <algorithm>

namespace millrace::peer {

template <typename T>
LocalSelection<T>::LocalSelection(Selection selection, const AllreduceSettings<T>& settings)
    : dimension_(settings.dimension), all_up_to_(selection == Selection::kThresholdReuse ? settings.k : 0) {
  SelectionSpec spec;
  spec.selection = selection;
  spec.k = settings.k;
  spec.period = settings.thresholds_period;
  selector_ = make_selector<T>(spec, settings.dimension).value();
}

template <typename T>
Result<Stream<T>> LocalSelection<T>::take(const StreamView<T>& own) {
  if (own.dimension != dimension_) {
    return fail(ErrorCode::kInvalidArgument, "a contribution of dimension " + std::to_string(own.dimension) +
                                                 " to an allreduce of " + std::to_string(dimension_));
  }
  if (!own.dense && own.count() <= all_up_to_ && std::ranges::find(own.values, T{0}) == own.values.end()) {
    if (!all_finite<T>(own.values)) return fail(ErrorCode::kNonFinite, "a contribution has NaN or infinity");
    ++step_;
    return Stream<T>{
        own.dimension, false, {own.indices.begin(), own.indices.end()}, {own.values.begin(), own.values.end()}};
  }
  IndexBuffer positions;
  if (Status status = selector_->select(own, {.step = step_, .random = {}}, positions); !status) {
    return std::unexpected(status.error());
  }
  ++step_;
  return entries_at<T>(own, positions);
}

template <typename T>
Stream<T> entries_at(const StreamView<T>& stream, std::span<const uint32_t> positions) {
  Stream<T> out = Stream<T>::empty(stream.dimension);
  out.indices.resize(positions.size());
  out.values.resize(positions.size());
  if (stream.dense) {
    std::ranges::copy(positions, out.indices.begin());
  } else {
    std::ranges::transform(positions, out.indices.begin(),
                           [from = stream.indices.data()](uint32_t at) { return from[at]; });
  }
  std::ranges::transform(positions, out.values.begin(),
                         [from = stream.values.data()](uint32_t at) { return from[at]; });
  return out;
}

template class LocalSelection<float>;
template class LocalSelection<double>;
template Stream<float> entries_at(const StreamView<float>&, std::span<const uint32_t>);
template Stream<double> entries_at(const StreamView<double>&, std::span<const uint32_t>);

}  // namespace millrace::peer
