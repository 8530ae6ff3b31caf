#include "worker/peer/collectives/sparse_allgather.h"

#include "worker/peer/collectives/allgather.h"
#include "worker/peer/collectives/contribution.h"

namespace millrace::peer {
namespace {

constexpr uint32_t kSparseAllgatherGather = 0;

}  // namespace

Task<Result<Gathered>> sparse_allgather(Channel& channel, SharedStream own, SparseAllgatherSettings settings) {
  AllreduceSettings coding;
  coding.dimension = settings.dimension;
  coding.wire = {settings.codec, std::nullopt, settings.random};
  Result<CodedContribution> coded = code_contribution(own, coding, channel);
  if (!coded) co_return std::unexpected(coded.error());
  const Result<std::vector<Packet>> packets =
      co_await allgather(channel, std::move(coded->packet), kSparseAllgatherGather, AllgatherWay::kDoubling);
  if (!packets) co_return std::unexpected(packets.error());
  Gathered all;
  all.returned = std::move(coded->returned);
  for (uint32_t rank = 0; rank < channel.size(); ++rank) {
    if (rank == channel.rank()) {
      all.streams.push_back(std::move(coded->sent));
      continue;
    }
    Result<SharedStream> theirs = unpack((*packets)[rank], settings.dimension);
    if (!theirs) co_return std::unexpected(theirs.error());
    all.streams.push_back(std::move(*theirs));
  }
  co_return std::move(all);
}

std::string description_of(const SparseAllgatherSettings& settings) {
  return "sparse_allgather f32 n=" + std::to_string(settings.dimension) + " " + wire_text(settings.codec);
}

}  // namespace millrace::peer
