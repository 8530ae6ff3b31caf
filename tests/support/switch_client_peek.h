#pragma once

#include <cstdint>
#include <memory>

#include "worker/switch/client_state.h"

namespace millrace::worker {

/// What tests look at inside of a client.
struct SwitchClientPeek {
  /// Returns how many slots the congestion windows of all lanes let be under way.
  static uint32_t active_slots(const SwitchClient& client) {
    uint32_t active = 0;
    for (const std::unique_ptr<SwitchClient::Lane>& lane : client.state_->lanes) active += lane->congestion.active();
    return active;
  }
};

}  // namespace millrace::worker
