#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "worker/peer/channel/stream_wire.h"
#include "worker/peer/group/peer_group.h"

namespace millrace::peer {

namespace gather_detail {

template <typename N>
Task<Result<std::vector<N>>> gather(Channel& channel, std::vector<N> own) {
  constexpr uint32_t kTag = 1;
  const Packet packet = pack_numbers<N>(std::span<const N>(own));
  for (uint32_t step = 1; step < channel.size(); ++step) {
    channel.send((channel.rank() + step) % channel.size(), kTag, packet);
  }
  std::vector<N> all;
  for (uint32_t from = 0; from < channel.size(); ++from) {
    if (from == channel.rank()) {
      all.insert(all.end(), own.begin(), own.end());
      continue;
    }
    const Packet theirs = co_await channel.receive(from, kTag);
    const Result<std::vector<N>> numbers = unpack_numbers<N>(theirs);
    if (!numbers) co_return std::unexpected(numbers.error());
    if (numbers->size() != own.size()) {
      co_return fail(ErrorCode::kMalformed,
                     "a rank has " + std::to_string(numbers->size()) + " numbers, not " + std::to_string(own.size()));
    }
    all.insert(all.end(), numbers->begin(), numbers->end());
  }
  co_return all;
}

}  // namespace gather_detail

/// Starts to gather the numbers of all ranks, rank 0's first; as many on each. Ends the group where the ranks differ in
/// `what`. For a few numbers: every rank sends them to every other.
template <typename N>
Result<Pending<std::vector<N>>> start_gather(PeerGroup& group, std::string what, std::vector<N> own) {
  return group.start<std::vector<N>>(
      std::move(what), [own = std::move(own)](Channel& channel) { return gather_detail::gather<N>(channel, own); });
}

/// Does the same, and blocks until all ranks have called it.
template <typename N>
Result<std::vector<N>> gather(PeerGroup& group, std::string what, std::vector<N> own) {
  auto pending = start_gather<N>(group, std::move(what), std::move(own));
  if (!pending) return std::unexpected(pending.error());
  return pending->wait();
}

/// A barrier that this rank has entered.
using EnteredBarrier = Pending<std::vector<uint32_t>>;

inline Result<EnteredBarrier> enter_barrier(PeerGroup& group) { return start_gather<uint32_t>(group, "barrier", {}); }

/// Blocks until all ranks are here.
inline Status barrier(PeerGroup& group) {
  auto entered = enter_barrier(group);
  if (!entered) return std::unexpected(entered.error());
  const auto all = entered->wait();
  return all ? Status{} : std::unexpected(all.error());
}

}  // namespace millrace::peer
