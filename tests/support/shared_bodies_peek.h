#pragma once

#include <cstddef>

#include "worker/peer/transport/shared_bodies.h"

namespace millrace::peer {

/// What tests look at inside of shared bodies.
struct SharedBodiesPeek {
  /// Returns how many bodies of the own segment some process holds.
  static size_t held_slots(SharedBodies& bodies) {
    bodies.reclaim();
    return bodies.blocks_.size();
  }
};

}  // namespace millrace::peer
