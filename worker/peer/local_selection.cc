#include "worker/peer/local_selection.h"

namespace millrace::peer {

template <typename T>
LocalSelection<T>::LocalSelection(Selection selection, const AllreduceSettings<T>& settings)
    : dimension_(settings.dimension) {
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
  for (size_t i = 0; i < positions.size(); ++i) {
    out.indices[i] = stream.dense ? positions[i] : stream.indices[positions[i]];
    out.values[i] = stream.values[positions[i]];
  }
  return out;
}

template class LocalSelection<float>;
template class LocalSelection<double>;
template Stream<float> entries_at(const StreamView<float>&, std::span<const uint32_t>);
template Stream<double> entries_at(const StreamView<double>&, std::span<const uint32_t>);

}  // namespace millrace::peer
