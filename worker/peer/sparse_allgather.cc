#include "worker/peer/sparse_allgather.h"

#include "worker/peer/allgather.h"
#include "worker/peer/contribution.h"

namespace millrace::peer {
namespace {

constexpr uint32_t kSparseAllgatherGather = 0;

}  // namespace

template <typename T>
Task<Result<Gathered<T>>> sparse_allgather(Channel& channel, HeldStream<T> own, SparseAllgatherSettings settings) {
  AllreduceSettings<T> coding;
  coding.dimension = settings.dimension;
  coding.wire = {settings.codec, std::nullopt, settings.random};
  Result<CodedContribution<T>> coded = code_contribution(own, coding, channel);
  if (!coded) co_return std::unexpected(coded.error());
  const Result<std::vector<Packet>> packets =
      co_await allgather(channel, std::move(coded->packet), kSparseAllgatherGather, AllgatherWay::kDoubling);
  if (!packets) co_return std::unexpected(packets.error());
  Gathered<T> all;
  all.returned = std::move(coded->returned);
  for (uint32_t rank = 0; rank < channel.size(); ++rank) {
    if (rank == channel.rank()) {
      all.streams.push_back(std::move(coded->sent));
      continue;
    }
    Result<HeldStream<T>> theirs = unpack<T>((*packets)[rank], settings.dimension);
    if (!theirs) co_return std::unexpected(theirs.error());
    all.streams.push_back(std::move(*theirs));
  }
  co_return std::move(all);
}

template <typename T>
std::string description_of(const SparseAllgatherSettings& settings) {
  return std::string("sparse_allgather ") + (sizeof(T) == 4 ? "f32" : "f64") +
         " n=" + std::to_string(settings.dimension) + " " + wire_text(settings.codec);
}

template Task<Result<Gathered<float>>> sparse_allgather(Channel&, HeldStream<float>, SparseAllgatherSettings);
template Task<Result<Gathered<double>>> sparse_allgather(Channel&, HeldStream<double>, SparseAllgatherSettings);
template std::string description_of<float>(const SparseAllgatherSettings&);
template std::string description_of<double>(const SparseAllgatherSettings&);

}  // namespace millrace::peer
