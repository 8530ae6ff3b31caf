#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "kernels/base/buffer.h"

namespace millrace::peer {

/// A body that is being written, before it is sent.
struct WritableBody {
  std::shared_ptr<const void> owner;
  std::span<uint8_t> bytes;

  /// Makes it immutable: from here on, no caller writes to it.
  SharedBytes share() && { return {std::move(owner), bytes}; }
};

/// Where bodies are written: a transport may have memory that others look into, and copies what lies anywhere else.
class BodyMemory {
 public:
  /// Not cleared. Begins at a multiple of 8. Freed with the last owner, on any thread.
  virtual WritableBody take_body(size_t bytes) = 0;

 protected:
  ~BodyMemory() = default;
};

/// The process's own.
WritableBody heap_body(size_t bytes);
/// The same, where a BodyMemory is asked for.
BodyMemory& heap_bodies();

}  // namespace millrace::peer
