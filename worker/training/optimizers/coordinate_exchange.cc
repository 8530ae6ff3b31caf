#include "worker/training/optimizers/coordinate_exchange.h"

#include <string>
#include <utility>

#include "worker/peer/channel/stream_wire.h"
#include "worker/peer/collectives/allgather.h"

namespace millrace::training {
namespace {

constexpr uint32_t kPartialsTag = uint32_t{1} << 31;  // the allgather's are far below
constexpr uint32_t kSlicesTag = 0;

/// Returns the entries of a dense slice as entries of the whole vector. begin: where the slice begins.
Stream entries_of_slice(const StreamView& slice, uint64_t begin, uint64_t dimension) {
  Stream entries = to_sparse(slice);
  entries.dimension = dimension;
  for (uint32_t& index : entries.indices) index += static_cast<uint32_t>(begin);
  return entries;
}

/// Gathers every rank's slice of the changes around a ring, zeros included, as MPI_Allgatherv would.
peer::Task<Result<peer::Gathered>> gather_slices(peer::Channel& channel, SharedStream changes,
                                                 std::vector<uint64_t> slices) {
  const uint64_t dimension = slices.back();
  const uint32_t rank = channel.rank();
  Stream own = to_dense(slice_of(changes.view, slices[rank], slices[rank + 1]).view());
  auto packed = peer::pack(SharedStream::from(std::move(own)), std::nullopt, {}, slices[rank], channel.bodies());
  if (!packed) co_return std::unexpected(packed.error());
  const auto packets =
      co_await peer::allgather(channel, std::move(packed->packet), kSlicesTag, peer::AllgatherWay::kRing);
  if (!packets) co_return std::unexpected(packets.error());
  peer::Gathered all;
  all.returned = Stream::empty(dimension);
  for (uint32_t from = 0; from < channel.size(); ++from) {
    if (from == rank) {
      all.streams.push_back(changes);
      continue;
    }
    const auto slice = peer::unpack((*packets)[from], slices[from + 1] - slices[from]);
    if (!slice) co_return std::unexpected(slice.error());
    all.streams.push_back(SharedStream::from(entries_of_slice(slice->view, slices[from], dimension)));
  }
  co_return std::move(all);
}

}  // namespace

peer::Task<Result<peer::Gathered>> exchange_coordinates(peer::Channel& channel, CoordinateStep step,
                                                        peer::SparseAllgatherSettings settings) {
  for (uint32_t distance = 1; distance < channel.size(); ++distance) {
    const uint32_t to = (channel.rank() + distance) % channel.size();
    channel.send(to, kPartialsTag, peer::pack_numbers<double>(step.partials[to]));
  }
  std::vector<double> derivatives(step.partials[channel.rank()].size());
  for (uint32_t from = 0; from < channel.size(); ++from) {
    std::vector<double> parts;
    if (from == channel.rank()) {
      parts = std::move(step.partials[from]);
    } else {
      const peer::Packet packet = co_await channel.receive(from, kPartialsTag);
      Result<std::vector<double>> numbers = peer::unpack_numbers<double>(packet);
      if (!numbers) co_return std::unexpected(numbers.error());
      parts = std::move(*numbers);
    }
    if (parts.size() != derivatives.size()) {
      co_return fail(ErrorCode::kMalformed, "rank " + std::to_string(from) + " has parts of " +
                                                std::to_string(parts.size()) + " derivatives, not of " +
                                                std::to_string(derivatives.size()));
    }
    for (size_t at = 0; at < parts.size(); ++at) derivatives[at] += parts[at];
  }
  SharedStream changes = SharedStream::from(step.changes(derivatives));
  if (!step.slices.empty()) co_return co_await gather_slices(channel, std::move(changes), std::move(step.slices));
  co_return co_await peer::sparse_allgather(channel, std::move(changes), settings);
}

}  // namespace millrace::training
