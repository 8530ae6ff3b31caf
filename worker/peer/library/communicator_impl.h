#pragma once

#include <memory>

#include "millrace/peer.h"
#include "worker/peer/transport/communicator.h"

namespace millrace::inline v0::peers {

/// Holds a transport. The two libraries share this type: both are of one build.
struct Communicator::Impl {
  std::shared_ptr<peer::Communicator> transport;
  /// Called when a group over the transport has ended with an error and is freed; may be null.
  void (*group_failed)() = nullptr;
};

}  // namespace millrace::inline v0::peers
