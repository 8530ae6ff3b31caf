#include "worker/peer/selected_allgather.h"

#include "worker/peer/allgather.h"
#include "worker/peer/contribution.h"

namespace millrace::peer {

template <typename T>
Task<Result<Reduced<T>>> allgather_and_combine(Channel& channel, const AllreduceSettings<T>& settings,
                                               HeldStream<T> own) {
  Result<CodedContribution<T>> coded = code_contribution(own, settings, channel);
  if (!coded) co_return std::unexpected(coded.error());
  own = {};
  if (channel.size() == 1) co_return Reduced<T>{std::move(coded->sent), std::move(coded->returned), {}};
  constexpr uint32_t kPacketTag = 0;
  const Result<std::vector<Packet>> packets =
      co_await allgather(channel, std::move(coded->packet), kPacketTag, AllgatherWay::kDoubling);
  if (!packets) co_return std::unexpected(packets.error());
  std::vector<HeldStream<T>> held;
  std::vector<StreamView<T>> views;
  uint64_t entries = 0;
  for (uint32_t rank = 0; rank < channel.size(); ++rank) {
    Result<HeldStream<T>> stream = rank == channel.rank()
                                       ? Result<HeldStream<T>>(std::move(coded->sent))
                                       : unpack<T>((*packets)[rank], settings.dimension, settings.op);
    if (!stream) co_return std::unexpected(stream.error());
    held.push_back(std::move(*stream));
    views.push_back(held.back().view);
    entries += views.back().count();
  }
  channel.charge(reduce_time(entries));
  Result<Stream<T>> sum = combine<T>(settings.op, views);
  if (!sum) co_return std::unexpected(sum.error());
  co_return Reduced<T>{HeldStream<T>::from(std::move(*sum)), std::move(coded->returned), {}};
}

template <typename T>
Task<Result<Reduced<T>>> SelectedAllgather<T>::run(Channel& channel, HeldStream<T> own) {
  Result<HeldStream<T>> selected = selection_.take(own);
  if (!selected) co_return std::unexpected(selected.error());
  IndexBuffer contributed(selected->view.indices.begin(), selected->view.indices.end());
  Result<Reduced<T>> reduced = co_await allgather_and_combine(channel, settings_, std::move(*selected));
  if (reduced) reduced->contributed = std::move(contributed);
  co_return reduced;
}

template Task<Result<Reduced<float>>> allgather_and_combine(Channel&, const AllreduceSettings<float>&,
                                                            HeldStream<float>);
template Task<Result<Reduced<double>>> allgather_and_combine(Channel&, const AllreduceSettings<double>&,
                                                             HeldStream<double>);
template class SelectedAllgather<float>;
template class SelectedAllgather<double>;

}  // namespace millrace::peer
