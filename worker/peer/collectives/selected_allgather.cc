#include "worker/peer/collectives/selected_allgather.h"

#include "worker/peer/collectives/allgather.h"
#include "worker/peer/collectives/contribution.h"

namespace millrace::peer {

Task<Result<Reduced>> allgather_and_combine(Channel& channel, const AllreduceSettings& settings, Contribution given) {
  Result<CodedContribution> coded = code_contribution(given, settings, channel);
  if (!coded) co_return std::unexpected(coded.error());
  given.own = {};
  given.rest = {};
  if (channel.size() == 1) {
    co_return Reduced{std::move(coded->sent), std::move(coded->returned), {}, std::move(coded->added)};
  }
  constexpr uint32_t kPacketTag = 0;
  const Result<std::vector<Packet>> packets =
      co_await allgather(channel, std::move(coded->packet), kPacketTag, AllgatherWay::kDoubling);
  if (!packets) co_return std::unexpected(packets.error());
  std::vector<SharedStream> held;
  std::vector<StreamView> views;
  uint64_t entries = 0;
  for (uint32_t rank = 0; rank < channel.size(); ++rank) {
    Result<SharedStream> stream = rank == channel.rank() ? Result<SharedStream>(std::move(coded->sent))
                                                         : unpack((*packets)[rank], settings.dimension, settings.op);
    if (!stream) co_return std::unexpected(stream.error());
    held.push_back(std::move(*stream));
    views.push_back(held.back().view);
    entries += views.back().count();
  }
  channel.charge(reduce_time(entries));
  Result<Stream> sum = combine(settings.op, views);
  if (!sum) co_return std::unexpected(sum.error());
  co_return Reduced{SharedStream::from(std::move(*sum)), std::move(coded->returned), {}, std::move(coded->added)};
}

Task<Result<Reduced>> SelectedAllgather::run(Channel& channel, Contribution given) {
  Result<SharedStream> selected = selection_.take(given.own);
  if (!selected) co_return std::unexpected(selected.error());
  IndexBuffer contributed(selected->view.indices.begin(), selected->view.indices.end());
  Contribution chosen{std::move(*selected), fills_from_rest(settings_.wire) ? std::move(given.own) : SharedStream{}};
  given.own = {};
  Result<Reduced> reduced = co_await allgather_and_combine(channel, settings_, std::move(chosen));
  if (reduced) reduced->contributed = merged_indices(contributed, std::exchange(reduced->added, {}).indices);
  co_return reduced;
}

}  // namespace millrace::peer
