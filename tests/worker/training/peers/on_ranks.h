#pragma once

#include <cstdint>
#include <thread>
#include <vector>

#include "worker/peer/group/peer_group.h"
#include "worker/peer/transport/thread_network.h"

namespace millrace::training::testing {

/// What `rank` returns on each of `size` ranks, a thread each.
template <typename R, typename Rank>
std::vector<R> on_ranks(uint32_t size, peer::Progress progress, Rank rank) {
  peer::ThreadNetwork network(size);
  std::vector<R> results(size);
  {
    std::vector<std::jthread> threads;
    for (uint32_t at = 0; at < size; ++at) {
      threads.emplace_back([&, at] {
        peer::PeerGroup group(network.communicator(at), {.silence_ms_max = 60'000}, progress);
        results[at] = rank(group);
      });
    }
  }
  return results;
}

}  // namespace millrace::training::testing
