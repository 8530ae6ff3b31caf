#include "worker/cli/peer/opt/coordinate_exchange.h"

#include <string>
#include <utility>

#include "worker/peer/stream_wire.h"

namespace millrace::cli {
namespace {

constexpr uint32_t kPartialsTag = uint32_t{1} << 31;  // the allgather's are far below

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
  HeldStream changes = HeldStream::from(step.changes(derivatives));
  co_return co_await peer::sparse_allgather(channel, std::move(changes), settings);
}

}  // namespace millrace::cli
