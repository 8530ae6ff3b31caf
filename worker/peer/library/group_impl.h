#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "kernels/base/clock.h"
#include "millrace/peer.h"
#include "worker/peer/group/group_gather.h"
#include "worker/peer/group/peer_group.h"
#include "worker/peer/library/communicator_impl.h"

namespace millrace::inline v0::peers {

/// Holds a group and its transport, which outlives it. All inline: the library shows no symbol of it.
struct Group::Impl {
  Impl(std::unique_ptr<Communicator::Impl> communicator, const peer::GroupOptions& options, peer::Progress progress)
      : link(std::move(communicator)), inner(*link->transport, options, progress) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (link->group_failed != nullptr && inner.failure()) link->group_failed();
  }

  /// Takes a barrier that this rank has entered and not left, the oldest; empty: there is none.
  std::optional<peer::EnteredBarrier> take_barrier() {
    const std::lock_guard lock(barriers_mutex);
    if (barriers.empty()) return std::nullopt;
    std::optional<peer::EnteredBarrier> oldest = std::move(barriers.front());
    barriers.pop_front();
    return oldest;
  }
  void keep_barrier(peer::EnteredBarrier entered) {
    const std::lock_guard lock(barriers_mutex);
    barriers.push_back(std::move(entered));
  }

  std::unique_ptr<Communicator::Impl> link;
  peer::PeerGroup inner;
  std::mutex barriers_mutex;
  std::deque<peer::EnteredBarrier> barriers = {};  ///< one, unless several threads wait at a time
};

/// Returns a time limit of a caller in nanoseconds: from 0 to a year.
inline TimeNs limit_of(std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);
  return std::clamp(timeout, std::chrono::milliseconds(0), kLongest).count() * kNsPerMs;
}

/// Reads the private member of Group: for bindings, which are of one build with the library.
struct GroupAccess {
  /// Returns the group inside, which keeps its transport.
  static std::shared_ptr<peer::PeerGroup> inner_of(const Group& group) { return {group.impl_, &group.impl_->inner}; }
};

}  // namespace millrace::inline v0::peers
