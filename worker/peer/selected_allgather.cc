#include "worker/peer/selected_allgather.h"

#include "worker/peer/allgather.h"
#include "worker/peer/contribution.h"

namespace millrace::peer {

template <typename T>
Task<Result<Reduced<T>>> allgather_selected(Channel& channel, const AllreduceSettings<T>& settings, Stream<T> mine) {
  IndexBuffer contributed = mine.indices;
  const HeldStream<T> own = HeldStream<T>::from(std::move(mine));
  Result<CodedContribution<T>> coded = code_contribution(own, settings, channel);
  if (!coded) co_return std::unexpected(coded.error());
  constexpr uint32_t kFirstTag = 0;
  const Result<std::vector<Packet>> packets =
      co_await allgather(channel, std::move(coded->packet), kFirstTag, AllgatherWay::kDoubling);
  if (!packets) co_return std::unexpected(packets.error());
  std::vector<HeldStream<T>> streams;
  std::vector<StreamView<T>> views;
  uint64_t entries = 0;
  for (uint32_t rank = 0; rank < channel.size(); ++rank) {
    Result<HeldStream<T>> stream =
        rank == channel.rank() ? coded->sent : unpack<T>((*packets)[rank], settings.dimension);
    if (!stream) co_return std::unexpected(stream.error());
    streams.push_back(std::move(*stream));
    views.push_back(streams.back().view);
    entries += views.back().count();
  }
  channel.charge(reduce_time(entries));
  Result<Stream<T>> sum = combine<T>(settings.op, views);
  if (!sum) co_return std::unexpected(sum.error());
  if (settings.op.is_sum() && !all_finite<T>(sum->values)) {
    co_return fail(ErrorCode::kNonFinite, "a sum over the ranks overflowed");
  }
  co_return Reduced<T>{HeldStream<T>::from(std::move(*sum)), std::move(coded->returned), std::move(contributed)};
}

template Task<Result<Reduced<float>>> allgather_selected(Channel&, const AllreduceSettings<float>&, Stream<float>);
template Task<Result<Reduced<double>>> allgather_selected(Channel&, const AllreduceSettings<double>&, Stream<double>);

}  // namespace millrace::peer
