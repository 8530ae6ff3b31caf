#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "worker/peer/transport/communicator.h"

namespace millrace::peer {

/// The ranks of one process, a thread each. Messages are handed over, not copied.
///
/// Threads  each rank's communicator as every communicator; different ranks at the same time.
class ThreadNetwork {
 public:
  explicit ThreadNetwork(uint32_t size);
  ThreadNetwork(const ThreadNetwork&) = delete;
  ThreadNetwork& operator=(const ThreadNetwork&) = delete;
  ~ThreadNetwork();

  uint32_t size() const { return static_cast<uint32_t>(ranks_.size()); }
  /// Valid as long as the network.
  Communicator& communicator(uint32_t rank);
  /// Loses the rank: nothing reaches it any more, and all others are notified.
  void lose(uint32_t rank);
  /// Notifies all others that the rank leaves in good order. It uses its communicator no more.
  void leave(uint32_t rank);

 private:
  class Rank;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace millrace::peer
