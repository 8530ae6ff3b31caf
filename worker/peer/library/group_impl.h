#pragma once

#include <memory>
#include <utility>

#include "millrace/peer.h"
#include "worker/peer/group/peer_group.h"
#include "worker/peer/library/communicator_impl.h"

namespace millrace::peers {

/// Holds a group and its transport, which outlives it. All inline: the library shows no symbol of it.
struct Group::Impl {
  Impl(std::unique_ptr<Communicator::Impl> communicator, const peer::GroupOptions& options, peer::Progress progress)
      : link(std::move(communicator)), inner(*link->transport, options, progress) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (link->group_failed != nullptr && inner.failure()) link->group_failed();
  }

  std::unique_ptr<Communicator::Impl> link;
  peer::PeerGroup inner;
};

/// Reads the private member of Group: for bindings, which are of one build with the library.
struct GroupAccess {
  /// Returns the group inside, which keeps its transport.
  static std::shared_ptr<peer::PeerGroup> inner_of(const Group& group) { return {group.impl_, &group.impl_->inner}; }
};

}  // namespace millrace::peers
