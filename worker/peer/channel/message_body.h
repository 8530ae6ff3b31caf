#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "kernels/base/buffer.h"

namespace millrace::peer {

/// Holds a body that is being written, before it is sent.
struct WritableBody {
  std::shared_ptr<const void> owner;
  std::span<uint8_t> bytes;

  /// Makes it immutable: from here on, no caller writes to it.
  SharedBytes share() && { return {std::move(owner), bytes}; }
};

/// Gives memory for bodies: a transport may have memory that other processes read, and copies bodies from elsewhere.
class BodyMemory {
 public:
  /// Returns the length of the longest body that the transport carries; always the same.
  virtual uint64_t body_bytes_max() const { return UINT64_MAX; }
  /// Returns a body that is not cleared. Begins at a multiple of 8. Freed with the last owner, on any thread.
  virtual WritableBody take_body(size_t bytes) = 0;

 protected:
  ~BodyMemory() = default;
};

/// Returns a body in the process's own memory.
WritableBody heap_body(size_t bytes);
/// Returns the same memory as a BodyMemory.
BodyMemory& heap_bodies();

}  // namespace millrace::peer
